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

from shardd.config.nodes import Cluster
from shardd.metadata import Metadata
from shardd.protocol import requests
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.system_replies import (
    ROLE_FOLLOWER,
    ROLE_LEADER,
    ClientSummary,
    ClusterMetadata,
    ClusterNode,
    ServerStats,
)
from shardd.runtime.bus import Bus
from shardd.runtime.channel import BusError, Senders
from shardd.runtime.crowds import SharedRoom
from shardd.runtime.slices import Slices
from shardd.runtime.usage import MachineUsage, ProcessUsage, memory_bytes
from shardd.security import Rule
from shardd.service import base
from shardd.service.identity import Identity
from shardd.service.long_answers import ascending
from shardd.service.sessions import Session, SessionTable
from shardd.service.statistics import Statistics, Sums
from shardd.service.topics import Keep, Kept

SERVER_VERSION: Final = "0.8.0"  # the release whose protocol is spoken; clients compare it
SERVER_SEMVER: Final = 8_000  # major * 1,000,000 + minor * 1,000 + patch
METHOD_CLIENTS: Final = "clients"
METHOD_CLIENT: Final = "client"
METHOD_PROCESS: Final = "process"
QUESTIONS_MAX: Final = 8  # to all shards at a time, of a worker; of a user at most as many as are left
_SECOND_US: Final = 1_000_000
_ENTRIES_AT_ONCE: Final = 100  # in a step, and in a piece of an answer


class ClientEntry(msgspec.Struct, array_like=True, frozen=True):
    """One connection of one shard, as it travels over the bus."""

    client_id: int
    user_id: int | None
    address: str
    memberships: list[tuple[int, int, int]]  # stream, topic, group; in the order of joining
    transport: int


class ProcessFigures(msgspec.Struct, array_like=True, frozen=True):
    """What one process uses; CPU in percent since the last question, sizes in bytes."""

    cpu_percent: float
    memory_bytes: int
    read_bytes: int
    written_bytes: int
    threads_count: int
    clients_count: int


_encoder = msgspec.msgpack.Encoder()
_pieces_decoder = msgspec.msgpack.Decoder(list[bytes])
_entries_decoder = msgspec.msgpack.Decoder(list[ClientEntry])
_entry_decoder = msgspec.msgpack.Decoder(ClientEntry | None)
_id_decoder = msgspec.msgpack.Decoder(int)
_figures_decoder = msgspec.msgpack.Decoder(ProcessFigures)


def _summary(entry: ClientEntry) -> ClientSummary:
    memberships = tuple(entry.memberships)
    return ClientSummary(entry.client_id, entry.user_id, entry.address, memberships, entry.transport)


def _entry(session: Session) -> ClientEntry:
    memberships = [
        (each.stream_id, each.topic_id, each.group_id) for each in session.memberships.values() if each.confirmed
    ]
    return ClientEntry(session.client_id, session.user_id, session.address, memberships, session.transport)


def _whole_seconds_us(microseconds: int) -> int:
    return microseconds // _SECOND_US * _SECOND_US


class ServerFacts(msgspec.Struct, frozen=True):
    """What stays the same while a server runs. `tcp_address`, `websocket_port`, `http_port`, `quic_port`: those it is
    really bound to (0: it is not)."""

    started_at_us: int
    tcp_address: tuple[str, int]
    data_directory: Path
    cluster: Cluster
    websocket_port: int = 0
    http_port: int = 0
    quic_port: int = 0


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
        self._listing = Slices()
        self._asking = SharedRoom(QUESTIONS_MAX, of_addresses=False)
        self._bus.serve(METHOD_CLIENTS, Senders.ANY_SHARD, self._serve_clients)
        self._bus.serve(METHOD_CLIENT, Senders.ANY_SHARD, self._serve_client)
        self._bus.serve(METHOD_PROCESS, Senders.ANY_SHARD, self._serve_process)

    async def _serve_clients(self, sender: int, payload: bytes) -> bytes:
        """In pieces: nobody has to decode all of them in one step."""
        sessions, pieces = list(self._sessions), list[bytes]()

        def steps() -> Iterator[None]:
            for first in range(0, len(sessions), _ENTRIES_AT_ONCE):
                some = sessions[first : first + _ENTRIES_AT_ONCE]
                pieces.append(_encoder.encode([_entry(session) for session in some if not session.removed]))
                yield

        await self._listing.run(steps())
        return _encoder.encode(pieces)

    async def _serve_client(self, sender: int, payload: bytes) -> bytes:
        session = self._sessions.by_client(_id_decoder.decode(payload))
        return _encoder.encode(None if session is None else _entry(session))

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
        answers = await self._gather(identity, METHOD_CLIENT, _encoder.encode(request.client_id))
        found = [entry for entry in map(_entry_decoder.decode, answers) if entry is not None]
        return _summary(found[-1]) if found else None

    async def get_clients(
        self, identity: Identity, request: requests.Empty, keep: Keep[ClientSummary, Kept]
    ) -> list[Kept]:
        """Of all live shards, by id; a connection that moves between two answers is listed once."""
        base.require(self._metadata.state, identity, Rule.READ_SERVER)
        answers, kept = await self._gather(identity, METHOD_CLIENTS), list[Kept]()

        def steps() -> Iterator[None]:
            entries: dict[int, ClientEntry] = {}
            for answer in answers:
                for piece in _pieces_decoder.decode(answer):
                    entries |= {entry.client_id: entry for entry in _entries_decoder.decode(piece)}
                    yield
            for client_id in ascending(entries):
                if client_id is not None:
                    kept.append(keep(_summary(entries[client_id])))
                yield

        await self._statistics.take(identity, steps())
        return kept

    async def _gather(self, identity: Identity, method: str, payload: bytes = b"") -> list[bytes]:
        """The answers of all live shards, in a turn of the user; `ShardError` 11001 when one of them fails."""
        async with self._asking.place(identity.user, ""):
            try:
                return await self._bus.gather(method, payload)
            except BusError as error:
                raise ShardError(Status.SHARD_COMMUNICATION_ERROR, str(error)) from error

    async def get_cluster_metadata(self, identity: Identity, request: requests.Empty) -> ClusterMetadata:
        """The nodes of the settings; clients go to the leader. Without a cluster one node, this one: they stay."""
        host, port = self._server.tcp_address
        server = self._server
        ports = {"websocket_port": server.websocket_port, "http_port": server.http_port, "quic_port": server.quic_port}
        cluster = server.cluster
        if not cluster.enabled:
            return ClusterMetadata("single-node", [ClusterNode("iggy-node", host, port, **ports)])
        ours, theirs = ROLE_LEADER, ROLE_FOLLOWER
        if cluster.follower:
            ours, theirs = theirs, ours
        nodes = [ClusterNode(cluster.current_name, cluster.current_ip, port, **ports, role=ours)]
        nodes += [
            ClusterNode(node.name, node.ip, node.tcp or port, node.quic, node.http, node.websocket, theirs)
            for node in cluster.others
        ]
        return ClusterMetadata(cluster.name, nodes)

    async def get_stats(self, identity: Identity, request: requests.Empty) -> ServerStats:
        base.require(self._metadata.state, identity, Rule.READ_SERVER)
        figures = [_figures_decoder.decode(answer) for answer in await self._gather(identity, METHOD_PROCESS)]
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
