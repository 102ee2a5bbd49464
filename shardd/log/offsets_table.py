"""Bytes of `consumer-offsets`: what is stored for the consumers and groups of one partition.

native/src/log/offsets_table.h has the layout and the same rules for the engine, which writes single halves in place.
Here tables are written whole (import, restore, repair) and read by tools.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
import xxhash

from shardd.engine import _native

MAGIC: Final = b"SHRDOFFS"
VERSION: Final = 1
OFFSET_CONSUMER: Final = _native.OFFSET_CONSUMER
OFFSET_GROUP: Final = _native.OFFSET_GROUP
HEAD_BYTES: Final = 64
ENTRY_BYTES: Final = 64
HALF_BYTES: Final = 32
PLACES_MAX: Final = 1 << 24
BYTES_MAX: Final = HEAD_BYTES + PLACES_MAX * ENTRY_BYTES
SPARSE_MIN: Final = 64  # places of a file that is worth to be written anew

_HEAD: Final = struct.Struct("<8sIIQ32x")
_HALF: Final = struct.Struct("<QQQ")
_CHECKSUM: Final = struct.Struct("<Q")
_KIND_SHIFT: Final = 56
_SEQUENCE_MAX: Final = 1 << 55
_U32_MAX: Final = 2**32 - 1
_NEVER_WRITTEN: Final = bytes(HALF_BYTES)
_FREE: Final = bytes(ENTRY_BYTES)


class StoredOffset(NamedTuple):
    """What a consumer or group (`kind`: OFFSET_...) has stored: the last processed offset."""

    kind: int
    id: int
    value: int


class Head(enum.Enum):
    """`offsets_head` of the engine."""

    WHOLE = 0
    UNBORN = 1  # nothing in the file was ever promised
    DAMAGED = 2  # its entries count all the same
    FOREIGN = 3  # of another incarnation
    UNKNOWN = 4  # of a later version


class Half(NamedTuple):
    """A whole one. `kind` 0: the entry is free since then."""

    sequence: int
    kind: int
    id: int
    value: int


class Table(msgspec.Struct):
    """`offsets`: one for each consumer and group, in the order of their entries. `taken`: entries that are in use.
    `hurt`: entries with a damaged half; of those in `lost` there is no whole one."""

    head: Head
    offsets: list[StoredOffset] = msgspec.field(default_factory=list)
    places: int = 0
    taken: int = 0
    hurt: list[int] = msgspec.field(default_factory=list)
    lost: list[int] = msgspec.field(default_factory=list)

    @property
    def counts(self) -> bool:
        """Whether it says what is stored; otherwise the partition has no such file yet."""
        return self.head in (Head.WHOLE, Head.DAMAGED)

    @property
    def is_whole(self) -> bool:
        return self.head is Head.WHOLE and not self.hurt

    @property
    def is_sparse(self) -> bool:
        """Mostly free entries."""
        return self.places >= SPARSE_MIN and self.taken * 4 < self.places


def encode_head(incarnation: int) -> bytes:
    head = _HEAD.pack(MAGIC, VERSION, ENTRY_BYTES, incarnation)
    return head + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(head))


def encode_half(half: Half) -> bytes:
    content = _HALF.pack(half.id, half.value, half.sequence | half.kind << _KIND_SHIFT)
    return content + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(content))


def encode_table(incarnation: int, offsets: Iterable[StoredOffset]) -> bytes:
    """A whole file."""
    entries = (encode_half(Half(sequence, *each)) + _NEVER_WRITTEN for sequence, each in enumerate(offsets, 1))
    return encode_head(incarnation) + b"".join(entries)


def decode_table(data: bytes, incarnation: int | None) -> Table:
    """Of the bytes of a file; one of another version or incarnation is not read on. `incarnation` None: any."""
    table = Table(_decode_head(data, incarnation))
    if table.head in (Head.FOREIGN, Head.UNKNOWN):
        return table
    newest: dict[tuple[int, int], tuple[int, int]] = {}
    any_whole = False
    for at in range(HEAD_BYTES, len(data), ENTRY_BYTES):
        entry = data[at : at + ENTRY_BYTES].ljust(ENTRY_BYTES, b"\0")
        if entry != _FREE:
            any_whole |= _take_entry(table, entry, newest)
        table.places += 1
    if table.head is Head.UNBORN and any_whole:
        table.head = Head.DAMAGED
    table.offsets = [StoredOffset(*key, value) for key, (_sequence, value) in newest.items()]
    return table


def _decode_head(data: bytes, incarnation: int | None) -> Head:
    head = data[:HEAD_BYTES]
    if len(head) < HEAD_BYTES or not any(head):
        return Head.UNBORN
    magic, version, entry_bytes, found = _HEAD.unpack_from(head)
    if magic != MAGIC or _CHECKSUM.unpack_from(head, _HEAD.size)[0] != xxhash.xxh3_64_intdigest(head[: _HEAD.size]):
        return Head.DAMAGED
    if (version, entry_bytes) != (VERSION, ENTRY_BYTES):
        return Head.UNKNOWN
    return Head.WHOLE if incarnation in (None, found) else Head.FOREIGN


def _take_entry(table: Table, entry: bytes, newest: dict[tuple[int, int], tuple[int, int]]) -> bool:
    """False when no half of it is whole."""
    whole: list[Half] = []
    damaged = False
    for half in (entry[:HALF_BYTES], entry[HALF_BYTES:]):
        found = _decode_half(half)
        if found is not None:
            whole.append(found)
        elif half != _NEVER_WRITTEN:
            damaged = True
    if damaged:
        table.hurt.append(table.places)
    if not whole:
        table.lost.append(table.places)
        return False
    counts = max(whole, key=lambda half: half.sequence)
    table.taken += counts.kind != 0
    before = newest.get((counts.kind, counts.id))
    if counts.kind and (before is None or counts.sequence > before[0]):
        newest[counts.kind, counts.id] = counts.sequence, counts.value
    return True


def _decode_half(half: bytes) -> Half | None:
    """None for one that is damaged or was never written."""
    identifier, value, last = _HALF.unpack_from(half)
    kind, sequence = last >> _KIND_SHIFT, last & ((1 << _KIND_SHIFT) - 1)
    known = kind <= OFFSET_GROUP and (not kind or identifier <= _U32_MAX) and 0 < sequence <= _SEQUENCE_MAX
    if not known or _CHECKSUM.unpack_from(half, _HALF.size)[0] != xxhash.xxh3_64_intdigest(half[: _HALF.size]):
        return None
    return Half(sequence, kind, identifier, value)
