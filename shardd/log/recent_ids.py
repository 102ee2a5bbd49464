"""The ids of the newest messages of a partition, read from the tail of its log: what a server that compares ids has to
know before the first send (docs/adr/0070-deduplication.md)."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shardd.engine import SegmentInfo, _native
from shardd.log.record_format import HEADER_BYTES, INDEX_ENTRY_BYTES, record_bytes
from shardd.log.segment_reader import open_blocks, opened_index, opened_log
from shardd.runtime.disk_errors import losses_passed_over

ENTRY_BYTES: Final = 24  # id, timestamp
_WINDOW_BYTES: Final = 64 << 10  # what a lost sector costs at most


def recent_ids(directory: Path, segments: list[SegmentInfo], entries_max: int, not_before_us: int) -> bytes:
    """Of at most `entries_max` messages, none older than `not_before_us`, oldest first, `ENTRY_BYTES` each. They end
    with the newest message and have no gap: nothing before a message that cannot be read is looked at, be it damaged or
    on a sector that is lost. It reads these records and nothing else. OSError, of what passes by itself."""
    parts: list[bytes] = []
    left, expected = entries_max, None
    for start, log_bytes, count, _, last_timestamp, absent, _ in reversed(segments):
        if left == 0 or absent or expected not in (None, start + count):
            break
        expected = start
        if count == 0:
            continue
        if last_timestamp < not_before_us:
            break
        with losses_passed_over():
            first = _first_wanted(directory, start, count, min(left, count), not_before_us)
            found, whole = _read(directory, start, first, count, log_bytes)
            parts.append(found)
            left -= len(found) // ENTRY_BYTES
            if first == 0 and whole:
                continue
        break
    return b"".join(reversed(parts))


class _Field:
    """One of the entries of an index, by number."""

    def __init__(self, index: int, at: int, size_bytes: int) -> None:
        self._index, self._at, self._size_bytes = index, at, size_bytes

    def __getitem__(self, number: int) -> int:
        return int.from_bytes(os.pread(self._index, self._size_bytes, number * INDEX_ENTRY_BYTES + self._at), "little")

    def __len__(self) -> int:
        return os.fstat(self._index).st_size // INDEX_ENTRY_BYTES


def _first_wanted(directory: Path, start: int, count: int, most: int, not_before_us: int) -> int:
    with opened_index(directory, start) as index:
        return bisect_left(_Field(index, 8, 8), not_before_us, count - most, count)


def _position(directory: Path, start: int, number: int) -> int:
    """Where the record begins, as the index says: what is read there proves itself."""
    if number == 0:
        return 0
    with opened_index(directory, start) as index:
        return int.from_bytes(os.pread(index, 4, (number - 1) * INDEX_ENTRY_BYTES + 4), "little")


@contextmanager
def _plain(directory: Path, start: int) -> Iterator[Callable[[int, int], bytes]]:
    """`read(size, position)` of the plain log."""
    opened = open_blocks(directory, start, os.pread)
    if opened is None:
        with opened_log(directory, start) as log:
            yield lambda size_bytes, position: os.pread(log, size_bytes, position)
        return
    descriptor, blocks = opened
    try:
        yield blocks.read
    finally:
        os.close(descriptor)


def _read(directory: Path, start: int, number: int, count: int, log_bytes: int) -> tuple[bytes, bool]:
    """The entries of the records from `number` on, and whether these are all; else those behind the last one that
    cannot be read."""
    parts: list[bytes] = []
    whole, position = True, _position(directory, start, number)
    with _plain(directory, start) as read:
        while number < count:
            data = b""
            with losses_passed_over():
                data = read(max(min(_WINDOW_BYTES, log_bytes - position), 0), position)
                size = record_bytes(data[:HEADER_BYTES])
                if size > len(data):
                    data = read(size, position)
            used, entries = _native.record_ids(data, start + number)
            if used > 0:
                parts.append(entries)
                position += used
                number += len(entries) // ENTRY_BYTES
            else:
                parts.clear()
                number = number + 1 if data else _behind(directory, start, number, count, position + _WINDOW_BYTES)
                whole, position = False, _position(directory, start, number)
    return b"".join(parts), whole


def _behind(directory: Path, start: int, number: int, count: int, position: int) -> int:
    """The first record behind this one that begins there or later, as the index says."""
    with opened_index(directory, start) as index:
        return min(count, bisect_left(_Field(index, 4, 4), position, number, count) + 1)
