"""Surveys of segments that have no record for some of their offsets (layout bit 8, docs/adr/0028-format-version-2.md).

As damage_survey.py, with less to go by: where an offset may have no record, neither the name of the next segment nor
the lengths of damaged records tell which offset comes next. So only the index proves where a record begins behind a
damaged one: the entry behind which it is looked for, the entry of the record found there and that record agree. What
lies between, up to there, is damaged; without such a proof all of the rest. The log itself is never changed.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

import msgspec

from shardd.engine.record_faults import RecordFault
from shardd.log.damage import DamagedRange, DamageSurvey, Index
from shardd.log.record_format import (
    HEADER_BYTES,
    INDEX_ENTRY_BYTES,
    offset_in,
    record_bytes,
    timestamp_in,
)
from shardd.log.segments import Segment
from shardd.log.verified_slices import SegmentExtent, next_slice, read_at, verified_slices
from shardd.protocol.record_layout import INDEX_ENTRY
from shardd.runtime.throttle import Throttle

_CHUNK: Final = 4096  # entries


def entry_number(index: int, start_offset: int, count: int, offset: int) -> int:
    """Which of the `count` entries is the first one at `offset` or behind it; `count`: none. OSError."""

    def relative(number: int) -> int:
        return int.from_bytes(read_at(index, 4, number * INDEX_ENTRY_BYTES), "little")

    return bisect_left(range(count), offset - start_offset, key=relative)


class _At(msgspec.Struct):
    """Where a record begins: entry, byte, offset."""

    number: int
    position: int
    offset: int


class SparseSurveyor:
    """One pass over a sealed segment with `count` records below `bounds.sparse_end`."""

    def __init__(
        self, log: int, index: Index, bounds: SegmentExtent, count: int, minimum_timestamp: int, throttle: Throttle
    ) -> None:
        self._log, self._index, self._bounds, self._count = log, index, bounds, count
        self._at = _At(0, 0, bounds.start_offset)
        self._minimum, self._throttle = minimum_timestamp, throttle
        self._first_timestamp: int | None = None
        self._damaged: list[DamagedRange] = []

    def run(self) -> DamageSurvey:
        bounds, end = self._bounds, self._bounds.sparse_end
        fault = self._take_run()
        while fault and self._skip_damage(fault):
            fault = self._take_run()
        at = self._at
        if at.number != self._count and at.offset < end:
            self._note(_At(self._count, bounds.limit_bytes, end), fault or RecordFault.TRUNCATED)
        segment = Segment(
            bounds.start_offset, bounds.limit_bytes, self._count, self._first_timestamp or 0,
            self._minimum if self._first_timestamp is not None else 0, os.fstat(self._log).st_size, fault,
            absent=end - bounds.start_offset - self._count,
        )  # fmt: skip
        self._index.finish(self._count, exact=True)
        return DamageSurvey(segment, self._damaged, index_changed=self._index.changed)

    def _take_run(self) -> RecordFault:
        """Valid records from here on; why they end: OK at the end of all."""
        at = self._at
        for part in verified_slices(self._log, at.position, at.offset, self._minimum, self._bounds):
            self._throttle.spend(part.size_bytes)
            if part.count:
                self._index.put(at.number, part.index)
                self._first_timestamp = part.first_timestamp if self._first_timestamp is None else self._first_timestamp
                self._minimum = part.last_timestamp
            at = self._at = _At(at.number + part.count, part.end_position, part.end_offset)
            if part.fault:
                return part.fault
        return RecordFault.OK

    def _skip_damage(self, fault: RecordFault) -> bool:
        """Goes on at the next record that the index proves; False when there is none."""
        at = self._at
        for number, (_, end_position, _), (relative, following_end, timestamp) in self._entries(at.number):
            found = _At(number + 1, end_position, self._bounds.start_offset + relative)
            if end_position <= at.position or found.offset - at.offset < found.number - at.number:
                continue
            header = read_at(self._log, HEADER_BYTES, end_position)
            if len(header) < HEADER_BYTES or (offset_in(header), timestamp_in(header)) != (found.offset, timestamp):
                continue
            if end_position + record_bytes(header) == following_end and self._is_record(found, following_end):
                self._fill(found, timestamp)
                self._note(found, fault)
                return True
        return False

    def _entries(self, number: int) -> Iterator[tuple[int, tuple[int, int, int], tuple[int, int, int]]]:
        """(number, entry, the one behind it), as far as the index goes."""
        while (data := self._index.read(number, min(_CHUNK, self._count - number))) and len(data) > INDEX_ENTRY_BYTES:
            self._throttle.spend(len(data))
            entries = list(INDEX_ENTRY.iter_unpack(data[: len(data) - len(data) % INDEX_ENTRY_BYTES]))
            for i in range(len(entries) - 1):
                yield number + i, entries[i], entries[i + 1]
            number += len(entries) - 1

    def _is_record(self, at: _At, end_position: int) -> bool:
        one = SegmentExtent(self._bounds.start_offset, end_position, at.offset + 1)
        minimum = 0 if at.offset < self._bounds.imported_end else self._minimum
        return next_slice(self._log, at.position, at.offset, minimum, one).count == 1

    def _fill(self, found: _At, timestamp: int) -> None:
        """Entries of damaged records ascend, too."""
        relative = self._at.offset - self._bounds.start_offset
        self._index.put_damaged(self._at.number, relative, found.number - self._at.number, found.position, timestamp)

    def _note(self, found: _At, fault: RecordFault) -> None:
        at, self._at = self._at, found
        self._damaged.append(
            DamagedRange(self._bounds.start_offset, at.offset, found.offset, at.position, found.position, fault)
        )
