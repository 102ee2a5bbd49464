"""Answers of earlier generations (docs/protocol/legacy.md#answers): the blocks of the classic protocol with other ids,
and their older forms. Each function makes the bytes of one value."""

from __future__ import annotations

import struct
from typing import Final

from msgspec.structs import replace

from shardd.protocol import limits
from shardd.protocol import primitives as wire
from shardd.protocol.account_replies import LoggedIn, UserDetails
from shardd.protocol.legacy.generations import Generation
from shardd.protocol.legacy.permissions import shifted
from shardd.protocol.replies import (
    GROUP_HEAD,
    ConsumerOffset,
    GroupDetails,
    GroupMemberSummary,
    GroupSummary,
    PartitionSummary,
    PolledHead,
    StreamSummary,
    TopicSummary,
)
from shardd.protocol.system_replies import ClientSummary, ServerStats

_SECOND_US: Final = 1_000_000
_NEVER_S: Final = 0
_STREAM: Final = struct.Struct("<IIQQ")
_TOPIC: Final = struct.Struct("<II")
_TOPIC_TAIL: Final = struct.Struct("<QQ")
_PARTITION: Final = struct.Struct("<IIQQQ")
_OFFSET: Final = struct.Struct("<IQ")
_CLIENT: Final = struct.Struct("<IB")
_TOTAL_CPU_AT: Final = 8  # of the stats; 4 bytes that came with 0.2.6
_RUN_TIME_AT: Final = 36


def _first(generation: Generation) -> int:
    return 1 if generation.one_based else 0


def _name(generation: Generation, name: str) -> bytes:
    return wire.text8(name) if generation.has(0, 0, 50) else wire.text32(name)


def stream(generation: Generation, value: StreamSummary) -> bytes:
    number = value.id + _first(generation)
    if generation.has(0, 0, 60):
        return replace(value, id=number).encode()
    head = _STREAM.pack(number, value.topics_count, value.size_bytes, value.messages_count)
    return head + _name(generation, value.name)


def seconds(expiry_us: int) -> int:
    """An expiry in seconds: 0 is never, what is less than one is one."""
    if expiry_us == limits.UNLIMITED:
        return _NEVER_S
    return min(max(-(-expiry_us // _SECOND_US), 1), limits.U32_MAX) if expiry_us else _NEVER_S


def topic(generation: Generation, value: TopicSummary) -> bytes:
    number = value.id + _first(generation)
    if generation.has(0, 5, 0):
        return replace(value, id=number).encode()
    parts = [wire.u32(number)]
    if generation.has(0, 0, 60):
        parts.append(wire.u64(value.created_at_us))
    parts.append(wire.u32(value.partitions_count))
    if generation.has(0, 0, 50):
        parts.append(wire.u32(seconds(value.message_expiry_us)))
    if generation.has(0, 2, 18):
        parts.append(wire.u8(value.compression))
    if generation.has(0, 2, 0):
        size = 0 if value.max_topic_size_bytes == limits.UNLIMITED else value.max_topic_size_bytes
        parts += (wire.u64(size), wire.u8(value.replication_factor))
    parts.append(_TOPIC_TAIL.pack(value.size_bytes, value.messages_count))
    return b"".join(parts) + _name(generation, value.name)


def partition(generation: Generation, value: PartitionSummary) -> bytes:
    number = value.id + _first(generation)
    if generation.has(0, 0, 60):
        return replace(value, id=number).encode()
    sizes = value.current_offset, value.size_bytes, value.messages_count
    return _PARTITION.pack(number, value.segments_count, *sizes)


def group(generation: Generation, value: GroupSummary) -> bytes:
    number = value.id + _first(generation)
    if generation.has(0, 0, 90):
        return replace(value, id=number).encode()
    return GROUP_HEAD.pack(number, value.partitions_count, value.members_count)


def _member(generation: Generation, value: GroupMemberSummary) -> bytes:
    first = _first(generation)
    return replace(value, partitions=[each + first for each in value.partitions]).encode()


def group_details(generation: Generation, value: GroupDetails) -> bytes:
    return group(generation, value.group) + b"".join(_member(generation, each) for each in value.members)


def consumer_offset(generation: Generation, value: ConsumerOffset, consumer_id: int) -> bytes:
    if not generation.has(0, 0, 53):
        return _OFFSET.pack(consumer_id, value.stored_offset)
    return replace(value, partition=value.partition + _first(generation)).encode()


def polled_head(generation: Generation, value: PolledHead) -> bytes:
    if not generation.has(0, 0, 60):
        return wire.u32(value.messages_count)
    number = value.partition + _first(generation) if value.messages_count else value.partition
    return replace(value, partition=number).encode()


def client(generation: Generation, value: ClientSummary) -> bytes:
    """Entry of GET_CLIENTS."""
    if not generation.one_based:
        return value.encode()
    if generation.has(0, 0, 81):
        return replace(value, user_id=0 if value.user_id is None else value.user_id + 1).encode()
    head = _CLIENT.pack(value.client_id, value.transport)
    return head + wire.text32(value.address) + wire.u32(len(value.memberships))


def client_details(generation: Generation, value: ClientSummary) -> bytes:
    first = _first(generation)
    triples = (wire.u32(number + first) for membership in value.memberships for number in membership)
    return client(generation, value) + b"".join(triples)


def user(generation: Generation, value: UserDetails) -> bytes:
    """Entry of GET_USERS."""
    return replace(value, id=value.id + _first(generation)).encode()


def user_details(generation: Generation, value: UserDetails) -> bytes:
    first = _first(generation)
    return replace(value, id=value.id + first, permissions=shifted(value.permissions, first)).encode_details()


def logged_in(generation: Generation, value: LoggedIn) -> bytes:
    return LoggedIn(value.user_id + _first(generation)).encode()


def stats(generation: Generation, value: ServerStats) -> bytes:
    """Before 0.5.0 the run time is in seconds, before 0.2.6 one field of the head is missing, and the start is, too."""
    if not generation.has(0, 5, 0):
        value = replace(value, run_time_us=value.run_time_us // _SECOND_US)
    if generation.has(0, 2, 6):
        return value.encode()
    classic = replace(value, start_time_us=value.start_time_us // _SECOND_US).encode()
    return classic[:_TOTAL_CPU_AT] + classic[_TOTAL_CPU_AT + 4 :]
