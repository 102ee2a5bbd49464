"""A batch of an idempotent producer of which a kill has left a part in the log. Its place was written before it
(native/src/log/producers.h has the format of the file). It was never acknowledged and will be sent again, so the part
is cut off: a batch is stored whole and once.

Only what was written in this boot of the machine says so. After a power loss a place may be older than the records
there, and the partition forgets its producers instead (docs/adr/0084-producers-over-a-power-loss.md).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import xxhash
from msgspec.structs import replace

from shardd.log import layout
from shardd.log.recovered import Recovered
from shardd.log.segments import Segment, position_of
from shardd.log.tail import cut_torn
from shardd.runtime.regular_files import read_regular

_MAGIC: Final = b"SHRDPROD"
_HEAD: Final = struct.Struct("<8sIIQQ16s8xQ")
_HEAD_BYTES: Final = 128
_ENTRY_HEAD_BYTES: Final = 64
_SLOT: Final = struct.Struct("<QQIIQ")
_SLOTS: Final = 40
_ENTRY_BYTES: Final = _ENTRY_HEAD_BYTES + _SLOTS * _SLOT.size
_EMPTY: Final = 2**32 - 1  # epoch of a slot without a batch
_KEYS: Final = struct.Struct("<QQ")
_PRODUCER: Final = struct.Struct("<Q")


def unfinished_batch(directory: Path, incarnation: int, boot: bytes, end: int) -> int | None:
    """The first offset of the batch inside which a log with this end breaks off. OSError."""
    try:
        content = read_regular(directory / layout.PRODUCERS)
    except (FileNotFoundError, ValueError):  # the engine refuses one that is too large
        return None
    if not _is_of_boot(content, incarnation, boot):
        return None
    return min(_begins_around(content, incarnation, end), default=None)


def without_unfinished_batch(
    directory: Path,
    incarnation: int,
    boot: bytes,
    segment: Segment,
    again: Callable[[], Segment],
    recovered: Recovered,
) -> Segment:
    """The active segment, whose index fits it, without such a part of a batch; what is `again` found in it then. What
    its checkpoint covers is never cut. OSError."""
    first = unfinished_batch(directory, incarnation, boot, segment.next_offset)
    if first is None or first < max(segment.start_offset, recovered.durable_end):
        return segment
    end = position_of(directory, segment, first)
    whole = replace(segment, log_bytes=end, count=first - segment.start_offset, file_bytes=segment.log_bytes)
    cut_torn(directory, whole, f"offset {first} begins a batch that was not stored whole,", recovered)
    return segment if recovered.state else again()


def _is_of_boot(content: bytes, incarnation: int, wanted: bytes) -> bool:
    if len(content) < _HEAD_BYTES:
        return False
    magic, _, entry_bytes, _, _, boot, check = _HEAD.unpack_from(content)
    return (
        magic == _MAGIC
        and entry_bytes == _ENTRY_BYTES
        and check == _check_of(incarnation, 0, content[: _HEAD.size - 8])
        and bool(wanted)
        and boot == wanted
    )


def _begins_around(content: bytes, incarnation: int, end: int) -> Iterator[int]:
    """First offsets of the batches that have a place on both sides of `end`."""
    for entry in range(_HEAD_BYTES, len(content) - _ENTRY_BYTES + 1, _ENTRY_BYTES):
        (producer,) = _PRODUCER.unpack_from(content, entry)
        slots = entry + _ENTRY_HEAD_BYTES
        for at in range(slots, slots + _SLOTS * _SLOT.size, _SLOT.size):
            _, first, count, epoch, check = _SLOT.unpack_from(content, at)
            if not first < end < first + count or epoch == _EMPTY:
                continue
            if check == _check_of(incarnation, producer, content[at : at + _SLOT.size - 8]):
                yield first


def _check_of(incarnation: int, producer: int, content: bytes) -> int:
    return xxhash.xxh3_64_intdigest(_KEYS.pack(incarnation, producer) + content)
