"""The kernel objects that outlive a worker: made once by the supervisor, inherited by every worker of every shard."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from shardd.config.keys import POOL_BYTES_PER_SHARD_MIN
from shardd.config.proxies import Proxies
from shardd.config.units import format_size
from shardd.server.address_lock import AddressLock
from shardd.server.errors import StartupError
from shardd.server.introductions import Introductions, make_private_listeners
from shardd.server.unix_listener import UnixListener
from shardd.server.websocket_listeners import WebSocketListeners

_HANDOVER_BUFFER_BYTES: Final = 8 << 20
_MIB: Final = 1 << 20
FILES_RESERVE: Final = 1024
"""Descriptors that a process wants for anything but connections."""
INTRODUCTIONS_MAX: Final = 1024  # sockets that are no connections yet (native/src/net/introductions.h)


class SharedResources(msgspec.Struct):
    """Descriptors by shard; `pool_bytes` is the share of one shard. `listeners[i]` is None once shard i is given up."""

    shards: int
    directory_lock_fd: int
    address: str
    address_lock: AddressLock
    listeners: list[socket.socket | None]
    shared_fd: int
    pool_fds: list[int]
    pool_bytes: int
    doorbell_fds: list[int]
    handover_receive: list[socket.socket]
    handover_send: list[socket.socket]
    introductions: Introductions
    unix_listener: UnixListener | None = None
    websocket: WebSocketListeners | None = None

    def close_unix_listener(self) -> None:
        """Also the name that clients know."""
        if self.unix_listener is not None:
            self.unix_listener.close()
            self.unix_listener = None

    def close_listener(self, shard: int) -> None:
        """Later connections go to the other shards; those that wait here are reset."""
        listener = self.listeners[shard]
        if listener is not None:
            listener.close()
            self.listeners[shard] = None
        if self.websocket is not None:
            self.websocket.close_one(shard)

    def close(self) -> None:
        for shard in range(self.shards):
            self.close_listener(shard)
        self.close_unix_listener()
        if self.websocket is not None:
            self.websocket.close()
        for pair_end in (*self.handover_receive, *self.handover_send):
            pair_end.close()
        self.introductions.close()
        self.address_lock.close()
        # the directory's lock last: nobody else may start while anything of ours is open
        for fd in (self.shared_fd, *self.pool_fds, *self.doorbell_fds, self.directory_lock_fd):
            os.close(fd)


def pool_share_bytes(pool_size_bytes: int, shards: int) -> int:
    """Share of one shard, whole MiB. Raises StartupError when it is too small."""
    share = pool_size_bytes // shards // _MIB * _MIB
    if share < POOL_BYTES_PER_SHARD_MIN:
        raise StartupError(
            f"system.memory_pool.size: {format_size(pool_size_bytes)} for {shards} shards is too small; "
            f"{format_size(POOL_BYTES_PER_SHARD_MIN * shards)} at least"
        )
    return share


def descriptors_wanted(connections_max: int, proxies: Proxies) -> int:
    """Open files that let every connection be accepted, also beside sockets of proxies that send nothing."""
    introductions = INTRODUCTIONS_MAX if proxies.networks and (proxies.tcp or proxies.websocket) else 0
    return connections_max + introductions + FILES_RESERVE


def raise_descriptor_limit() -> int:
    """Raises the soft limit of open files to the hard one; returns it. Workers inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def make_resources(
    *,
    shards: int,
    pool_bytes: int,
    directory_lock_fd: int,
    address: str,
    address_lock: AddressLock,
    listeners: list[socket.socket],
    data_directory: Path,
    doors: Sequence[str] = (),
    unix_listener: UnixListener | None = None,
    websocket: WebSocketListeners | None = None,
    clock_jump_max_us: int = 0,
) -> SharedResources:
    """`doors`: their names. Takes over the locks and the sockets. Raises OSError."""
    from shardd.engine import _native  # the supervisor alone of this package can be imported without the engine
    from shardd.maintenance import clock_memory

    shared_fd = os.memfd_create("shardd-shared", os.MFD_CLOEXEC)
    _native.shared_region_format(shared_fd, shards)
    _native.shared_clock_begin(shared_fd, clock_jump_max_us, *clock_memory.recalled(data_directory))
    pairs = [_handover_pair() for _ in range(shards)]
    return SharedResources(
        shards=shards,
        directory_lock_fd=directory_lock_fd,
        address=address,
        address_lock=address_lock,
        listeners=list(listeners),
        shared_fd=shared_fd,
        pool_fds=[os.memfd_create(f"shardd-pool-{shard}", os.MFD_CLOEXEC) for shard in range(shards)],
        pool_bytes=pool_bytes,
        doorbell_fds=[os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(shards)],
        handover_receive=[receive for receive, _ in pairs],
        handover_send=[send for _, send in pairs],
        introductions=_introductions(data_directory, shards, doors),
        unix_listener=unix_listener,
        websocket=websocket,
    )


def _introductions(data_directory: Path, shards: int, doors: Sequence[str]) -> Introductions:
    listeners = make_private_listeners(data_directory, shards * 2 if doors else shards)
    return Introductions(listeners[:shards], doors, listeners[shards:])


def _handover_pair() -> tuple[socket.socket, socket.socket]:
    receive, send = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    # a datagram carries the state of a connection; the FORCE option (33 = SO_RCVBUFFORCE, 32 = SO_SNDBUFFORCE) needs
    # CAP_NET_ADMIN, without it the kernel takes what net.core.wmem_max allows
    for end, force, plain in ((send, 32, socket.SO_SNDBUF), (receive, 33, socket.SO_RCVBUF)):
        try:
            end.setsockopt(socket.SOL_SOCKET, force, _HANDOVER_BUFFER_BYTES)
        except PermissionError:
            end.setsockopt(socket.SOL_SOCKET, plain, _HANDOVER_BUFFER_BYTES)
    return receive, send
