"""Checks a sealed segment that is in use, slice by slice: every record and every index entry, but what is known to be
damaged. What it brought into the page cache leaves it again, so that readers find there what they had.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from shardd.log import layout
from shardd.log.blocks import Blocks
from shardd.log.record_format import INDEX_ENTRY_BYTES
from shardd.log.segment_reader import open_blocks, open_log
from shardd.log.sparse import entry_number
from shardd.log.verified_slices import Read, SegmentExtent, next_slice, read_at, read_passing

SLICE_BYTES: Final = 64 << 10  # read and hashed in about 30 us, which a send may have to wait for


def _of_blocks(blocks: Blocks) -> Read:
    return lambda _, size_bytes, position: blocks.read(size_bytes, position)


class SegmentScrub:
    """One pass over one segment: `step` until `finished`. Blocking; used by one thread at a time.

    `count`: records. `damaged`: (start, end exclusive), ascending: known already, passed over. FileNotFoundError when
    it was deleted.
    """

    def __init__(
        self,
        directory: Path,
        bounds: SegmentExtent,
        count: int,
        minimum_timestamp: int,
        damaged: Sequence[tuple[int, int]],
    ) -> None:
        assert bounds.end_offset is not None
        self._bounds, self._end, self._count = bounds, bounds.end_offset, count
        self._minimum = minimum_timestamp
        self._damaged = [each for each in damaged if each[1] > bounds.start_offset and each[0] < self._end]
        self._position, self._offset, self._number = 0, bounds.start_offset, 0  # of the next record, and its entry
        self.finished = False
        self.contradicts = False  # a survey has to tell what is wrong
        blocks = open_blocks(directory, bounds.start_offset, read_passing)
        self._log = open_log(directory, bounds.start_offset) if blocks is None else blocks[0]
        self._read: Read = read_passing if blocks is None else _of_blocks(blocks[1])
        try:
            self._index = os.open(layout.segment_index(directory, bounds.start_offset), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._index = -1
            self.finished = self.contradicts = True
        os.posix_fadvise(self._log, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead: those pages would stay

    def close(self) -> None:
        os.close(self._log)
        if self._index >= 0:
            os.close(self._index)

    def step(self) -> int:
        """Reads on, about a slice; bytes that it has looked at. OSError."""
        if self.finished:
            return 0
        if self._damaged and self._damaged[0][0] <= self._offset:
            return self._pass_over(self._damaged.pop(0)[1])
        limit = self._damaged[0][0] if self._damaged else self._end
        bounds = replace(self._bounds, end_offset=limit)
        part = next_slice(self._log, self._position, self._offset, self._minimum, bounds, self._read, SLICE_BYTES)
        entries = read_passing(self._index, len(part.index), self._number * INDEX_ENTRY_BYTES)
        self._position, self._offset, self._number = part.end_position, part.end_offset, self._number + part.count
        if part.count:
            self._minimum = part.last_timestamp
        self.contradicts = entries != part.index or bool(part.fault) or (not part.count and self._offset < limit)
        self._finish()
        return part.size_bytes + len(entries)

    def _finish(self) -> None:
        self.finished = self.contradicts or self._offset == self._end
        if self.finished and not self.contradicts:
            self.contradicts = self._number != self._count

    def _pass_over(self, end: int) -> int:
        self._offset = min(end, self._end)
        start = self._bounds.start_offset
        self._number = self._offset - start
        if self._bounds.sparse_end:
            self._number = entry_number(self._index, start, self._count, self._offset)
        entry = read_at(self._index, INDEX_ENTRY_BYTES, (self._number - 1) * INDEX_ENTRY_BYTES)
        self._position = int.from_bytes(entry[4:8], "little") if self._number else 0
        self._finish()
        return len(entry)
