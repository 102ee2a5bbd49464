"""What a survey says of a segment, and the index that it compares and writes (damage_survey.py, sparse.py)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from shardd.engine.record_faults import RecordFault
from shardd.log.segments import Segment
from shardd.log.verified_slices import read_at
from shardd.protocol.record_layout import INDEX_ENTRY
from shardd.runtime.disk_errors import Trouble, trouble_of

_CHUNK: Final = 4096  # entries


class DamagedRange(msgspec.Struct, frozen=True):
    """Offsets `start` to `end` (exclusive) are not readable. Their bytes: `from_byte` to `to_byte` (exclusive) of the
    log that starts at `segment`; the same when there are none."""

    segment: int
    start: int
    end: int
    from_byte: int
    to_byte: int
    fault: RecordFault

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.end - 1} (bytes {self.from_byte} to {self.to_byte}, {self.fault.name})"


class DamageSurvey(msgspec.Struct):
    """`segment.count` and `log_bytes` cover the damaged ranges up to the last valid record, and with a known end offset
    those behind it. `gave_up`: what lies behind was not searched to its end."""

    segment: Segment
    damaged: list[DamagedRange]
    index_changed: bool
    gave_up: bool = False


class Index:
    """The index file of the segment, compared and, where it differs, written."""

    def __init__(self, descriptor: int | None, writable: bool, *, needed: bool = True) -> None:
        """Where it is not `needed`, one that cannot be written is left: whoever reads by it finds that it does not fit,
        and it is written then."""
        self._descriptor = descriptor
        self._writable = writable
        self._needed = needed
        self.changed = descriptor is None

    def put(self, number: int, entries: bytes) -> None:
        if self._descriptor is None:
            return
        position = number * INDEX_ENTRY.size
        if read_at(self._descriptor, len(entries), position) == entries:
            return
        self.changed = True
        if self._writable:
            with self._left_alone():
                done = 0
                while done < len(entries):
                    done += os.pwrite(self._descriptor, entries[done:], position + done)

    def read(self, number: int, count: int) -> bytes:
        """Entries from that one on, as far as there are."""
        return (
            b""
            if self._descriptor is None
            else read_at(self._descriptor, count * INDEX_ENTRY.size, number * INDEX_ENTRY.size)
        )

    def put_damaged(self, number: int, relative: int, count: int, to_byte: int, timestamp: int) -> None:
        """`count` entries from that one on, of offsets that are damaged."""
        for first in range(0, count, _CHUNK):
            entries = b"".join(
                INDEX_ENTRY.pack(relative + i, to_byte, timestamp) for i in range(first, min(first + _CHUNK, count))
            )
            self.put(number + first, entries)

    def finish(self, count: int, *, exact: bool) -> None:
        if self._descriptor is None:
            return
        if exact and os.fstat(self._descriptor).st_size != count * INDEX_ENTRY.size:
            self.changed = True
            if self._writable:
                with self._left_alone():
                    os.ftruncate(self._descriptor, count * INDEX_ENTRY.size)
        if self.changed and self._writable:
            with self._left_alone():
                os.fdatasync(self._descriptor)

    @contextmanager
    def _left_alone(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._needed or trouble_of(error) not in (Trouble.ROOM, Trouble.DEVICE):
                raise
            self._writable = False
