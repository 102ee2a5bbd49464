"""GET_PARTITION_BOUNDS, an extension command (0x5344_0010): where the partitions of topics begin and end. Sans-IO.

Layout and statuses: docs/extensions.md#get-partition-bounds.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from shardd.protocol import primitives as wire
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Identifier, Payload, Reader
from shardd.protocol.record_layout import LAYOUT_PLAIN

TOPICS_MAX: Final = 1000
PARTITIONS_MAX: Final = 10_000  # of one request, all topics together
SEGMENTS_MAX: Final = 1_000_000  # of one reply
_LIST_SEGMENTS: Final = 1
_TELL_EPOCHS: Final = 2  # version 2
_ASK_SYNC: Final = 4  # version 3
_FOR_SENDER: Final = 8  # version 4
_PARTITION: Final = struct.Struct("<IIQQQQQQI")
_SEGMENT: Final = struct.Struct("<QQQBB")
_EPOCH: Final = struct.Struct("<IQ")


class TopicSelection(msgspec.Struct, frozen=True):
    """Partitions of one topic; () stands for all of them."""

    stream: Identifier
    topic: Identifier
    partitions: tuple[int, ...] = ()


class GetPartitionBounds(msgspec.Struct, frozen=True):
    topics: tuple[TopicSelection, ...]
    segments: bool = False
    epochs: bool = False
    sync: bool = False  # what is not on the device is to come there soon
    for_sender: bool = False  # a producer asks for the number of partitions

    @classmethod
    def read(cls, reader: Reader) -> GetPartitionBounds:
        flags, count = reader.u8(), reader.u32()
        known = _LIST_SEGMENTS | _TELL_EPOCHS | _ASK_SYNC | _FOR_SENDER
        is_mixed = flags & _FOR_SENDER and flags & (_LIST_SEGMENTS | _ASK_SYNC)
        if flags & ~known or is_mixed or not 1 <= count <= TOPICS_MAX:
            raise ShardError(Status.INVALID_FORMAT, f"flags {flags}, {count} topics")
        topics, total = [], 0
        for _ in range(count):
            stream, topic, partitions = reader.identifier(), reader.identifier(), reader.u32()
            total += partitions
            if total > PARTITIONS_MAX:
                raise ShardError(Status.TOO_MANY_PARTITIONS, f"{total} partitions and more")
            ids = struct.unpack(f"<{partitions}I", reader.take(4 * partitions))
            if len(set(ids)) != partitions:
                raise ShardError(Status.INVALID_FORMAT, "a partition twice")
            topics.append(TopicSelection(stream, topic, ids))
        asked = (bool(flags & each) for each in (_LIST_SEGMENTS, _TELL_EPOCHS, _ASK_SYNC, _FOR_SENDER))
        return cls(tuple(topics), *asked)

    def encode(self) -> bytes:
        flags = (_LIST_SEGMENTS if self.segments else 0) | (_TELL_EPOCHS if self.epochs else 0)
        flags |= (_ASK_SYNC if self.sync else 0) | (_FOR_SENDER if self.for_sender else 0)
        parts = [wire.u8(flags), wire.u32(len(self.topics))]
        for each in self.topics:
            ids = struct.pack(f"<{len(each.partitions)}I", *each.partitions)
            parts += wire.identifier(each.stream), wire.identifier(each.topic), wire.u32(len(each.partitions)), ids
        return b"".join(parts)


class SegmentBounds(msgspec.Struct, frozen=True):
    """Offsets [start, end) of one segment file; `size_bytes` of its .log."""

    start: int
    end: int
    size_bytes: int
    sealed: bool
    layout: int = LAYOUT_PLAIN


class PartitionBounds(msgspec.Struct, frozen=True):
    """Offsets [first, end) can be polled, those below `durable_end` have reached the device. `epoch` of the history,
    which holds from `epoch_from` on: both 0 on one server."""

    id: int
    state: int
    incarnation: int
    first: int
    end: int
    durable_end: int
    size_bytes: int
    messages_count: int
    segments: tuple[SegmentBounds, ...] = ()
    epoch: int = 0
    epoch_from: int = 0

    def encode(self) -> bytes:
        numbers = (self.id, self.state, self.incarnation, self.first, self.end, self.durable_end)
        head = _PARTITION.pack(*numbers, self.size_bytes, self.messages_count, len(self.segments))
        return head + b"".join(_SEGMENT.pack(s.start, s.end, s.size_bytes, s.sealed, s.layout) for s in self.segments)

    def encode_with_epoch(self) -> bytes:
        return self.encode() + _EPOCH.pack(self.epoch, self.epoch_from)


class TopicBounds(msgspec.Struct, frozen=True):
    stream_id: int
    topic_id: int
    stream: str
    topic: str
    partitions: tuple[PartitionBounds, ...]


def encode_topic(stream_id: int, topic_id: int, stream: str, topic: str, partitions_count: int) -> bytes:
    """What the partitions of a topic follow in a reply."""
    names = wire.text8(stream) + wire.text8(topic)
    return wire.u32(stream_id) + wire.u32(topic_id) + names + wire.u32(partitions_count)


def decode_reply(payload: Payload, *, epochs: bool = False) -> tuple[TopicBounds, ...]:
    """The reply, for clients. `epochs`: as they were asked for. `ShardError` 3 when it is cut."""
    reader = Reader(payload)
    return tuple(_read_topic(reader, epochs) for _ in range(reader.u32()))


def _read_topic(reader: Reader, epochs: bool) -> TopicBounds:
    stream_id, topic_id, stream, topic = reader.u32(), reader.u32(), reader.text8(), reader.text8()
    partitions = tuple(_read_partition(reader, epochs) for _ in range(reader.u32()))
    return TopicBounds(stream_id, topic_id, stream, topic, partitions)


def _read_partition(reader: Reader, epochs: bool) -> PartitionBounds:
    head = _PARTITION.unpack(reader.take(_PARTITION.size))
    segments = []
    for _ in range(head[-1]):
        start, end, size_bytes, sealed, layout = _SEGMENT.unpack(reader.take(_SEGMENT.size))
        segments.append(SegmentBounds(start, end, size_bytes, bool(sealed), layout))
    number, state, incarnation, first, end, durable_end, size_bytes, messages_count, _ = head
    epoch, epoch_from = _EPOCH.unpack(reader.take(_EPOCH.size)) if epochs else (0, 0)
    return PartitionBounds(
        number,
        state,
        incarnation,
        first,
        end,
        durable_end,
        size_bytes,
        messages_count,
        tuple(segments),
        epoch,
        epoch_from,
    )
