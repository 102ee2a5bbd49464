"""A batch of an idempotent producer of which a kill has left a part in the log. Its place was written before it
(native/src/log/producers.h has the format of the file). It was never acknowledged and will be sent again, so the part
is cut off (unproven_tail.py): a batch is stored whole and once.

Only what was written in this boot of the machine says so. After a power loss a place may be older than the records
there, and the partition forgets its producers instead (docs/adr/0084-producers-over-a-power-loss.md).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final

import xxhash

from shardd.engine import WithheldRange

_MAGIC: Final = b"SHRDPROD"
_HEAD: Final = struct.Struct("<8sIIQQ16s8xQ")
_HEAD_BYTES: Final = 128
_ENTRY_HEAD_BYTES: Final = 64
_SLOT: Final = struct.Struct("<QQIIQQ16xQ")
_SLOT_FIRST: Final = struct.Struct("<QQIIQ")  # of the versions 1 and 2
_VERSION: Final = 3  # the first one with a running number and a digest in its slots
_SLOTS: Final = 40
_EMPTY: Final = 2**32 - 1  # epoch of a slot without a batch
_KEYS: Final = struct.Struct("<QQ")
_PRODUCER: Final = struct.Struct("<Q")


def unfinished_batch(content: bytes, incarnation: int, boot: bytes, end: int) -> int | None:
    """The first offset of the batch inside which a log with this end breaks off. `content`: of the file."""
    if not is_of_boot(content, incarnation, boot):
        return None
    return min(_places(content, incarnation, lambda first, stop: first < end < stop), default=None)


def is_of_boot(content: bytes, incarnation: int, wanted: bytes) -> bool:
    """Whether it was written in it."""
    if len(content) < _HEAD_BYTES:
        return False
    magic, _, entry_bytes, _, _, boot, check = _HEAD.unpack_from(content)
    return (
        magic == _MAGIC
        and entry_bytes == _entry_bytes(_slot_of(content))
        and check == _check_of(incarnation, 0, content[: _HEAD.size - 8])
        and bool(wanted)
        and boot == wanted
    )


def is_any_withheld(content: bytes, incarnation: int, withheld: Sequence[WithheldRange]) -> bool:
    """Whether a batch that has a place is among these messages, whole or in part."""
    ranges = sorted(withheld)
    starts = [each.start for each in ranges]
    stops = [0, *accumulate((each.end for each in ranges), max)]  # of those that start before: they may overlap
    return any(True for _ in _places(content, incarnation, lambda first, end: stops[bisect_left(starts, end)] > first))


def _slot_of(content: bytes) -> struct.Struct:
    version = _HEAD.unpack_from(content)[1]
    return _SLOT if version >= _VERSION else _SLOT_FIRST


def _entry_bytes(slot: struct.Struct) -> int:
    return _ENTRY_HEAD_BYTES + _SLOTS * slot.size


def _places(content: bytes, incarnation: int, wanted: Callable[[int, int], bool]) -> Iterator[int]:
    """First offsets of the batches that have a place and are wanted, by first offset and end (exclusive)."""
    if len(content) < _HEAD_BYTES:
        return
    slot = _slot_of(content)
    entry_bytes = _entry_bytes(slot)
    for entry in range(_HEAD_BYTES, len(content) - entry_bytes + 1, entry_bytes):
        (producer,) = _PRODUCER.unpack_from(content, entry)
        slots = entry + _ENTRY_HEAD_BYTES
        for at in range(slots, slots + _SLOTS * slot.size, slot.size):
            _, first, count, epoch, *_, check = slot.unpack_from(content, at)
            if epoch == _EMPTY or count == 0 or not wanted(first, first + count):
                continue
            if check == _check_of(incarnation, producer, content[at : at + slot.size - 8]):
                yield first


def _check_of(incarnation: int, producer: int, content: bytes) -> int:
    return xxhash.xxh3_64_intdigest(_KEYS.pack(incarnation, producer) + content)
