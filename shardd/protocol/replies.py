"""What services answer, as values, and the blocks of the classic protocol that hold them (docs/protocol/commands.md):
`encode()` gives the bytes of one. Sans-IO.

Lists are bare concatenations without a count (docs/protocol/commands.md#rules). Sizes in bytes, times in microseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import ClassVar, Final, Generic, TypeVar

import msgspec

from shardd.protocol import limits
from shardd.protocol import primitives as wire
from shardd.protocol.errors import Status
from shardd.protocol.primitives import Reader

FRAME_HEAD: Final = struct.Struct("<II")  # status, length of the payload; of a request: length, code
_STREAM: Final = struct.Struct("<IQIQQ")
_TOPIC: Final = struct.Struct("<IQIQBQBQQ")
_PARTITION: Final = struct.Struct("<IQIQQQ")
_OFFSET: Final = struct.Struct("<IQQ")
_POLLED_HEAD: Final = struct.Struct("<IQI")
_CLIENT_HEAD: Final = struct.Struct("<IIB")
_NODE_TAIL: Final = struct.Struct("<HHHHBB")
_STATS_HEAD: Final = struct.Struct("<IffQQQQQQQQIIIIQII")
_STATS_TAIL: Final = struct.Struct("<IQQ")
_MEMBERSHIP: Final = struct.Struct("<III")
GROUP_HEAD: Final = struct.Struct("<III")
_MEMBER: Final = struct.Struct("<II")

Kept = TypeVar("Kept")

TRANSPORT_TCP: Final = 1  # docs/protocol/system.md#clients
TRANSPORT_QUIC: Final = 2
TRANSPORT_HTTP: Final = 3
ROLE_LEADER: Final = 0
ROLE_FOLLOWER: Final = 1
NODE_HEALTHY: Final = 0


def frame(status: int, payload: bytes = b"") -> bytes:
    """A whole response frame (docs/protocol/framing.md#response). An error never carries a payload; ValueError
    otherwise."""
    if status != Status.OK and payload:
        raise ValueError("an error frame carries no payload")
    return FRAME_HEAD.pack(status, len(payload)) + payload


class StreamSummary(msgspec.Struct, frozen=True):
    """docs/protocol/streams.md#streams."""

    id: int
    created_at_us: int
    topics_count: int
    size_bytes: int
    messages_count: int
    name: str

    def encode(self) -> bytes:
        head = _STREAM.pack(self.id, self.created_at_us, self.topics_count, self.size_bytes, self.messages_count)
        return head + wire.text8(self.name)

    @classmethod
    def read(cls, reader: Reader) -> StreamSummary:
        """For clients, as all `read` here."""
        return cls(*(*_STREAM.unpack(reader.take(_STREAM.size)), reader.text8()))


class StreamDetails(msgspec.Struct, Generic[Kept], frozen=True):
    """A stream and what is kept of each of its topics, by id."""

    stream: StreamSummary
    topics: Sequence[Kept]


class TopicSummary(msgspec.Struct, frozen=True):
    """docs/protocol/streams.md#topics."""

    id: int
    created_at_us: int
    partitions_count: int
    message_expiry_us: int
    compression: int
    max_topic_size_bytes: int
    replication_factor: int
    size_bytes: int
    messages_count: int
    name: str

    def encode(self) -> bytes:
        head = _TOPIC.pack(
            self.id,
            self.created_at_us,
            self.partitions_count,
            self.message_expiry_us,
            self.compression,
            self.max_topic_size_bytes,
            self.replication_factor,
            self.size_bytes,
            self.messages_count,
        )
        return head + wire.text8(self.name)

    @classmethod
    def read(cls, reader: Reader) -> TopicSummary:
        return cls(*(*_TOPIC.unpack(reader.take(_TOPIC.size)), reader.text8()))


class TopicDetails(msgspec.Struct, Generic[Kept], frozen=True):
    """A topic and what is kept of each of its partitions, by id."""

    topic: TopicSummary
    partitions: Sequence[Kept]


class PartitionSummary(msgspec.Struct, frozen=True):
    """docs/protocol/streams.md#topics; 40 bytes."""

    id: int
    created_at_us: int
    segments_count: int
    current_offset: int
    size_bytes: int
    messages_count: int

    def encode(self) -> bytes:
        return _PARTITION.pack(
            self.id,
            self.created_at_us,
            self.segments_count,
            self.current_offset,
            self.size_bytes,
            self.messages_count,
        )

    @classmethod
    def read(cls, reader: Reader) -> PartitionSummary:
        return cls(*_PARTITION.unpack(reader.take(_PARTITION.size)))


def read_topic(answer: bytes) -> tuple[TopicSummary, list[PartitionSummary]] | None:
    """The answer of GET_TOPIC: the topic and its partitions by id; None when there is none."""
    reader = Reader(answer)
    if not reader.remaining:
        return None
    topic = TopicSummary.read(reader)
    return topic, [PartitionSummary.read(reader) for _ in range(topic.partitions_count)]


class GroupSummary(msgspec.Struct, frozen=True):
    """docs/protocol/groups.md#commands; 13 bytes + the name. `partitions_count` is that of the topic."""

    id: int
    partitions_count: int
    members_count: int
    name: str

    def encode(self) -> bytes:
        return GROUP_HEAD.pack(self.id, self.partitions_count, self.members_count) + wire.text8(self.name)


class GroupMemberSummary(msgspec.Struct, frozen=True):
    """docs/protocol/groups.md#commands; follows its group in the order of the members' places."""

    id: int
    partitions: Sequence[int]

    def encode(self) -> bytes:
        head = _MEMBER.pack(self.id, len(self.partitions))
        return head + struct.pack(f"<{len(self.partitions)}I", *self.partitions)


class GroupDetails(msgspec.Struct, frozen=True):
    """A group and its members in the order of their places."""

    group: GroupSummary
    members: Sequence[GroupMemberSummary]

    def encode(self) -> bytes:
        return self.group.encode() + b"".join(member.encode() for member in self.members)


class ConsumerOffset(msgspec.Struct, frozen=True):
    """docs/protocol/messages.md#offsets; 20 bytes."""

    partition: int
    current_offset: int
    stored_offset: int

    def encode(self) -> bytes:
        return _OFFSET.pack(self.partition, self.current_offset, self.stored_offset)

    @classmethod
    def read(cls, reader: Reader) -> ConsumerOffset:
        return cls(*_OFFSET.unpack(reader.take(_OFFSET.size)))


class PolledHead(msgspec.Struct, frozen=True):
    """Head of a poll answer, 16 bytes (docs/protocol/messages.md#poll); the messages follow as stored."""

    SIZE: ClassVar[int] = _POLLED_HEAD.size
    partition: int
    current_offset: int
    messages_count: int

    def encode(self) -> bytes:
        return _POLLED_HEAD.pack(self.partition, self.current_offset, self.messages_count)

    @classmethod
    def read(cls, reader: Reader) -> PolledHead:
        return cls(*_POLLED_HEAD.unpack(reader.take(_POLLED_HEAD.size)))


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


class ClusterMetadata(msgspec.Struct, frozen=True):
    """docs/protocol/system.md#get-cluster-metadata."""

    name: str
    nodes: Sequence[ClusterNode]

    def encode(self) -> bytes:
        return wire.text32(self.name) + wire.u32(len(self.nodes)) + b"".join(node.encode() for node in self.nodes)


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
        head = _STATS_HEAD.pack(
            self.process_id,
            self.cpu_usage,
            self.total_cpu_usage,
            self.memory_usage_bytes,
            self.total_memory_bytes,
            self.available_memory_bytes,
            self.run_time_us,
            self.start_time_us,
            self.read_bytes,
            self.written_bytes,
            self.messages_size_bytes,
            self.streams_count,
            self.topics_count,
            self.partitions_count,
            self.segments_count,
            self.messages_count,
            self.clients_count,
            self.consumer_groups_count,
        )
        texts = (self.hostname, self.os_name, self.os_version, self.kernel_version, self.server_version)
        cache_metrics = wire.u32(0)  # the engine reads through the page cache and has no cache of its own
        tail = _STATS_TAIL.pack(self.threads_count, self.free_disk_space_bytes, self.total_disk_space_bytes)
        return head + b"".join(map(wire.text32, texts)) + wire.u32(self.server_semver) + cache_metrics + tail
