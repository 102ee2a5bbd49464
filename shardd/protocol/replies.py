"""What services answer, as values, and the blocks of the classic protocol that hold them (docs/protocol/commands.md):
`encode()` gives the bytes of one. Sans-IO.

Lists are bare concatenations without a count (docs/protocol/commands.md#rules). Sizes in bytes, times in microseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import ClassVar, Final, Generic, TypeVar

import msgspec

from shardd.protocol import primitives as wire
from shardd.protocol.errors import Status
from shardd.protocol.primitives import Payload, Reader
from shardd.protocol.reply_forms import read_all

FRAME_HEAD: Final = struct.Struct("<II")  # status, length of the payload; of a request: length, code
_STREAM: Final = struct.Struct("<IQIQQ")
_TOPIC: Final = struct.Struct("<IQIQBQBQQ")
_PARTITION: Final = struct.Struct("<IQIQQQ")
_OFFSET: Final = struct.Struct("<IQQ")
_POLLED_HEAD: Final = struct.Struct("<IQI")
GROUP_HEAD: Final = struct.Struct("<III")
_MEMBER: Final = struct.Struct("<II")

Kept = TypeVar("Kept")


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

    @staticmethod
    def read(reader: Reader) -> StreamDetails[TopicSummary]:
        return StreamDetails(StreamSummary.read(reader), read_all(TopicSummary.read, reader))


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

    @staticmethod
    def read(reader: Reader) -> TopicDetails[PartitionSummary]:
        topic = TopicSummary.read(reader)
        return TopicDetails(topic, [PartitionSummary.read(reader) for _ in range(topic.partitions_count)])


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


class GroupSummary(msgspec.Struct, frozen=True):
    """docs/protocol/groups.md#commands; 13 bytes + the name. `partitions_count` is that of the topic."""

    id: int
    partitions_count: int
    members_count: int
    name: str

    def encode(self) -> bytes:
        return GROUP_HEAD.pack(self.id, self.partitions_count, self.members_count) + wire.text8(self.name)

    @classmethod
    def read(cls, reader: Reader) -> GroupSummary:
        return cls(*(*GROUP_HEAD.unpack(reader.take(GROUP_HEAD.size)), reader.text8()))


class GroupMemberSummary(msgspec.Struct, frozen=True):
    """docs/protocol/groups.md#commands; follows its group in the order of the members' places."""

    id: int
    partitions: Sequence[int]

    def encode(self) -> bytes:
        head = _MEMBER.pack(self.id, len(self.partitions))
        return head + struct.pack(f"<{len(self.partitions)}I", *self.partitions)

    @classmethod
    def read(cls, reader: Reader) -> GroupMemberSummary:
        number, count = _MEMBER.unpack(reader.take(_MEMBER.size))
        return cls(number, struct.unpack(f"<{count}I", reader.take(4 * count)))


class GroupDetails(msgspec.Struct, frozen=True):
    """A group and its members in the order of their places."""

    group: GroupSummary
    members: Sequence[GroupMemberSummary]

    def encode(self) -> bytes:
        return self.group.encode() + b"".join(member.encode() for member in self.members)

    @classmethod
    def read(cls, reader: Reader) -> GroupDetails:
        return cls(GroupSummary.read(reader), read_all(GroupMemberSummary.read, reader))


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


class PolledRange(msgspec.Struct, frozen=True):
    """Answer of POLL_RANGE, a command of doors (docs/protocol/doors.md#codes): the partition has the offsets
    [first_offset, end) of the history `incarnation`. All zeros for a member without the partition."""

    head: PolledHead
    incarnation: int
    first_offset: int
    end: int
    records: Payload

    @classmethod
    def read(cls, reader: Reader) -> PolledRange:
        return cls(PolledHead.read(reader), reader.u64(), reader.u64(), reader.u64(), reader.rest_view())

    def encode(self) -> bytes:
        offsets = wire.u64(self.incarnation) + wire.u64(self.first_offset) + wire.u64(self.end)
        return b"".join((self.head.encode(), offsets, self.records))


class PolledRecords(msgspec.Struct, frozen=True):
    """Answer of a poll. `records`: a view of the messages as they are stored."""

    head: PolledHead
    records: memoryview

    @classmethod
    def read(cls, reader: Reader) -> PolledRecords:
        return cls(PolledHead.read(reader), reader.rest_view())
