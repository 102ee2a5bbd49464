"""What services answer about the server, its clients and its cluster, as `replies` (docs/protocol/system.md)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from shardd.protocol import limits
from shardd.protocol import primitives as wire
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Reader

_CLIENT_HEAD: Final = struct.Struct("<IIB")
_MEMBERSHIP: Final = struct.Struct("<III")
_NODE_TAIL: Final = struct.Struct("<HHHHBB")
_STATS_HEAD: Final = struct.Struct("<IffQQQQQQQQIIIIQII")
_STATS_TAIL: Final = struct.Struct("<IQQ")
_STATS_NUMBERS: Final = 18  # the fields of the head
_STATS_TEXTS: Final = 5

TRANSPORT_TCP: Final = 1  # docs/protocol/system.md#clients
TRANSPORT_QUIC: Final = 2
TRANSPORT_HTTP: Final = 3
ROLE_LEADER: Final = 0
ROLE_FOLLOWER: Final = 1
NODE_HEALTHY: Final = 0


class ClientSummary(msgspec.Struct, frozen=True):
    """docs/protocol/system.md#clients. `user_id`: None without a login. `memberships`: (stream, topic, group), in
    join order."""

    client_id: int
    user_id: int | None
    address: str
    memberships: tuple[tuple[int, int, int], ...] = ()
    transport: int = TRANSPORT_TCP

    def encode(self) -> bytes:
        """Client: entry of GET_CLIENTS, with the number of memberships only."""
        user_id = limits.NOT_LOGGED_IN if self.user_id is None else self.user_id
        head = _CLIENT_HEAD.pack(self.client_id, user_id, self.transport)
        return head + wire.text32(self.address) + wire.u32(len(self.memberships))

    def encode_details(self) -> bytes:
        """ClientDetails: answer of GET_ME and GET_CLIENT, with the memberships."""
        return self.encode() + b"".join(_MEMBERSHIP.pack(*membership) for membership in self.memberships)

    @classmethod
    def read_details(cls, reader: Reader) -> ClientSummary:
        entry = ClientEntry.read(reader)
        memberships = [_MEMBERSHIP.unpack(reader.take(_MEMBERSHIP.size)) for _ in range(entry.memberships_count)]
        return cls(entry.client_id, entry.user_id, entry.address, tuple(memberships), entry.transport)


class ClientEntry(msgspec.Struct, frozen=True):
    """The client as GET_CLIENTS tells it: `ClientSummary.encode` writes it."""

    client_id: int
    user_id: int | None
    transport: int
    address: str
    memberships_count: int

    @classmethod
    def read(cls, reader: Reader) -> ClientEntry:
        client_id, user_id, transport = _CLIENT_HEAD.unpack(reader.take(_CLIENT_HEAD.size))
        known = None if user_id == limits.NOT_LOGGED_IN else user_id
        return cls(client_id, known, transport, reader.text32(), reader.u32())


class ClusterNode(msgspec.Struct, frozen=True):
    """docs/protocol/system.md#get-cluster-metadata; a transport that is off has port 0."""

    name: str
    ip: str
    tcp_port: int
    quic_port: int = 0
    http_port: int = 0
    websocket_port: int = 0
    role: int = ROLE_LEADER
    status: int = NODE_HEALTHY

    def encode(self) -> bytes:
        ports = (self.tcp_port, self.quic_port, self.http_port, self.websocket_port)
        return wire.text32(self.name) + wire.text32(self.ip) + _NODE_TAIL.pack(*ports, self.role, self.status)

    @classmethod
    def read(cls, reader: Reader) -> ClusterNode:
        return cls(reader.text32(), reader.text32(), *_NODE_TAIL.unpack(reader.take(_NODE_TAIL.size)))


class ClusterMetadata(msgspec.Struct, frozen=True):
    """docs/protocol/system.md#get-cluster-metadata."""

    name: str
    nodes: Sequence[ClusterNode]

    def encode(self) -> bytes:
        return wire.text32(self.name) + wire.u32(len(self.nodes)) + b"".join(node.encode() for node in self.nodes)

    @classmethod
    def read(cls, reader: Reader) -> ClusterMetadata:
        return cls(reader.text32(), [ClusterNode.read(reader) for _ in range(reader.u32())])


class ServerStats(msgspec.Struct, frozen=True):
    """docs/protocol/system.md#get-stats. CPU in percent, memory and disk in bytes, times in whole seconds given as
    microseconds."""

    process_id: int
    cpu_usage: float
    total_cpu_usage: float
    memory_usage_bytes: int
    total_memory_bytes: int
    available_memory_bytes: int
    run_time_us: int
    start_time_us: int
    read_bytes: int
    written_bytes: int
    messages_size_bytes: int
    streams_count: int
    topics_count: int
    partitions_count: int
    segments_count: int
    messages_count: int
    clients_count: int
    consumer_groups_count: int
    hostname: str
    os_name: str
    os_version: str
    kernel_version: str
    server_version: str
    server_semver: int
    threads_count: int
    free_disk_space_bytes: int
    total_disk_space_bytes: int

    def encode(self) -> bytes:
        numbers = msgspec.structs.astuple(self)[:_STATS_NUMBERS]
        head = _STATS_HEAD.pack(*numbers)
        texts = (self.hostname, self.os_name, self.os_version, self.kernel_version, self.server_version)
        cache_metrics = wire.u32(0)  # the engine reads through the page cache and has no cache of its own
        tail = _STATS_TAIL.pack(self.threads_count, self.free_disk_space_bytes, self.total_disk_space_bytes)
        return head + b"".join(map(wire.text32, texts)) + wire.u32(self.server_semver) + cache_metrics + tail

    @classmethod
    def read(cls, reader: Reader) -> ServerStats:
        """`ShardError` 3 also for an answer with cache metrics, which this server does not have."""
        head = _STATS_HEAD.unpack(reader.take(_STATS_HEAD.size))
        texts = [reader.text32() for _ in range(_STATS_TEXTS)]
        semver = reader.u32()
        if reader.u32():
            raise ShardError(Status.INVALID_COMMAND, "cache metrics")
        values: tuple[Any, ...] = (*head, *texts, semver, *_STATS_TAIL.unpack(reader.take(_STATS_TAIL.size)))
        return cls(*values)
