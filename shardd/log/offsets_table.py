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
VERSION: Final = 2
OFFSET_CONSUMER: Final = _native.OFFSET_CONSUMER
OFFSET_GROUP: Final = _native.OFFSET_GROUP
HEAD_BYTES: Final = 64
ENTRY_BYTES: Final = 128
HALF_BYTES: Final = 64
FIRST_VERSION: Final = 1  # without time, user and name; its halves have half as many bytes
FIRST_ENTRY_BYTES: Final = 64
PLACES_MAX: Final = 1 << 24
BYTES_MAX: Final = HEAD_BYTES + PLACES_MAX * ENTRY_BYTES
SPARSE_MIN: Final = 64  # places of a file that is worth to be written anew

_HEAD: Final = struct.Struct("<8sIIQ32x")
_HALF: Final = struct.Struct("<QQQQQQ8x")
_FIRST_HALF: Final = struct.Struct("<QQQ")
_CHECKSUM: Final = struct.Struct("<Q")
_KIND_SHIFT: Final = 56
_SEQUENCE_MAX: Final = 1 << 55
_U32_MAX: Final = 2**32 - 1
_NEVER_WRITTEN: Final = bytes(HALF_BYTES)


class StoredOffset(NamedTuple):
    """What a consumer or group (`kind`: OFFSET_...) has stored: the last processed offset. `used_us`: when it was last
    used, 0: not known. `owner`: incarnation of the user of the last store, 0: it counts for no user. `name`: hash of
    the consumer's name, 0: it has none."""

    kind: int
    id: int
    value: int
    used_us: int = 0
    owner: int = 0
    name: int = 0


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
    used_us: int = 0
    owner: int = 0
    name: int = 0


class Table(msgspec.Struct):
    """`offsets`: one for each consumer and group, in the order of their entries. `taken`: entries that are in use.
    `hurt`: entries with a damaged half; of those in `lost` there is no whole one."""

    head: Head
    version: int = VERSION
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
    def is_timeless(self) -> bool:
        """Some entry has no time of last use."""
        return any(not each.used_us for each in self.offsets)

    @property
    def is_sparse(self) -> bool:
        """Mostly free entries."""
        return self.places >= SPARSE_MIN and self.taken * 4 < self.places


def encode_head(incarnation: int) -> bytes:
    head = _HEAD.pack(MAGIC, VERSION, ENTRY_BYTES, incarnation)
    return head + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(head))


def encode_half(half: Half) -> bytes:
    sequence = half.sequence | half.kind << _KIND_SHIFT
    content = _HALF.pack(half.id, half.value, sequence, half.used_us, half.owner, half.name)
    return content + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(content))


def encode_table(incarnation: int, offsets: Iterable[StoredOffset]) -> bytes:
    """A whole file."""
    entries = (encode_half(Half(sequence, *each)) + _NEVER_WRITTEN for sequence, each in enumerate(offsets, 1))
    return encode_head(incarnation) + b"".join(entries)


def decode_table(data: bytes, incarnation: int | None) -> Table:
    """Of the bytes of a file; one of another version or incarnation is not read on. `incarnation` None: any. Where the
    head tells no version, entries are those of the version of which some are whole."""
    head, version = _decode_head(data, incarnation)
    if head in (Head.FOREIGN, Head.UNKNOWN):
        return Table(head)
    table, any_whole = _decode_entries(data, Table(head, version))
    if head is not Head.WHOLE and not any_whole:
        first, first_whole = _decode_entries(data, Table(head, FIRST_VERSION))
        table, any_whole = (first, True) if first_whole else (table, False)
    if head is Head.UNBORN and any_whole:
        table.head = Head.DAMAGED
    return table


def _decode_entries(data: bytes, table: Table) -> tuple[Table, bool]:
    """True: a half of some entry is whole."""
    entry_bytes = FIRST_ENTRY_BYTES if table.version == FIRST_VERSION else ENTRY_BYTES
    newest: dict[tuple[int, int], Half] = {}
    any_whole = False
    free = bytes(entry_bytes)
    for at in range(HEAD_BYTES, len(data), entry_bytes):
        entry = data[at : at + entry_bytes].ljust(entry_bytes, b"\0")
        if entry != free:
            any_whole |= _take_entry(table, entry, newest)
        table.places += 1
    table.offsets = [StoredOffset(*each[1:]) for each in newest.values()]
    return table, any_whole


def _decode_head(data: bytes, incarnation: int | None) -> tuple[Head, int]:
    """And the version of the entries."""
    head = data[:HEAD_BYTES]
    if len(head) < HEAD_BYTES or not any(head):
        return Head.UNBORN, VERSION
    magic, version, entry_bytes, found = _HEAD.unpack_from(head)
    if magic != MAGIC or _CHECKSUM.unpack_from(head, _HEAD.size)[0] != xxhash.xxh3_64_intdigest(head[: _HEAD.size]):
        return Head.DAMAGED, VERSION
    if (version, entry_bytes) not in ((VERSION, ENTRY_BYTES), (FIRST_VERSION, FIRST_ENTRY_BYTES)):
        return Head.UNKNOWN, VERSION
    return Head.WHOLE if incarnation in (None, found) else Head.FOREIGN, version


def _take_entry(table: Table, entry: bytes, newest: dict[tuple[int, int], Half]) -> bool:
    """False when no half of it is whole."""
    whole: list[Half] = []
    damaged = False
    middle = len(entry) // 2
    for half in (entry[:middle], entry[middle:]):
        found = _decode_half(half)
        if found is not None:
            whole.append(found)
        elif any(half):
            damaged = True
    if damaged:
        table.hurt.append(table.places)
    if not whole:
        table.lost.append(table.places)
        return False
    counts = max(whole, key=lambda half: half.sequence)
    table.taken += counts.kind != 0
    before = newest.get((counts.kind, counts.id))
    if counts.kind and (before is None or counts.sequence > before.sequence):
        newest[counts.kind, counts.id] = counts
    return True


def _decode_half(half: bytes) -> Half | None:
    """None for one that is damaged or was never written."""
    first = len(half) < HALF_BYTES
    identifier, value, last, *use = (_FIRST_HALF if first else _HALF).unpack_from(half)
    kind, sequence = last >> _KIND_SHIFT, last & ((1 << _KIND_SHIFT) - 1)
    known = kind <= OFFSET_GROUP and (not kind or identifier <= _U32_MAX) and 0 < sequence <= _SEQUENCE_MAX
    content = len(half) - _CHECKSUM.size
    if not known or _CHECKSUM.unpack_from(half, content)[0] != xxhash.xxh3_64_intdigest(half[:content]):
        return None
    return Half(sequence, kind, identifier, value, *use)
