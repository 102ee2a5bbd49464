"""The ids of the newest messages of a partition, read from the tail of its log: what a server that compares ids has to
know before the first send (docs/adr/0070-deduplication.md)."""

from __future__ import annotations

import os
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from shardd.engine import SegmentInfo, _native
from shardd.log.record_format import HEADER_BYTES, INDEX_ENTRY_BYTES, record_bytes
from shardd.log.segment_reader import open_blocks, opened_index, opened_log
from shardd.runtime.disk_errors import losses_passed_over

ENTRY_BYTES: Final = 24  # id, timestamp
_ENTRY: Final = struct.Struct("<16sQ")
_WINDOW_BYTES: Final = 64 << 10  # what a lost sector costs at most


def recent_ids(
    directory: Path,
    segments: list[SegmentInfo],
    entries_max: int,
    not_before_us: int,
    now_us: int,
    waiting: bytes = b"",
) -> bytes:
    """Of at most `entries_max` messages, none older than `not_before_us`, oldest first, `ENTRY_BYTES` each. They end
    with the newest message and have no gap: nothing before a message that cannot be read is looked at, be it damaged or
    on a sector that is lost. It reads these records and nothing else. `waiting`: the last entries of the newest index,
    which its file does not have. OSError, of what passes by itself."""
    parts: list[bytes] = []
    left, expected = entries_max, None
    for start, log_bytes, count, _, last_timestamp, absent, _, counted_us in reversed(segments):
        if left == 0 or absent or expected not in (None, start + count):
            break
        active = expected is None
        expected, own_waiting, waiting = start, waiting, b""
        if count == 0:
            continue
        # what grows has been sealed at no time; what its clock and this one have passed says when it was stored
        latest_us = 0 if active or last_timestamp <= now_us else counted_us
        if (min(last_timestamp, latest_us) if latest_us else last_timestamp) < not_before_us:
            break
        with losses_passed_over():
            index = _Index(directory, start, count, own_waiting)
            first = index.first_not_before(not_before_us, min(left, count))
            found, whole = _read(index, first, log_bytes)
            parts.append(_counted(found, latest_us, now_us) if latest_us else found)
            left -= len(found) // ENTRY_BYTES
            if first == 0 and whole:
                continue
        break
    return b"".join(reversed(parts))


def _counted(entries: bytes, latest_us: int, now_us: int) -> bytes:
    """With the time of sealing instead of times that are yet to come. They do not fall."""
    counted, newest_us = bytearray(), 0
    for id_, time_us in _ENTRY.iter_unpack(entries):
        newest_us = max(newest_us, min(time_us, latest_us) if time_us > now_us else time_us)
        counted += _ENTRY.pack(id_, newest_us)
    return bytes(counted)


class _Field:
    """One of the entries of an index, by number: those of the file, then those that wait for room."""

    def __init__(self, index: int, segment: _Index, at: int, size_bytes: int) -> None:
        self._index, self._at, self._size_bytes, self._segment = index, at, size_bytes, segment

    def __getitem__(self, number: int) -> int:
        in_file = self._segment.in_file
        if number >= in_file:
            at = (number - in_file) * INDEX_ENTRY_BYTES + self._at
            return int.from_bytes(self._segment.waiting[at : at + self._size_bytes], "little")
        return int.from_bytes(os.pread(self._index, self._size_bytes, number * INDEX_ENTRY_BYTES + self._at), "little")

    def __len__(self) -> int:
        return self._segment.records


class _Index(NamedTuple):
    """Of a segment with so many records. What it says proves itself where a record is read. All raise OSError."""

    directory: Path
    start: int
    records: int
    waiting: bytes

    @property
    def in_file(self) -> int:
        return self.records - len(self.waiting) // INDEX_ENTRY_BYTES

    def first_not_before(self, timestamp_us: int, most: int) -> int:
        """The number of the first record that is not older, of at most so many."""
        with opened_index(self.directory, self.start) as index:
            return bisect_left(_Field(index, self, 8, 8), timestamp_us, self.records - most, self.records)

    def position(self, number: int) -> int:
        """Where the record begins."""
        if number == 0:
            return 0
        with opened_index(self.directory, self.start) as index:
            return _Field(index, self, 4, 4)[number - 1]

    def first_behind(self, number: int, position: int) -> int:
        """The first record behind this one that begins there or later."""
        with opened_index(self.directory, self.start) as index:
            return min(self.records, bisect_left(_Field(index, self, 4, 4), position, number, self.records) + 1)


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


def _read(index: _Index, number: int, log_bytes: int) -> tuple[bytes, bool]:
    """The entries of the records from `number` on, and whether these are all; else those behind the last one that
    cannot be read."""
    parts: list[bytes] = []
    whole, position = True, index.position(number)
    with _plain(index.directory, index.start) as read:
        while number < index.records:
            data = b""
            with losses_passed_over():
                data = read(max(min(_WINDOW_BYTES, log_bytes - position), 0), position)
                size = record_bytes(data[:HEADER_BYTES])
                if size > len(data):
                    data = read(size, position)
            used, entries = _native.record_ids(data, index.start + number)
            if used > 0:
                parts.append(entries)
                position += used
                number += len(entries) // ENTRY_BYTES
            else:
                parts.clear()
                number = number + 1 if data else index.first_behind(number, position + _WINDOW_BYTES)
                whole, position = False, index.position(number)
    return b"".join(parts), whole
