"""The server itself (docs/protocol/system.md)."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from shardd.config.schema import Cluster
from shardd.metadata import Metadata
from shardd.protocol import requests
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.replies import ROLE_FOLLOWER, ROLE_LEADER, ClientSummary, ClusterMetadata, ClusterNode, ServerStats
from shardd.runtime.bus import Bus
from shardd.runtime.channel import BusError, Senders
from shardd.runtime.usage import MachineUsage, ProcessUsage, memory_bytes
from shardd.security import Rule
from shardd.service import base
from shardd.service.identity import Identity
from shardd.service.sessions import Session, SessionTable
from shardd.service.statistics import Statistics, Sums

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


def _summary(entry: ClientEntry) -> ClientSummary:
    return ClientSummary(entry.client_id, entry.user_id, entry.address, tuple(entry.memberships))


def _entry(session: Session) -> ClientEntry:
    memberships = [
        (each.stream_id, each.topic_id, each.group_id) for each in session.memberships.values() if each.confirmed
    ]
    return ClientEntry(session.client_id, session.user_id, session.address, memberships)


def _whole_seconds_us(microseconds: int) -> int:
    return microseconds // _SECOND_US * _SECOND_US


class ServerFacts(msgspec.Struct, frozen=True):
    """What stays the same while a server runs. `tcp_address`: the one it is really bound to."""

    started_at_us: int
    tcp_address: tuple[str, int]
    data_directory: Path
    cluster: Cluster


class SystemService:
    """Answers about clients and processes; asks the other shards over the bus. Lives on the loop thread."""

    def __init__(
        self, metadata: Metadata, statistics: Statistics, bus: Bus, sessions: SessionTable, server: ServerFacts
    ) -> None:
        self._metadata = metadata
        self._statistics = statistics
        self._bus = bus
        self._sessions = sessions
        self._server = server
        self._process = ProcessUsage(os.getpid())
        self._supervisor = ProcessUsage(os.getppid())  # a worker is a child of its supervisor
        self._machine = MachineUsage()
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
        except OSError:
            return []

    async def ping(self, identity: Identity, request: requests.Empty) -> None:
        """Does nothing; needs no login."""

    async def get_me(self, identity: Identity, request: requests.Empty) -> ClientSummary:
        """100 and close when the connection has no entry (docs/protocol/sessions.md#entry)."""
        session = identity.session
        if session is None or session.removed:
            raise ShardError(Status.CLIENT_NOT_FOUND, close=True)
        return _summary(_entry(session))

    async def get_client(self, identity: Identity, request: requests.GetClient) -> ClientSummary | None:
        """41 wins over 101 (id 0) and over an unknown id (None)."""
        base.require(self._metadata.state, identity, Rule.READ_SERVER)
        if request.client_id == 0:
            raise ShardError(Status.INVALID_CLIENT_ID)
        local = self._sessions.by_client(request.client_id)
        if local is not None:
            return _summary(_entry(local))
        for entry in await self._clients():
            if entry.client_id == request.client_id:
                return _summary(entry)
        return None

    async def get_clients(self, identity: Identity, request: requests.Empty) -> list[ClientSummary]:
        """By id."""
        base.require(self._metadata.state, identity, Rule.READ_SERVER)
        entries = sorted(await self._clients(), key=lambda entry: entry.client_id)
        return [_summary(entry) for entry in entries]

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

    async def get_cluster_metadata(self, identity: Identity, request: requests.Empty) -> ClusterMetadata:
        """The nodes of the settings; clients go to the leader. Without a cluster one node, this one: they stay."""
        host, port = self._server.tcp_address
        cluster = self._server.cluster
        if not cluster.enabled:
            return ClusterMetadata("single-node", [ClusterNode("iggy-node", host, port)])
        ours, theirs = ROLE_LEADER, ROLE_FOLLOWER
        if cluster.follower:
            ours, theirs = theirs, ours
        nodes = [ClusterNode(cluster.current_name, cluster.current_ip, port, role=ours)]
        nodes += [
            ClusterNode(node.name, node.ip, node.tcp or port, node.quic, node.http, node.websocket, theirs)
            for node in cluster.others
        ]
        return ClusterMetadata(cluster.name, nodes)

    async def get_stats(self, identity: Identity, request: requests.Empty) -> ServerStats:
        base.require(self._metadata.state, identity, Rule.READ_SERVER)
        figures = [_figures_decoder.decode(answer) for answer in await self._gather(METHOD_PROCESS)]
        figures += self._supervisor_figures()
        state, sums = self._metadata.state, Sums()
        topics = [topic for stream in state.streams.values() for topic in stream.topics.values()]

        def steps() -> Iterator[None]:
            for topic in topics:
                yield from self._statistics.sum_up(topic, sums)
                yield

        await self._statistics.take(identity, steps())
        memory_total_bytes, memory_available_bytes = memory_bytes()
        disk = os.statvfs(self._server.data_directory)
        os_name, os_version = operating_system()
        now_us = time.time_ns() // 1000
        return ServerStats(
            process_id=os.getpid(),
            cpu_usage=sum(each.cpu_percent for each in figures),
            total_cpu_usage=self._machine.cpu_percent(),
            memory_usage_bytes=sum(each.memory_bytes for each in figures),
            total_memory_bytes=memory_total_bytes,
            available_memory_bytes=memory_available_bytes,
            run_time_us=_whole_seconds_us(max(now_us - self._server.started_at_us, 0)),
            start_time_us=_whole_seconds_us(self._server.started_at_us),
            read_bytes=sum(each.read_bytes for each in figures),
            written_bytes=sum(each.written_bytes for each in figures),
            messages_size_bytes=sums.size_bytes,
            streams_count=len(self._metadata.state.streams),
            topics_count=len(topics),
            partitions_count=sum(len(topic.partitions) for topic in topics),
            segments_count=sums.segments_count,
            messages_count=sums.messages_count,
            clients_count=sum(each.clients_count for each in figures),
            consumer_groups_count=sum(len(topic.groups) for topic in topics),
            hostname=socket.gethostname(),
            os_name=os_name,
            os_version=os_version,
            kernel_version=platform.release(),
            server_version=SERVER_VERSION,
            server_semver=SERVER_SEMVER,
            threads_count=sum(each.threads_count for each in figures),
            free_disk_space_bytes=disk.f_bavail * disk.f_frsize,
            total_disk_space_bytes=disk.f_blocks * disk.f_frsize,
        )


def process_figures(process: ProcessUsage, clients_count: int) -> ProcessFigures:
    """What one process uses. OSError when it is gone."""
    usage = process.read()
    return ProcessFigures(
        cpu_percent=usage.cpu_percent,
        memory_bytes=usage.memory_bytes,
        read_bytes=usage.read_bytes,
        written_bytes=usage.written_bytes,
        threads_count=usage.threads_count,
        clients_count=clients_count,
    )


def operating_system() -> tuple[str, str]:
    """(name, version) of the distribution, or of the kernel where none is described."""
    try:
        description = platform.freedesktop_os_release()
    except OSError:
        return platform.system(), platform.version()
    return description.get("NAME", platform.system()), description.get("VERSION_ID", "")
