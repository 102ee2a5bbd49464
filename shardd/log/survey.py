"""What is really in a log: the runs of valid records and, between them, the ranges of offsets that are damaged.

A whole segment is read. Behind a record that fails its check the next valid one is looked for: where the length field
of the damaged record points, where the index does, then at every byte. What counts is a right checksum, an offset that
follows and a timestamp that does not fall; where a later record contradicts the one found (a forged record in a
payload), both are passed over.

The index is written exactly, in place: it is the index of the same records, so whoever reads it meanwhile finds either
what was there or what is right. Entries of damaged offsets share the damaged bytes evenly and carry the timestamp of
the next valid record, so that entry k stays at 16 * k.

The log itself is never changed: backups share it by hard links.
"""

from __future__ import annotations

import os
import struct
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardd.engine import _native
from shardd.log import layout
from shardd.log.segments import Fault, Segment, opened
from shardd.log.walk import HEADER_BYTES, RECORD_BYTES_MAX, Bounds, next_slice, read_at, record_bytes, walk

RANGES_MAX: Final = 256  # of one segment; what lies behind the last one counts as damaged
LOST_MAX: Final = 1 << 20  # offsets that one damaged range may have beyond those for which it has bytes
_TRIES_MAX: Final = 64  # valid records with impossible offsets that a search passes over
_ENTRY: Final = struct.Struct("<IIQ")
_GIVEN_UP: Final = 2**64 - 1
_CHUNK: Final = 4096  # entries


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Offsets `start` to `end` (exclusive) are not readable. Their bytes: `from_byte` to `to_byte` (exclusive) of the
    log that starts at `segment`; the same when there are none."""

    segment: int
    start: int
    end: int
    from_byte: int
    to_byte: int
    fault: Fault

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.end - 1} (bytes {self.from_byte} to {self.to_byte}, {self.fault.name})"


@dataclass(slots=True)
class Survey:
    """`segment.count` and `log_bytes` cover the damaged ranges up to the last valid record, and with a known end offset
    those behind it. `gave_up`: what lies behind the last range was not searched to its end."""

    segment: Segment
    damaged: list[DamagedRange]
    index_changed: bool
    gave_up: bool = False


class _Index:
    """The index file of the segment, compared and, where it differs, written."""

    def __init__(self, descriptor: int | None, writable: bool) -> None:
        self._descriptor = descriptor
        self._writable = writable
        self.changed = descriptor is None

    def entry(self, number: int) -> tuple[int, int, int] | None:
        if self._descriptor is None or number < 0:
            return None
        entry = os.pread(self._descriptor, _ENTRY.size, number * _ENTRY.size)
        return _ENTRY.unpack(entry) if len(entry) == _ENTRY.size else None

    def put(self, number: int, entries: bytes) -> None:
        if self._descriptor is None:
            return
        position = number * _ENTRY.size
        if read_at(self._descriptor, len(entries), position) == entries:
            return
        self.changed = True
        if self._writable:
            done = 0
            while done < len(entries):
                done += os.pwrite(self._descriptor, entries[done:], position + done)

    def put_damaged(self, relative: int, count: int, from_byte: int, to_byte: int, timestamp: int) -> None:
        for first in range(0, count, _CHUNK):
            entries = b"".join(
                _ENTRY.pack(relative + i, from_byte + (to_byte - from_byte) * (i + 1) // count, timestamp)
                for i in range(first, min(first + _CHUNK, count))
            )
            self.put(relative + first, entries)

    def finish(self, count: int, *, exact: bool) -> None:
        if self._descriptor is None:
            return
        if exact and os.fstat(self._descriptor).st_size != count * _ENTRY.size:
            self.changed = True
            if self._writable:
                os.ftruncate(self._descriptor, count * _ENTRY.size)
        if self.changed and self._writable:
            os.fdatasync(self._descriptor)


def survey_segment(
    directory: Path,
    start_offset: int,
    minimum_timestamp: int,
    *,
    end_offset: int | None = None,
    imported_end: int = 0,
    live_bytes: int | None = None,
    write_index: bool = True,
) -> Survey:
    """Reads a whole segment (blocking; about a second for each GiB in memory).

    `end_offset`: where the next segment starts. `live_bytes`: the partition is open and has this much of the log, up to
    the end offset; else the index is cut to its records. With `write_index` False nothing is changed. OSError.
    """
    with ExitStack() as stack:
        log = stack.enter_context(opened(layout.segment_log(directory, start_offset), os.O_RDONLY))
        path = layout.segment_index(directory, start_offset)
        descriptor = None
        if write_index or path.is_file():
            flags = os.O_RDWR | os.O_CREAT if write_index else os.O_RDONLY
            descriptor = stack.enter_context(opened(path, flags))
        index = _Index(descriptor, write_index)
        file_bytes = os.fstat(log).st_size
        limit = file_bytes if live_bytes is None else min(file_bytes, live_bytes)
        bounds = Bounds(start_offset, limit, end_offset, imported_end)
        surveyor = _Surveyor(log, index, bounds, minimum_timestamp, live=live_bytes is not None)
        survey = surveyor.run(file_bytes)
        index.finish(survey.segment.count, exact=live_bytes is None)
        survey.index_changed = index.changed
    return survey


class _Surveyor:
    """One pass over an open segment."""

    def __init__(self, log: int, index: _Index, bounds: Bounds, minimum_timestamp: int, *, live: bool) -> None:
        self._log, self._index, self._bounds, self._live = log, index, bounds, live
        self._position, self._offset, self._minimum = 0, bounds.start_offset, minimum_timestamp
        self._first_timestamp: int | None = None
        self._damaged: list[DamagedRange] = []
        self._gave_up = False

    def run(self, file_bytes: int) -> Survey:
        bounds = self._bounds
        while True:
            fault = self._take_run()
            if fault is Fault.OK or not self._skip_damage(fault):
                break
        start, end = bounds.start_offset, bounds.end_offset
        if end is not None and self._offset < end:
            self._take_tail(fault, end)
        segment = Segment(
            start, self._position, self._offset - start, self._first_timestamp or 0,
            self._minimum if self._first_timestamp is not None else 0, file_bytes, fault,
        )  # fmt: skip
        return Survey(segment, self._damaged, index_changed=False, gave_up=self._gave_up)

    def _take_run(self) -> Fault:
        """Valid records from here on; why they end: OK at the end of all."""
        for part in walk(self._log, self._position, self._offset, self._minimum, self._bounds):
            if part.count:
                self._index.put(part.offset - self._bounds.start_offset, part.index)
                if self._first_timestamp is None:
                    self._first_timestamp = part.first_timestamp
                self._minimum = part.last_timestamp
            self._position, self._offset = part.end_position, part.end_offset
            if part.fault:
                return part.fault
        if self._bounds.end_offset is not None and self._offset < self._bounds.end_offset:
            return Fault.TRUNCATED
        return Fault.OK

    def _skip_damage(self, fault: Fault) -> bool:
        """Goes on at the next valid record; False when there is none."""
        found = self._resynchronise() if len(self._damaged) < RANGES_MAX else None
        if found is None:
            self._gave_up = self._gave_up or len(self._damaged) == RANGES_MAX
            return False
        position, offset = found
        timestamp = int.from_bytes(read_at(self._log, HEADER_BYTES, position)[32:40], "little")
        self._index.put_damaged(
            self._offset - self._bounds.start_offset, offset - self._offset, self._position, position, timestamp
        )
        self._note(offset, position, fault)
        self._position, self._offset = position, offset
        return True

    def _take_tail(self, fault: Fault, end: int) -> None:
        """Nothing valid up to the end offset: the bytes belong to the damaged offsets, unless they are too few. An open
        partition counts these records already."""
        limit = self._bounds.limit_bytes
        self._note(end, limit, fault)
        if self._live or (end - self._offset) * HEADER_BYTES <= limit - self._position:
            relative = self._offset - self._bounds.start_offset
            self._index.put_damaged(relative, end - self._offset, self._position, limit, self._minimum)
            self._position, self._offset = limit, end

    def _note(self, end: int, to_byte: int, fault: Fault) -> None:
        self._damaged.append(DamagedRange(self._bounds.start_offset, self._offset, end, self._position, to_byte, fault))

    def _plausible(self, offset: int, position: int) -> bool:
        return offset - self._offset <= LOST_MAX + (position - self._position) // HEADER_BYTES

    def _minimum_at(self, offset: int) -> int:
        return 0 if offset < self._bounds.imported_end else self._minimum

    def _resynchronise(self) -> tuple[int, int] | None:
        """(position, offset) of the next valid record."""
        size = record_bytes(read_at(self._log, HEADER_BYTES, self._position))
        by_length = self._position + size if size else None
        entry = self._index.entry(self._offset - self._bounds.start_offset)
        by_index = entry[1] if entry is not None and entry[1] > self._position else None
        for position in dict.fromkeys((by_length, by_index)):
            if position is not None and self._is_record(position, self._offset + 1):
                candidate = position, self._offset + 1
                if by_length == by_index or self._contradiction(candidate)[0] is None:
                    return candidate
        found = self._search(self._position, self._offset + 1)
        while found is not None:
            against, run_end = self._contradiction(found)
            if against is None:
                return found
            found = self._search(against[0] + 1, run_end)
        return None

    def _is_record(self, position: int, offset: int) -> bool:
        if position >= self._bounds.limit_bytes or offset == self._bounds.end_offset:
            return False
        size = record_bytes(read_at(self._log, HEADER_BYTES, position))
        if not size or position + size > self._bounds.limit_bytes:
            return False
        one = Bounds(self._bounds.start_offset, position + size, offset + 1)
        return next_slice(self._log, position, offset, self._minimum_at(offset), one).count == 1

    def _search(self, position: int, at_least: int) -> tuple[int, int] | None:
        """The first valid record from a byte on that can follow."""
        bounds = self._bounds
        at_most = _GIVEN_UP if bounds.end_offset is None else bounds.end_offset - 1
        for _ in range(_TRIES_MAX):
            found = _native.find_later(
                self._log, position, at_least, self._minimum_at(at_least), at_most, bounds.limit_bytes
            )
            if found is None or found[0] == _GIVEN_UP:
                self._gave_up = self._gave_up or found is not None
                return None
            if self._plausible(found[1], found[0]):
                return found
            position = found[0] + 1
        self._gave_up = True
        return None

    def _contradiction(self, candidate: tuple[int, int]) -> tuple[tuple[int, int] | None, int]:
        """A valid record behind the run that starts there, with an offset that the run has already; the run's end. The
        record that a forged one hides begins before the longest damaged record would end."""
        position, offset = candidate
        for part in walk(self._log, position, offset, self._minimum_at(offset), self._bounds):
            position, offset = part.end_position, part.end_offset
        end_position = min(self._position + RECORD_BYTES_MAX, self._bounds.limit_bytes)
        first = self._offset + 1
        return _native.find_later(self._log, position, first, self._minimum_at(first), offset - 1, end_position), offset
