"""What is really in a log: the runs of valid records and, between them, the ranges of offsets that are damaged.

A whole segment is read. Behind a record that fails its check the survey goes on where a record is proven to begin
(borders.py): bytes that look like a record may be those of a payload. What lies up to there is damaged, but for the
records to which the lengths in between lead without a doubt. Behind the last proven border it ends.

The index is written exactly, in place: it is the index of the same records, so whoever reads it meanwhile finds either
what was there or what is right. Entries of damaged offsets end where the last of them ends, which is a border, and
carry the timestamp of the next valid record, so that entry k stays at 16 * k.

The log itself is never changed: backups share it by hard links.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from shardd.engine.record_faults import RecordFault
from shardd.log import layout
from shardd.log.borders import GAPS_MAX, Border, Borders, borders_of
from shardd.log.damage import DamagedRange, DamageSurvey, Index
from shardd.log.manifest import Checkpoint
from shardd.log.record_format import HEADER_BYTES, INDEX_ENTRY_BYTES, timestamp_in
from shardd.log.segment_reader import opened_index, opened_log
from shardd.log.segments import Segment
from shardd.log.sparse import SparseSurveyor
from shardd.log.verified_slices import SegmentExtent, read_at, verified_slices
from shardd.runtime.throttle import Throttle

RANGES_MAX: Final = GAPS_MAX  # of one segment; what lies behind the last one counts as damaged


def survey_segment(
    directory: Path,
    start_offset: int,
    minimum_timestamp: int,
    *,
    end_offset: int | None = None,
    imported_end: int = 0,
    checkpoint: Checkpoint | None = None,
    live_bytes: int | None = None,
    write_index: bool = True,
    sparse_count: int = 0,
    throttle: Throttle | None = None,
    log: int | None = None,
) -> DamageSurvey:
    """Reads a whole segment (blocking; about a second for each GiB in memory).

    `end_offset`: where the next segment starts. `checkpoint`: what the manifest says was whole once.
    `live_bytes`: the partition is open and has this much of the log, up to
    the end offset; else the index is cut to its records. With `write_index` False nothing is changed.
    `log`: read instead of the file, in its plain form.
    `sparse_count`: it has so many records, and up to the end offset some offsets have none. OSError; with a
    `throttle` StoppedError: what is written of the index by then is right.
    """
    with ExitStack() as stack:
        log = stack.enter_context(opened_log(directory, start_offset)) if log is None else log
        path = layout.segment_index(directory, start_offset)
        descriptor = None
        if write_index or path.is_file():
            flags = os.O_RDWR | os.O_CREAT if write_index else os.O_RDONLY
            descriptor = stack.enter_context(opened_index(directory, start_offset, flags))
        index = Index(descriptor, write_index, needed=live_bytes is not None)
        file_bytes = os.fstat(log).st_size
        limit = file_bytes if live_bytes is None else min(file_bytes, live_bytes)
        pace = throttle or Throttle()
        if sparse_count and end_offset is not None:
            sparse = SegmentExtent(start_offset, limit, end_offset, imported_end, end_offset)
            return SparseSurveyor(log, index, sparse, sparse_count, minimum_timestamp, pace).run()
        bounds = SegmentExtent(start_offset, limit, end_offset, imported_end)
        known = None if checkpoint is None else (checkpoint.log_bytes, checkpoint.count)
        borders = borders_of(log, descriptor, bounds, known, live=live_bytes is not None)
        live = live_bytes is not None
        survey = _Surveyor(log, index, bounds, borders, minimum_timestamp, live=live, throttle=pace).run(file_bytes)
        index.finish(survey.segment.count, exact=live_bytes is None)
        survey.index_changed = index.changed
    return survey


def explained_by_index(
    directory: Path, start_offset: int, end_offset: int, minimum_timestamp: int, imported_end: int
) -> Segment | None:
    """A sparse segment whose manifest was lost: log and index agree on every record, and between them offsets have
    none. A client cannot write an index, and no damage makes one sparse. Behind the last record nothing is explained: a
    segment may be missing. None else. OSError."""
    path = layout.segment_index(directory, start_offset)
    count, rest = divmod(path.stat().st_size, INDEX_ENTRY_BYTES) if path.is_file() else (0, 0)
    if rest or not 0 < count < end_offset - start_offset:
        return None
    with opened_index(directory, start_offset) as index:
        end = start_offset + int.from_bytes(read_at(index, 4, (count - 1) * INDEX_ENTRY_BYTES), "little") + 1
    if not start_offset + count < end <= end_offset:
        return None
    survey = survey_segment(
        directory, start_offset, minimum_timestamp,
        end_offset=end, imported_end=imported_end, write_index=False, sparse_count=count,
    )  # fmt: skip
    return None if survey.damaged or survey.index_changed else survey.segment


class _Surveyor:
    """One pass over an open segment."""

    def __init__(
        self,
        log: int,
        index: Index,
        bounds: SegmentExtent,
        borders: Borders,
        minimum_timestamp: int,
        *,
        live: bool,
        throttle: Throttle,
    ) -> None:
        self._throttle = throttle
        self._log, self._index, self._bounds, self._borders, self._live = log, index, bounds, borders, live
        self._position, self._offset, self._minimum = 0, bounds.start_offset, minimum_timestamp
        self._first_timestamp: int | None = None
        self._damaged: list[DamagedRange] = []
        self._ahead: dict[Border, Border] = {}  # damaged records that are known before they are met: where they end
        self._gave_up = False

    def run(self, file_bytes: int) -> DamageSurvey:
        bounds = self._bounds
        while True:
            fault = self._take_run()
            if fault is RecordFault.OK or not self._skip_damage(fault):
                break
        start, end = bounds.start_offset, bounds.end_offset
        if end is not None and self._offset < end:
            self._take_tail(fault, end)
        segment = Segment(
            start, self._position, self._offset - start, self._first_timestamp or 0,
            self._minimum if self._first_timestamp is not None else 0, file_bytes, fault,
        )  # fmt: skip
        gave_up = self._gave_up or self._borders.spent
        return DamageSurvey(segment, self._damaged, index_changed=False, gave_up=gave_up)

    def _take_run(self) -> RecordFault:
        """Valid records from here on; why they end: OK at the end of all."""
        for part in verified_slices(self._log, self._position, self._offset, self._minimum, self._bounds):
            self._throttle.spend(part.size_bytes)
            if part.count:
                self._index.put(part.offset - self._bounds.start_offset, part.index)
                if self._first_timestamp is None:
                    self._first_timestamp = part.first_timestamp
                self._minimum = part.last_timestamp
            self._position, self._offset = part.end_position, part.end_offset
            if part.fault:
                return part.fault
        if self._bounds.end_offset is not None and self._offset < self._bounds.end_offset:
            return RecordFault.TRUNCATED
        return RecordFault.OK

    def _skip_damage(self, fault: RecordFault) -> bool:
        """Goes on at the next border; False when there is none before the end."""
        if len(self._damaged) == RANGES_MAX:
            self._gave_up = True
            return False
        found = self._border_behind(Border(self._position, self._offset))
        if found is None or found.offset == self._bounds.end_offset:
            return False
        header = read_at(self._log, HEADER_BYTES, found.position)
        timestamp = max(self._minimum, timestamp_in(header)) if self._borders.is_record(found, self._minimum) else 0
        relative = self._offset - self._bounds.start_offset
        self._index.put_damaged(
            relative, relative, found.offset - self._offset, found.position, timestamp or self._minimum
        )
        self._note(found.offset, found.position, fault)
        self._position, self._offset = found.position, found.offset
        return True

    def _border_behind(self, damaged: Border) -> Border | None:
        """Where to go on behind a damaged record."""
        if damaged in self._ahead:
            return self._ahead.pop(damaged)
        border = self._borders.behind(damaged, self._minimum)
        if border is None:
            return self._borders.repaired(damaged, self._minimum)
        if border.offset > damaged.offset + 1:
            self._ahead = self._borders.between(damaged, self._minimum, border) or {}
        return self._ahead.pop(damaged, border)

    def _take_tail(self, fault: RecordFault, end: int) -> None:
        """Nothing proven up to the end offset: the bytes belong to the damaged offsets, unless they are too few. An
        open partition counts these records already."""
        limit = self._bounds.limit_bytes
        self._note(end, limit, fault)
        if self._live or (end - self._offset) * HEADER_BYTES <= limit - self._position:
            relative = self._offset - self._bounds.start_offset
            self._index.put_damaged(relative, relative, end - self._offset, limit, self._minimum)
            self._position, self._offset = limit, end

    def _note(self, end: int, to_byte: int, fault: RecordFault) -> None:
        start, from_byte = self._offset, self._position
        if self._damaged and (self._damaged[-1].end, self._damaged[-1].to_byte) == (start, from_byte):
            before = self._damaged.pop()
            start, from_byte, fault = before.start, before.from_byte, before.fault
        self._damaged.append(DamagedRange(self._bounds.start_offset, start, end, from_byte, to_byte, fault))
