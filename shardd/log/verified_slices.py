"""Reading a log in slices: every record checked, the index it must have made beside. Blocking; the lock of the
interpreter is free while the kernel reads and while records are hashed.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from shardd.engine import _native
from shardd.engine.record_faults import RecordFault
from shardd.log.record_format import HEADER_BYTES, INDEX_ENTRY_BYTES, record_bytes

SLICE_BYTES: Final = 1 << 20

Read = Callable[[int, int, int], bytes]  # descriptor, bytes, position


class SegmentExtent(msgspec.Struct, frozen=True):
    """What is known of a segment before it is read.

    `limit_bytes`: nothing behind it is looked at. `end_offset`: where the next segment starts; None: not known.
    `imported_end`: timestamps of records below it may fall. `sparse_end`: offsets up to
    there (exclusive) may have no record, and the segment ends there; 0: every one has.
    """

    start_offset: int
    limit_bytes: int
    end_offset: int | None = None
    imported_end: int = 0
    sparse_end: int = 0


class VerifiedSlice(msgspec.Struct, frozen=True):
    """Valid records one after the other: `count` from `offset` on, the last one before `end_offset`, in `size_bytes`
    from `position` on."""

    position: int
    size_bytes: int
    offset: int
    count: int
    first_timestamp: int
    last_timestamp: int
    fault: RecordFault  # OK: there may be more behind it
    index: bytes  # their entries
    end_offset: int

    @property
    def end_position(self) -> int:
        return self.position + self.size_bytes


def read_at(descriptor: int, size_bytes: int, position: int) -> bytes:
    """All of it, less only at the end of the file. OSError."""
    buffer = memoryview(bytearray(size_bytes))
    return bytes(buffer[: _fill(descriptor, buffer, position)])


def read_passing(descriptor: int, size_bytes: int, position: int) -> bytes:
    """As read_at, for a file opened for random access, with the care of `fill_passing`. OSError."""
    buffer = memoryview(bytearray(size_bytes))
    return bytes(buffer[: fill_passing(descriptor, buffer, position)])


def fill_passing(descriptor: int, buffer: memoryview, position: int) -> int:
    """Reads into all of `buffer`; how much it was, less only at the end of the file. The page cache stays as it was:
    pages that had to come from the device are dropped, but where a file system does not say what is cached. OSError."""
    try:
        cached = os.preadv(descriptor, [buffer], position, os.RWF_NOWAIT)
    except BlockingIOError:
        cached = 0
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        return _fill(descriptor, buffer, position)
    if cached == len(buffer):
        return cached
    read = _fill(descriptor, buffer[cached:], position + cached)
    os.posix_fadvise(descriptor, position + cached, len(buffer) - cached, os.POSIX_FADV_DONTNEED)
    return cached + read


def _fill(descriptor: int, buffer: memoryview, position: int) -> int:
    done = 0
    while done < len(buffer):
        read = os.preadv(descriptor, [buffer[done:]], position + done)
        if not read:
            break
        done += read
    return done


def next_slice(
    log: int,
    position: int,
    offset: int,
    minimum: int,
    bounds: SegmentExtent,
    read: Read = read_at,
    slice_bytes: int = SLICE_BYTES,
) -> VerifiedSlice:
    """Records from a border on, about a slice of them. `count` 0 only with a fault or at the limit. OSError."""
    size = min(slice_bytes, bounds.limit_bytes - position)
    data = read(log, size, position)
    size = min(size, len(data))  # the file may have become shorter
    known = minimum, bounds.start_offset, position, bounds.sparse_end
    result = _native.scan_buffer(data, offset, *known)
    if result.fault == RecordFault.TRUNCATED and result.records == 0 and len(data) >= HEADER_BYTES:
        whole = record_bytes(data)
        if size < whole <= bounds.limit_bytes - position:  # one record that is longer than a slice
            data = read(log, whole, position)
            result = _native.scan_buffer(data, offset, *known)
    valid, count, end_offset, first, last, fault, index = result
    if fault == RecordFault.TRUNCATED and count and position + len(data) < bounds.limit_bytes:
        fault = RecordFault.OK  # the next slice has the rest of it
    if fault == RecordFault.BAD_TIMESTAMP and end_offset < bounds.imported_end:
        if count == 0:
            return next_slice(log, position, offset, 0, bounds, read, slice_bytes)
        fault = RecordFault.OK
    if end_offset == bounds.end_offset:
        fault = RecordFault.OK  # what lies behind is not looked at
    elif bounds.end_offset is not None and end_offset > bounds.end_offset:
        end_offset = bounds.end_offset
        count = _entries_below(index, end_offset - bounds.start_offset)
        index = index[: count * INDEX_ENTRY_BYTES]
        valid = int.from_bytes(index[-12:-8], "little") - position if count else 0
        last = int.from_bytes(index[-8:], "little") if count else 0
        fault = RecordFault.OK
    if bounds.sparse_end and fault == RecordFault.OK and position + valid == bounds.limit_bytes:
        end_offset = min(bounds.end_offset or bounds.sparse_end, bounds.sparse_end)  # the rest has no record
    return VerifiedSlice(position, valid, offset, count, first, last, RecordFault(fault), index, end_offset)


def _entries_below(index: bytes, relative: int) -> int:
    """How many entries are of offsets below this one."""
    size = INDEX_ENTRY_BYTES
    return bisect_left(
        range(len(index) // size), relative, key=lambda k: int.from_bytes(index[size * k : size * k + 4], "little")
    )


def verified_slices(
    log: int, position: int, offset: int, minimum: int, bounds: SegmentExtent
) -> Iterator[VerifiedSlice]:
    """Slices up to the limit, the end offset or the first bytes that are not a record (the last slice has
    their fault). OSError."""
    while position < bounds.limit_bytes and offset != bounds.end_offset:
        part = next_slice(log, position, offset, minimum, bounds)
        yield part
        if part.fault or not part.count:
            return
        position, offset, minimum = part.end_position, part.end_offset, part.last_timestamp
