"""UNUSED_OFFSETS, an extension command (docs/extensions.md#unused-offsets)."""

from __future__ import annotations

import struct
from typing import Final

from shardd.client import command_codes, values, wire
from shardd.client.commands import Command, of
from shardd.client.wire import Identifier, Reader

_OFFSET: Final = struct.Struct("<BIQQIQB")
_GROUP: Final = 2
_HAS_MEMBERS: Final = 1
_MAY_COME_BACK: Final = 2
_NO_USER: Final = (1 << 32) - 1


def unused_offsets(
    stream: Identifier, topic: Identifier, partition: int, first: int, age_us: int, *, delete: bool
) -> Command[values.UnusedOffsets]:
    """A page of the stored offsets that were not used for `age_us`, or of what was deleted of them."""
    tail = wire.u32(partition) + wire.u32(first) + wire.u64(age_us) + wire.u8(delete)
    payload = wire.identifiers(stream, topic) + tail
    return of(command_codes.UNUSED_OFFSETS, payload, _decode, repeatable=not delete)


def _decode(answer: bytes) -> values.UnusedOffsets:
    reader = Reader(answer)
    first, count = reader.u32(), reader.u32()
    return values.UnusedOffsets(first, tuple(_offset(reader) for _ in range(count)))


def _offset(reader: Reader) -> values.UnusedOffset:
    kind, consumer, value, used_us, user, _name, members = reader.unpack(_OFFSET)
    owner = None if user == _NO_USER else user
    return values.UnusedOffset(
        kind == _GROUP, consumer, value, used_us, owner, members == _HAS_MEMBERS, members == _MAY_COME_BACK
    )
