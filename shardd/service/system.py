"""The server itself: codes 1, 10, 12, 20, 21, 22 (docs/protocol/system.md)."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import time
from typing import Final

import msgspec
import psutil

from shardd.protocol import limits, replies, requests
from shardd.protocol.errors import ShardError, Status
from shardd.runtime.channel import BusError, Senders
from shardd.security import Rule
from shardd.service import base
from shardd.service.base import Caller
from shardd.service.context import ShardContext
from shardd.service.sessions import Session

SERVER_VERSION: Final = "0.8.0"  # the release whose protocol is spoken; clients compare it
SERVER_SEMVER: Final = 8_000  # major * 1,000,000 + minor * 1,000 + patch
METHOD_CLIENTS: Final = "clients"
METHOD_PROCESS: Final = "process"
_SECOND_US: Final = 1_000_000


class ClientEntry(msgspec.Struct, array_like=True, frozen=True):
    """One connection of one shard, as it travels over the bus."""

    client_id: int
    user_id: int | None
    address: str
    memberships: list[tuple[int, int, int]]  # stream, topic, group; in the order of joining


class ProcessFigures(msgspec.Struct, array_like=True, frozen=True):
    """What one process uses; CPU in percent since the last question, sizes in bytes."""

    cpu_percent: float
    memory_bytes: int
    read_bytes: int
    written_bytes: int
    threads_count: int
    clients_count: int


_encoder = msgspec.msgpack.Encoder()
_clients_decoder = msgspec.msgpack.Decoder(list[ClientEntry])
_figures_decoder = msgspec.msgpack.Decoder(ProcessFigures)


def _client_reply(entry: ClientEntry) -> replies.Client:
    user_id = limits.NOT_LOGGED_IN if entry.user_id is None else entry.user_id
    return replies.Client(entry.client_id, user_id, entry.address, tuple(entry.memberships))


def _entry(session: Session) -> ClientEntry:
    memberships = [
        (each.stream_id, each.topic_id, each.group_id) for each in session.memberships.values() if each.confirmed
    ]
    return ClientEntry(session.client_id, session.user_id, session.address, memberships)


def _whole_seconds_us(microseconds: int) -> int:
    return microseconds // _SECOND_US * _SECOND_US


class SystemService:
    """Answers about clients and processes; asks the other shards over the bus. Lives on the loop thread."""

    def __init__(self, context: ShardContext) -> None:
        self._bus = context.bus
        self._sessions = context.sessions
        self._process = psutil.Process()
        self._supervisor = psutil.Process(os.getppid())  # a worker is a child of its supervisor
        self._process.cpu_percent()  # the first call only starts the measurement
        self._supervisor.cpu_percent()
        psutil.cpu_percent()
        self._bus.serve(METHOD_CLIENTS, Senders.ANY_SHARD, self._serve_clients)
        self._bus.serve(METHOD_PROCESS, Senders.ANY_SHARD, self._serve_process)

    async def _serve_clients(self, sender: int, payload: bytes) -> bytes:
        return _encoder.encode([_entry(session) for session in self._sessions])

    async def _serve_process(self, sender: int, payload: bytes) -> bytes:
        return _encoder.encode(self._figures())

    def _figures(self) -> ProcessFigures:
        return process_figures(self._process, len(self._sessions))

    def _supervisor_figures(self) -> list[ProcessFigures]:
        """The supervisor's share; nothing when it has just died (the workers follow it)."""
        try:
            return [process_figures(self._supervisor, 0)]
        except psutil.Error:
            return []

    async def ping(self, context: ShardContext, caller: Caller, request: requests.Empty) -> bytes:
        return b""

    async def get_me(self, context: ShardContext, caller: Caller, request: requests.Empty) -> bytes:
        """100 and close when the connection has no entry (docs/protocol/sessions.md#entry)."""
        session = context.sessions.get(caller.connection)
        if session is None or session.removed:
            raise ShardError(Status.CLIENT_NOT_FOUND, close=True)
        return _client_reply(_entry(session)).encode_details()

    async def get_client(self, context: ShardContext, caller: Caller, request: requests.GetClient) -> bytes:
        """41 wins over 101 (id 0) and over an unknown id, which is an empty answer."""
        base.require(context, caller, Rule.READ_SERVER)
        if request.client_id == 0:
            raise ShardError(Status.INVALID_CLIENT_ID)
        local = context.sessions.by_client(request.client_id)
        if local is not None:
            return _client_reply(_entry(local)).encode_details()
        for entry in await self._clients():
            if entry.client_id == request.client_id:
                return _client_reply(entry).encode_details()
        return b""

    async def get_clients(self, context: ShardContext, caller: Caller, request: requests.Empty) -> bytes:
        base.require(context, caller, Rule.READ_SERVER)
        entries = sorted(await self._clients(), key=lambda entry: entry.client_id)
        return b"".join(_client_reply(entry).encode() for entry in entries)

    async def _clients(self) -> list[ClientEntry]:
        """The connections of all live shards; one that moves between two answers is listed once."""
        entries = [entry for answer in await self._gather(METHOD_CLIENTS) for entry in _clients_decoder.decode(answer)]
        return list({entry.client_id: entry for entry in entries}.values())

    async def _gather(self, method: str) -> list[bytes]:
        """The answers of all live shards; `ShardError` 11001 when one of them fails."""
        try:
            return await self._bus.gather(method, b"")
        except BusError as error:
            raise ShardError(Status.SHARD_COMMUNICATION_ERROR, str(error)) from error

    async def get_cluster_metadata(self, context: ShardContext, caller: Caller, request: requests.Empty) -> bytes:
        """The nodes of the settings; clients go to the leader. Without a cluster one node, this one: they stay."""
        host, port = context.tcp_address
        cluster = context.settings.cluster
        if not cluster.enabled:
            return replies.ClusterMetadata("single-node", [replies.ClusterNode("iggy-node", host, port)]).encode()
        ours, theirs = replies.ROLE_LEADER, replies.ROLE_FOLLOWER
        if cluster.follower:
            ours, theirs = theirs, ours
        nodes = [replies.ClusterNode(cluster.current_name, cluster.current_ip, port, role=ours)]
        nodes += [
            replies.ClusterNode(node.name, node.ip, node.tcp or port, node.quic, node.http, node.websocket, theirs)
            for node in cluster.others
        ]
        return replies.ClusterMetadata(cluster.name, nodes).encode()

    async def get_stats(self, context: ShardContext, caller: Caller, request: requests.Empty) -> bytes:
        base.require(context, caller, Rule.READ_SERVER)
        figures = [_figures_decoder.decode(answer) for answer in await self._gather(METHOD_PROCESS)]
        figures += self._supervisor_figures()
        streams = context.metadata.state.streams.values()
        topics = [topic for stream in streams for topic in stream.topics.values()]
        stats = await base.sums(context, caller, topics)
        memory = psutil.virtual_memory()
        disk = shutil.disk_usage(context.settings.system.data_directory)
        os_name, os_version = operating_system()
        now_us = time.time_ns() // 1000
        return replies.Stats(
            process_id=os.getpid(),
            cpu_usage=sum(each.cpu_percent for each in figures),
            total_cpu_usage=psutil.cpu_percent(),
            memory_usage_bytes=sum(each.memory_bytes for each in figures),
            total_memory_bytes=memory.total,
            available_memory_bytes=memory.available,
            run_time_us=_whole_seconds_us(max(now_us - context.started_at_us, 0)),
            start_time_us=_whole_seconds_us(context.started_at_us),
            read_bytes=sum(each.read_bytes for each in figures),
            written_bytes=sum(each.written_bytes for each in figures),
            messages_size_bytes=sum(each.size_bytes for each in stats),
            streams_count=len(context.metadata.state.streams),
            topics_count=len(topics),
            partitions_count=sum(len(topic.partitions) for topic in topics),
            segments_count=sum(each.segments_count for each in stats),
            messages_count=sum(each.messages_count for each in stats),
            clients_count=sum(each.clients_count for each in figures),
            consumer_groups_count=sum(len(topic.groups) for topic in topics),
            hostname=socket.gethostname(),
            os_name=os_name,
            os_version=os_version,
            kernel_version=platform.release(),
            server_version=SERVER_VERSION,
            server_semver=SERVER_SEMVER,
            threads_count=sum(each.threads_count for each in figures),
            free_disk_space_bytes=disk.free,
            total_disk_space_bytes=disk.total,
        ).encode()


def process_figures(process: psutil.Process, clients_count: int) -> ProcessFigures:
    """What one process uses. psutil.Error when it is gone."""
    with process.oneshot():
        disk = process.io_counters()
        return ProcessFigures(
            cpu_percent=process.cpu_percent(),
            memory_bytes=process.memory_info().rss,
            read_bytes=disk.read_bytes,
            written_bytes=disk.write_bytes,
            threads_count=process.num_threads(),
            clients_count=clients_count,
        )


def operating_system() -> tuple[str, str]:
    """(name, version) of the distribution, or of the kernel where none is described."""
    try:
        description = platform.freedesktop_os_release()
    except OSError:
        return platform.system(), platform.version()
    return description.get("NAME", platform.system()), description.get("VERSION_ID", "")
