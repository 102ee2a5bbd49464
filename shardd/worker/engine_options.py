"""From settings and inheritance to the native engine of a worker, and to what its services know of the server."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from functools import partial

from shardd.config.schema import INDEX_MODES, Server
from shardd.engine import LISTENER_UNIX, LISTENER_WEBSOCKET, Engine
from shardd.runtime.inheritance import WorkerInheritance
from shardd.runtime.tls_material import MODES
from shardd.service.system import ServerFacts


def make_engine(inheritance: WorkerInheritance) -> Engine:
    """Raises OSError without memory or descriptors for it."""
    settings = inheritance.settings
    limits, system, saver = settings.server, settings.system, settings.message_saver
    sync_interval_ms = system.partition.sync_interval_ms
    if saver.enabled and saver.enforce_fsync:
        sync_interval_ms = min(sync_interval_ms, saver.interval_ms)
    return Engine(
        shard=inheritance.shard,
        shards=inheritance.shards,
        shared_fd=inheritance.shared_fd,
        pool_fds=inheritance.pool_fds,
        doorbell_fds=inheritance.doorbell_fds,
        handover_receive_fd=inheritance.handover_receive_fd,
        handover_send_fds=inheritance.handover_send_fds,
        pool_bytes=inheritance.pool_bytes,
        connections_max=limits.connections_max,
        connections_per_address_max=limits.connections_per_address_max or limits.most_connections,
        connections_before_login_max=limits.connections_before_login_max or limits.most_connections,
        login_timeout_ms=limits.login_timeout_ms,
        idle_timeout_ms=limits.idle_timeout_ms,
        request_timeout_ms=limits.request_timeout_ms,
        partial_frame_timeout_ms=limits.partial_frame_timeout_ms,
        slow_reader_timeout_ms=limits.slow_reader_timeout_ms,
        sync_interval_ms=sync_interval_ms,
        save_interval_ms=saver.interval_ms if saver.enabled else 0,
        save_syncs=saver.enforce_fsync,
        journal_messages_max=system.partition.messages_required_to_save,
        journal_bytes_max=system.partition.size_of_messages_required_to_save_bytes,
        consumer_offsets_max=system.partition.consumer_offsets_max,
        socket_migration=settings.tcp.socket_migration,
        dialect="auto-unnamed" if settings.legacy.anonymous_user else settings.tcp.dialect,
        pipeline_window_requests=settings.tcp.pipeline_window_requests,
        data_directory=str(system.data_directory),
        disk_reserve_bytes=system.disk_reserve_bytes,
        io_engine=inheritance.io_engine,
        websocket_frame_bytes_max=settings.websocket.max_frame_size_bytes,
        websocket_message_bytes_max=settings.websocket.max_message_size_bytes,
        websocket_accept_unmasked=settings.websocket.accept_unmasked_frames,
        websocket_origins="".join(f"{origin}\n" for origin in settings.websocket.allowed_origins),
        tls_mode=MODES[settings.tcp.tls.wanted_mode],
        websocket_tls_mode=MODES[settings.tls_of_websocket.wanted_mode],
        clients_have_names=bool(settings.tcp.tls.client_users),
        cache_indexes=INDEX_MODES.index(system.cache_indexes),
        waiting_polls_max=limits.waiting_polls_max,
        waiting_polls_per_user_max=limits.waiting_polls_per_user_max or limits.waiting_polls_max // 2,
        sample_every=settings.telemetry.traces.sample_every if settings.telemetry.enabled else 0,
        busy_poll_us=system.sharding.busy_poll_us,
        tcp_proxies=settings.proxies.lines_for(settings.proxies.tcp),
        websocket_proxies=settings.proxies.lines_for(settings.proxies.websocket),
    )


def connection_calls(
    engine: Engine, inheritance: WorkerInheritance
) -> tuple[Callable[[Server], None], Callable[[], None], Callable[[], int]]:
    """What the supervisor asks of connections: other limits for them, no more of them, and how many there are."""
    return partial(_change_limits, engine), partial(_refuse_clients, engine, inheritance), engine.connections


def _refuse_clients(engine: Engine, inheritance: WorkerInheritance) -> None:
    """Who connects from now on is refused by the kernel: other processes may hold these sockets open."""
    engine.stop_listening()
    for fd in (inheritance.listener_fd, inheritance.websocket_listener_fd, inheritance.unix_listener_fd):
        if fd >= 0:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as listener:
                listener.shutdown(socket.SHUT_RDWR)


def _change_limits(engine: Engine, limits: Server) -> None:
    engine.change_limits(
        limits.connections_per_address_max or limits.most_connections,
        limits.connections_before_login_max or limits.most_connections,
        limits.login_timeout_ms,
        limits.idle_timeout_ms,
        limits.request_timeout_ms,
        limits.partial_frame_timeout_ms,
        limits.slow_reader_timeout_ms,
    )


def listen(engine: Engine, inheritance: WorkerInheritance) -> None:
    """Clients can connect from now on, and other shards are served, which is all while the server drains."""
    if inheritance.unix_listener_fd >= 0:
        engine.listen(inheritance.unix_listener_fd, LISTENER_UNIX)
    if inheritance.websocket_listener_fd >= 0:
        engine.listen(inheritance.websocket_listener_fd, LISTENER_WEBSOCKET)
    engine.listen(inheritance.listener_fd)


def server_facts(inheritance: WorkerInheritance) -> ServerFacts:
    settings, (host, _, port) = inheritance.settings, inheritance.address.rpartition(":")
    websocket_port = int(inheritance.websocket_address.rpartition(":")[2] or 0)
    address = (host.strip("[]"), int(port))
    data = settings.system.data_directory
    http_port = int(inheritance.http_address.rpartition(":")[2] or 0)
    quic_port = int(inheritance.quic_address.rpartition(":")[2] or 0)
    return ServerFacts(inheritance.started_at_us, address, data, settings.cluster, websocket_port, http_port, quic_port)
