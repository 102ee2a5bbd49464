"""UNUSED_OFFSETS (0x5344_0013), an extension command: stored offsets of a partition by the time of their last use, and
their deletion. Sans-IO, both directions. Layout: docs/extensions.md#unused-offsets."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

import msgspec

from shardd.protocol import primitives as wire
from shardd.protocol.primitives import Identifier, Reader

PLACES_AT_ONCE: Final = 1024  # places of the table that one request looks at: so many entries are answered at most
NO_USER: Final = 0xFFFF_FFFF
_TAIL: Final = struct.Struct("<IIQ")
_ENTRY: Final = struct.Struct("<BIQQIQB")


class UnusedOffsets(msgspec.Struct, frozen=True):
    """`first`: 0, or what the answer before says. `age_us`: not used for so long; 0: all. `delete`: those that are
    answered go."""

    stream: Identifier
    topic: Identifier
    partition: int
    first: int
    age_us: int
    delete: bool

    @classmethod
    def read(cls, reader: Reader) -> UnusedOffsets:
        stream, topic = reader.identifier(), reader.identifier()
        partition, first, age_us = _TAIL.unpack(reader.take(_TAIL.size))
        return cls(stream, topic, partition, first, age_us, reader.flag())

    def encode(self) -> bytes:
        address = wire.identifier(self.stream) + wire.identifier(self.topic)
        return address + _TAIL.pack(self.partition, self.first, self.age_us) + wire.u8(self.delete)


class Members(IntEnum):
    """Of a group; all but NONE keep what it stored."""

    NONE = 0  # also of a consumer
    SOME = 1
    MAY_COME_BACK = 2  # the last one went lately, or the server has started lately


class UnusedOffset(msgspec.Struct, frozen=True):
    """`consumer`: number of a consumer, or id of a group. `user`: of the last store, NO_USER: it counts for none.
    `name`: hash of the consumer's name, 0: it has none."""

    kind: int
    consumer: int
    value: int
    used_us: int
    user: int
    name: int
    members: Members

    def encode(self) -> bytes:
        return _ENTRY.pack(*msgspec.structs.astuple(self))


class UnusedPage(msgspec.Struct, frozen=True):
    """`next_first`: 0 when there is no more."""

    next_first: int
    offsets: tuple[UnusedOffset, ...]

    def encode(self) -> bytes:
        return (
            wire.u32(self.next_first) + wire.u32(len(self.offsets)) + b"".join(each.encode() for each in self.offsets)
        )

    @classmethod
    def read(cls, reader: Reader) -> UnusedPage:
        first, count = reader.u32(), reader.u32()
        return cls(first, tuple(_entry(reader) for _ in range(count)))


def _entry(reader: Reader) -> UnusedOffset:
    kind, consumer, value, used_us, user, name, members = _ENTRY.unpack(reader.take(_ENTRY.size))
    return UnusedOffset(kind, consumer, value, used_us, user, name, Members(members))
