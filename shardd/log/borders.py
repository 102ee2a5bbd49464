"""Where a record begins behind a damaged one: what proves it, and what does not.

Checksums are not keyed. Whoever sends may put what looks like records, with any offsets and timestamps, into a payload;
so bytes of a log that look like a record prove nothing about where one begins. What a client cannot write does:

- the index: an entry says where a record ends. It counts when it, the entry behind it and the record found there agree,
  or when the length in the damaged record says the same;
- a manifest's checkpoint, and the end of a segment behind which another one was begun;
- the damaged record itself: with one byte of its lengths put back its checksum fits. That checksum is over the offset
  and the time that the server gave, so no payload can be made to fit it.

Between two proven borders the lengths of damaged records may lead from one record to the next, when they lead exactly
from the one border to the other and nothing else does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import msgspec

from shardd.engine import _native
from shardd.log.record_format import HEADER_BYTES, offset_in, record_bytes, timestamp_in
from shardd.log.verified_slices import SegmentExtent, next_slice, read_at, verified_slices
from shardd.protocol.record_layout import INDEX_ENTRY, LENGTHS, LENGTHS_AT

GAPS_MAX: Final = 256  # damaged records between two borders that lengths may lead over
CANDIDATES_MAX: Final = 64  # what looks like a record in one damaged range
HASHED_BYTES_MAX: Final = 1 << 30  # in search of one wrong byte of a length, for one segment
_CHUNK: Final = 4096  # entries
_LENGTHS: Final = range(LENGTHS_AT, LENGTHS_AT + LENGTHS.size)  # bytes of a record's header
_GIVEN_UP: Final = 2**64 - 1


class Border(msgspec.Struct, frozen=True):
    """The record `offset` begins at the byte `position`, or would."""

    position: int
    offset: int


class Borders:
    """Of one segment. `index`: descriptor of its index, or None. `known`: borders that are proven otherwise. `spent`:
    the search for a wrong byte ended before all was tried."""

    def __init__(self, log: int, index: int | None, bounds: SegmentExtent, known: tuple[Border, ...]) -> None:
        self._log, self._index, self._bounds, self._known = log, index, bounds, known
        self._hashed_bytes_left = HASHED_BYTES_MAX
        self.spent = False

    def behind(self, damaged: Border, minimum: int) -> Border | None:
        """The nearest proven border behind a record that is damaged. OSError."""
        later = (each for each in self._known if each.offset > damaged.offset and each.position >= damaged.position)
        known = min(later, key=lambda each: each.offset, default=None)
        start = self._bounds.start_offset
        by_length = damaged.position + record_bytes(read_at(self._log, HEADER_BYTES, damaged.position))
        for number, entry, following in self._entries(damaged.offset - start):
            found = Border(entry[1], start + number + 1)
            if known is not None and found.offset >= known.offset:
                break
            if entry[0] != number or found.position <= damaged.position:
                continue
            first = found.offset == damaged.offset + 1 and by_length == found.position
            if self._is_agreed(found, following, minimum, by_length=first):
                return found
        return known

    def repaired(self, damaged: Border, minimum: int) -> Border | None:
        """Where the record ends if one byte of its lengths is wrong and nothing else. OSError."""
        header = read_at(self._log, HEADER_BYTES, damaged.position)
        if len(header) < HEADER_BYTES or offset_in(header) != damaged.offset:
            return None
        size, rest = record_bytes(header), self._bounds.limit_bytes - damaged.position - HEADER_BYTES
        for at in _LENGTHS:
            unit = 1 << 8 * (at % 4)
            without = HEADER_BYTES + sum(LENGTHS.unpack_from(header, LENGTHS_AT)) - header[at] * unit
            for value in range(min(256, max(0, (rest - without) // unit + 1))):
                found = Border(damaged.position + without + value * unit, damaged.offset + 1)
                if without + value * unit != size and self._seems(found) and self._fits(damaged, at, value, minimum):
                    return found
        return None

    def between(self, damaged: Border, minimum: int, end: Border) -> dict[Border, Border] | None:
        """Where every damaged record between two proven borders ends, when their lengths lead from one to the other;
        None when they do not, or when other records can be meant. OSError."""
        gaps: dict[Border, Border] = {}
        at = damaged
        while len(gaps) < GAPS_MAX:
            following = self._following(at, minimum, end)
            if following is None:
                return None
            gaps[at] = following
            at, minimum = self._run(following, minimum, end)
            if at == end:
                return None if self._is_ambiguous(gaps, damaged, end) else gaps
            if at.position >= end.position or at.offset >= end.offset:
                return None
        return None

    def is_record(self, at: Border, minimum: int) -> bool:
        """A valid record stands there. OSError."""
        if at.position >= self._bounds.limit_bytes or at.offset == self._bounds.end_offset:
            return False
        header = read_at(self._log, HEADER_BYTES, at.position)
        size = record_bytes(header)
        if not size or offset_in(header) != at.offset or at.position + size > self._bounds.limit_bytes:
            return False
        one = SegmentExtent(self._bounds.start_offset, at.position + size, at.offset + 1)
        return next_slice(self._log, at.position, at.offset, self.minimum_at(at.offset, minimum), one).count == 1

    def minimum_at(self, offset: int, minimum: int) -> int:
        """Records with timestamps below this do not count; imported ones may fall."""
        return 0 if offset < self._bounds.imported_end else minimum

    def _entries(self, number: int) -> Iterator[tuple[int, tuple[int, int, int], tuple[int, int, int] | None]]:
        """(number, entry, the one behind it), as far as the index goes."""
        if self._index is None:
            return
        while True:
            data = read_at(self._index, (_CHUNK + 1) * INDEX_ENTRY.size, number * INDEX_ENTRY.size)
            entries = list(INDEX_ENTRY.iter_unpack(data[: len(data) - len(data) % INDEX_ENTRY.size]))
            for i, entry in enumerate(entries[:_CHUNK]):
                yield number + i, entry, entries[i + 1] if i + 1 < len(entries) else None
            if len(entries) <= _CHUNK:
                return
            number += _CHUNK

    def _is_agreed(
        self, found: Border, following: tuple[int, int, int] | None, minimum: int, *, by_length: bool
    ) -> bool:
        if not by_length:
            header = read_at(self._log, HEADER_BYTES, found.position)
            if len(header) < HEADER_BYTES:
                return False
            end = found.position + record_bytes(header)
            if following != (found.offset - self._bounds.start_offset, end, timestamp_in(header)):
                return False
        return self.is_record(found, minimum)

    def _fits(self, damaged: Border, at: int, value: int, minimum: int) -> bool:
        """With this byte of its header the damaged record has a right checksum."""
        header = bytearray(read_at(self._log, HEADER_BYTES, damaged.position))
        header[at] = value
        size = record_bytes(header)
        self._hashed_bytes_left -= size
        if self._hashed_bytes_left < 0:
            self.spent = True
            return False
        data = header + read_at(self._log, max(0, size - HEADER_BYTES), damaged.position + HEADER_BYTES)
        minimum, start = self.minimum_at(damaged.offset, minimum), self._bounds.start_offset
        return _native.scan_buffer(bytes(data), damaged.offset, minimum, start, damaged.position).records == 1

    def _seems(self, at: Border) -> bool:
        if at.position + HEADER_BYTES > self._bounds.limit_bytes:
            return False
        header = read_at(self._log, HEADER_BYTES, at.position)
        return len(header) == HEADER_BYTES and offset_in(header) == at.offset

    def _following(self, at: Border, minimum: int, end: Border) -> Border | None:
        """Where the record behind a damaged one begins; not proven."""
        found = self.repaired(at, minimum)
        if found is not None:
            return found
        header = read_at(self._log, HEADER_BYTES, at.position)
        found = Border(at.position + record_bytes(header), at.offset + 1)
        if found.position > at.position and (found == end or self._seems(found)):
            return found
        missing = Border(at.position, offset_in(header))  # bytes are missing: a later record stands here
        if at.offset < missing.offset < end.offset and self.is_record(missing, minimum):
            return missing
        return None

    def _run(self, at: Border, minimum: int, end: Border) -> tuple[Border, int]:
        """The end of the valid records from there on, and the last timestamp."""
        bounds = self._bounds
        until = SegmentExtent(bounds.start_offset, end.position, end.offset, bounds.imported_end)
        for part in verified_slices(self._log, at.position, at.offset, self.minimum_at(at.offset, minimum), until):
            at = Border(part.end_position, part.end_offset)
            minimum = part.last_timestamp if part.count else minimum
        return at, minimum

    def _is_ambiguous(self, gaps: dict[Border, Border], first: Border, end: Border) -> bool:
        """Other records can be meant: some in the bytes of a damaged record lead to its end as well. Where several
        records are damaged, any in their bytes."""
        for gap, following in gaps.items():
            position = gap.position + 1
            for _ in range(CANDIDATES_MAX):
                found = _native.find_later(
                    self._log, position, first.offset + 1, 0, end.offset - 1, min(following.position, end.position)
                )
                if found is None:
                    break
                if found.position == _GIVEN_UP or len(gaps) > 1:
                    return True
                if self._run(Border(found.position, found.offset), 0, end)[0] in (following, end):
                    return True
                position = found.position + 1
            else:
                return True
        return False


def borders_of(
    log: int, index: int | None, bounds: SegmentExtent, checkpoint: tuple[int, int] | None, *, live: bool
) -> Borders:
    """`checkpoint`: (bytes, records) that were whole once. The end of the segment is a border unless its log has
    become shorter than that. OSError."""
    known = []
    whole = checkpoint is None or checkpoint[0] <= os.fstat(log).st_size
    if checkpoint is not None and checkpoint[0] <= bounds.limit_bytes:
        known.append(Border(checkpoint[0], bounds.start_offset + checkpoint[1]))
    if bounds.end_offset is not None and (whole or live):
        known.append(Border(bounds.limit_bytes, bounds.end_offset))
    return Borders(log, index, bounds, tuple(known))
