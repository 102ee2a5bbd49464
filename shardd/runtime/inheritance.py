"""What a worker or a door gets from its supervisor: plain values and the numbers of the descriptors that it inherits.

It travels as MessagePack in a sealed memfd, never on a command line: it holds keys and the first user's password.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from shardd.config.logs import Logging
from shardd.config.schema import Settings
from shardd.runtime.trust import TrustInheritance


class WorkerInheritance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lists have one entry per shard; the descriptors stay open for the life of the worker.

    `cpus`: CPU of each shard; `memory_nodes`: NUMA node of each shard's memory, empty: not bound. `address`: the actual
    TCP address. `handover_send_fds[j]` sends a connection to shard j, `handover_receive_fd` receives those for this
    shard (AF_UNIX datagrams, non-blocking). `pool_bytes`: of one shard. `io_engine`: what the
    supervisor chose, "io_uring" or "epoll".
    `trust`: how this worker and the others prove who they are (trust.py).
    `root_name`, `root_password`: the first user, which shard 0 creates when there is none; for the others no password.
    `root_password_hash`: of that password, which is then not told.
    `respawns`: how many workers of this shard there were before.
    `tls_fd`: what it shows to clients (tls_material.py); -1: no TLS.
    `doors`: the same proofs for the doors and the socket where they connect to; None when there is no door.
    `unix_listener_fd`: one for all workers; `listener_fd`, `websocket_listener_fd`: of this one; -1: there is none.
    `websocket_address`, `http_address`, `quic_address`: the actual ones, "" without. `access_keys`: of access tokens
    (shardd/security/access_tokens.py).
    """

    shard: int
    shards: int
    cpus: list[int]
    settings: Settings
    address: str
    control_fd: int
    listener_fd: int
    directory_lock_fd: int
    shared_fd: int
    pool_fds: list[int]
    pool_bytes: int
    io_engine: str
    doorbell_fds: list[int]
    handover_receive_fd: int
    handover_send_fds: list[int]
    trust: TrustInheritance
    root_name: str
    root_password: str
    started_at_us: int
    supervisor_pid: int
    version: str
    respawns: int
    memory_nodes: list[int] = []
    doors: TrustInheritance | None = None
    tls_fd: int = -1
    unix_listener_fd: int = -1
    websocket_listener_fd: int = -1
    websocket_address: str = ""
    http_address: str = ""
    quic_address: str = ""
    access_keys: list[bytes] = []
    root_password_hash: str = ""

    @property
    def cpu(self) -> int:
        return self.cpus[self.shard]

    @property
    def data_directory(self) -> Path:
        return self.settings.system.data_directory

    @property
    def _optional(self) -> tuple[int, ...]:
        return self.tls_fd, self.listener_fd, self.unix_listener_fd, self.websocket_listener_fd

    def descriptors(self) -> list[int]:
        """Every inherited descriptor, for the spawn."""
        return [
            self.control_fd,
            self.directory_lock_fd,
            self.shared_fd,
            self.handover_receive_fd,
            *self.pool_fds,
            *self.doorbell_fds,
            *self.handover_send_fds,
            *self.trust.descriptors(),
            *([] if self.doors is None else self.doors.descriptors()),
            *(fd for fd in self._optional if fd >= 0),
        ]


class DoorInheritance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a door gets: nothing of the data, and no password. `logging`: those of the server. `trust`: its places at
    the workers. `respawns`: how many processes of this door there were before. `listener_fds`: where its clients
    connect, in the order of its specification; `options`: settings of its own, as it encodes them. `tls_fd`: as that
    of a worker, with what is shown by doors. `cpus`: where it runs; none: on all. `addresses`: the actual ones of all
    doors, by the setting that says so."""

    name: str
    shards: int
    control_fd: int
    trust: TrustInheritance
    logging: Logging
    supervisor_pid: int
    version: str
    respawns: int
    listener_fds: list[int] = []
    options: bytes = b""
    tls_fd: int = -1
    cpus: list[int] = []
    addresses: dict[str, str] = {}

    def descriptors(self) -> list[int]:
        tls = [self.tls_fd] if self.tls_fd >= 0 else []
        return [self.control_fd, *self.listener_fds, *tls, *self.trust.descriptors()]


Inheritance = TypeVar("Inheritance", WorkerInheritance, DoorInheritance)


def write_inheritance(inheritance: WorkerInheritance | DoorInheritance) -> int:
    """A sealed memfd with the encoded inheritance; the caller closes it."""
    fd = os.memfd_create("shardd-inheritance", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    data = msgspec.msgpack.encode(inheritance)
    if os.write(fd, data) != len(data):
        raise OSError("short write to a memfd")
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def read_inheritance(fd: int, kind: type[Inheritance]) -> Inheritance:
    """Reads and closes it. Raises msgspec.DecodeError or OSError."""
    try:
        data = os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)
    return msgspec.msgpack.decode(data, type=kind)
