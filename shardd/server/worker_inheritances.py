"""What each worker gets from the supervisor."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from shardd.config.schema import Settings
from shardd.runtime.channel import CONTROL_SHARD
from shardd.runtime.inheritance import WorkerInheritance
from shardd.server.first_user import FirstUser
from shardd.server.shared_resources import SharedResources
from shardd.server.tls_files import TlsKeeper


class WorkerInheritances:
    """What is the same for all workers, and for every new one of a shard. Lives in the supervisor."""

    def __init__(
        self,
        cpus: list[int],
        resources: SharedResources,
        first_user: FirstUser,
        version: str,
        io_engine: str,
        memory_nodes: list[int],
        tls: TlsKeeper,
        door_addresses: Mapping[str, str],
        access_keys: list[bytes],
    ) -> None:
        self._cpus = cpus
        self._resources = resources
        self._first_user = first_user
        self._version = version
        self._io_engine = io_engine
        self._memory_nodes = memory_nodes
        self._tls = tls
        self._door_addresses = door_addresses
        self._access_keys = access_keys
        self._started_at_us = time.time_ns() // 1000

    def of(self, shard: int, settings: Settings) -> WorkerInheritance:
        shared = self._resources
        listener = shared.listeners[shard]
        password_hash = self._first_user.password_hash() if shard == CONTROL_SHARD else ""
        needs_password = shard == CONTROL_SHARD and not password_hash
        return WorkerInheritance(
            shard=shard,
            shards=len(self._cpus),
            cpus=self._cpus,
            settings=settings,
            address=shared.address,
            control_fd=-1,
            listener_fd=-1 if listener is None else listener.fileno(),
            directory_lock_fd=shared.directory_lock_fd,
            shared_fd=shared.shared_fd,
            pool_fds=shared.pool_fds,
            pool_bytes=shared.pool_bytes,
            io_engine=self._io_engine,
            doorbell_fds=shared.doorbell_fds,
            handover_receive_fd=shared.handover_receive[shard].fileno(),
            handover_send_fds=[end.fileno() for end in shared.handover_send],
            trust=shared.introductions.inheritance(shard),
            doors=shared.introductions.inheritance_for_doors(shard),
            root_name=self._first_user.user.name,
            root_password=self._first_user.user.password if needs_password else "",
            root_password_hash=password_hash,
            started_at_us=self._started_at_us,
            supervisor_pid=os.getpid(),
            version=self._version,
            respawns=0,
            memory_nodes=self._memory_nodes,
            tls_fd=self._tls.fd,
            unix_listener_fd=-1 if shared.unix_listener is None else shared.unix_listener.listener.fileno(),
            websocket_listener_fd=-1 if shared.websocket is None else shared.websocket.fileno(shard),
            websocket_address="" if shared.websocket is None else shared.websocket.address,
            http_address=self._door_addresses.get("http.address", ""),
            quic_address=self._door_addresses.get("quic.address", ""),
            access_keys=self._access_keys,
        )
