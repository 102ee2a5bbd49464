"""From what a service returns to the payload of an answer. Answers that grow with the topics and partitions asked about
arrive here in pieces that were encoded as they were made, in slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from shardd.protocol import bounds, primitives, topic_settings
from shardd.protocol.account_replies import UserDetails
from shardd.protocol.permissions import entries_count
from shardd.protocol.positions import PositionHead
from shardd.protocol.replies import PolledHead, PolledRange, StreamDetails, TopicDetails
from shardd.protocol.system_replies import ClientSummary
from shardd.protocol.topic_settings import TopicSetting
from shardd.service.bounds import TopicPartitions
from shardd.service.groups import NothingPolled
from shardd.service.messages import PolledMessages

Value = TypeVar("Value")
_ENTRIES_AT_ONCE: Final = 1000
_PIECES_AT_ONCE: Final = 10_000


class Encoded(Protocol):
    """A value that knows its block of the classic protocol."""

    def encode(self) -> bytes: ...


def nothing(value: None) -> bytes:
    """A command without an answer."""
    return b""


def archive(value: bytes) -> bytes:
    return value


def encoded(value: Encoded) -> bytes:
    return value.encode()


def optional(encode: Callable[[Value], bytes]) -> Callable[[Value | None], bytes]:
    """An empty answer stands for "there is none"."""
    return lambda value: b"" if value is None else encode(value)


def joined(blocks: Sequence[bytes]) -> bytes:
    return b"".join(blocks)


def stream(details: StreamDetails[bytes]) -> bytes:
    return details.stream.encode() + b"".join(details.topics)


def topic(details: TopicDetails[bytes]) -> bytes:
    return details.topic.encode() + b"".join(details.partitions)


def is_long(details: TopicDetails[bytes] | None) -> bool:
    """A topic with many partitions: 100,000 pieces are joined in 10 ms."""
    return details is not None and len(details.partitions) > _PIECES_AT_ONCE


def user(details: UserDetails) -> bytes:
    return details.encode_details()


def is_large(details: UserDetails | None) -> bool:
    """A user with many permissions."""
    return details is not None and entries_count(details.permissions) > _ENTRIES_AT_ONCE


def client(details: ClientSummary) -> bytes:
    return details.encode_details()


def polled(value: PolledMessages | NothingPolled) -> bytes:
    if isinstance(value, NothingPolled):
        return PolledHead(0, 0, 0).encode()
    return PolledHead(value.partition, value.current_offset, value.count).encode() + value.records


def poll_range(value: PolledMessages | NothingPolled) -> bytes:
    if isinstance(value, NothingPolled):
        return PolledRange(PolledHead(0, 0, 0), 0, 0, 0, b"").encode()
    head = PolledHead(value.partition, value.current_offset, value.count)
    return PolledRange(head, value.incarnation, value.first_offset, value.end, value.records).encode()


def position(value: PolledMessages | NothingPolled) -> bytes:
    """To a member that has nothing: the engine answers all other polls of connections."""
    if not isinstance(value, NothingPolled):
        raise TypeError("the engine answers polls that find something")
    return PositionHead().encode()


def partition_bounds(topics: list[TopicPartitions[bytes]]) -> bytes:
    parts = [primitives.u32(len(topics))]
    for each in topics:
        count = len(each.partitions)
        parts.append(bounds.encode_topic(each.stream_id, each.topic_id, each.stream, each.topic, count))
        parts += each.partitions
    return b"".join(parts)


def are_long(topics: list[TopicPartitions[bytes]]) -> bool:
    return sum(len(each.partitions) for each in topics) > _PIECES_AT_ONCE


def settings_of_topic(settings: tuple[TopicSetting, ...]) -> bytes:
    return topic_settings.encode_reply(settings)
