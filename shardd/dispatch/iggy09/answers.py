"""From what a service returns to the payload of an answer, where 0.9 has another form than the classic protocol. Four
zero bytes in front of it, where they belong, are written by the core."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from shardd.protocol import iggy09
from shardd.protocol import primitives as wire
from shardd.protocol.account_replies import UserDetails
from shardd.protocol.permissions import encode_permissions
from shardd.protocol.replies import PartitionSummary, StreamDetails, StreamSummary, TopicDetails, TopicSummary
from shardd.protocol.system_replies import ServerStats

_TOPIC: Final = struct.Struct("<IQIQBQQQ")
NO_OPTIONS: Final = bytes(4)


def stream_summary(stream: StreamSummary) -> bytes:
    return stream.encode() + NO_OPTIONS


def topic_summary(topic: TopicSummary) -> bytes:
    head = _TOPIC.pack(
        topic.id,
        topic.created_at_us,
        topic.partitions_count,
        topic.message_expiry_us,
        topic.compression,
        topic.max_topic_size_bytes,
        topic.size_bytes,
        topic.messages_count,
    )
    return head + wire.text8(topic.name) + NO_OPTIONS + NO_OPTIONS


def stream(details: StreamDetails[bytes]) -> bytes:
    return stream_summary(details.stream) + b"".join(details.topics)


def topic(details: TopicDetails[bytes]) -> bytes:
    return topic_summary(details.topic) + b"".join(details.partitions)


def topics(blocks: Sequence[bytes]) -> bytes:
    return wire.u32(len(blocks)) + b"".join(blocks)


def user_summary(details: UserDetails) -> bytes:
    return details.encode() + NO_OPTIONS


def user(details: UserDetails) -> bytes:
    if details.permissions is None:
        return user_summary(details) + bytes(4)
    return user_summary(details) + wire.u8(1) + encode_permissions(details.permissions)


def created_partition(partition: PartitionSummary) -> bytes:
    """The classic protocol counts its first segment later."""
    return msgspec.structs.replace(partition, segments_count=1).encode()


def stats(value: ServerStats) -> bytes:
    version = msgspec.structs.replace(value, server_version=iggy09.SERVER_VERSION, server_semver=iggy09.SERVER_SEMVER)
    return version.encode()


def assignment(value: tuple[int, Sequence[int]]) -> bytes:
    generation, partitions = value
    return wire.u64(generation) + wire.u32(len(partitions)) + struct.pack(f"<{len(partitions)}I", *partitions)
