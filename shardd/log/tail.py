"""The end of a log that was being written to: what lies behind its last valid record, and cutting it off."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path

from shardd.engine import _native
from shardd.log import layout
from shardd.log.record_format import HEADER_BYTES, offset_in, record_bytes, timestamp_in
from shardd.log.recovered import Recovered
from shardd.log.segment_layout import PLAIN
from shardd.log.segment_reader import layout_of, opened_index, opened_log
from shardd.log.segments import Segment, cut_entries
from shardd.log.verified_slices import read_at
from shardd.protocol.errors import Status
from shardd.runtime.disk_errors import NO_ROOM

_COPY_BYTES = 1 << 20


class Rest(Enum):
    """What lies behind the last valid record."""

    ZEROS = "zeros"  # level durable allocates space ahead, and a file system leaves them after a power loss
    TORN = "nothing that looks like a later record"
    CLAIMED = "what looks like later records, all of it in the bytes of one that was not written to its end"
    UNCLEAR = "what looks like later records"


def rest_of(directory: Path, segment: Segment, imported_end: int = 0) -> Rest:
    """Judges it by what the bytes look like. A record with a timestamp below the last good one is a stale one in
    recycled space and does not count; in what was imported (below `imported_end`) no space is recycled, and it does.
    OSError."""
    position, offset = segment.log_bytes, segment.next_offset
    minimum = 0 if offset < imported_end else segment.last_timestamp
    with opened_log(directory, segment.start_offset) as log:
        data_end = _end_of_data(log, position, segment.file_bytes)
        if data_end == position:
            return Rest.ZEROS
        if _native.find_later(log, position, offset, minimum) is None:
            return Rest.TORN
        header = read_at(log, HEADER_BYTES, position)
    size = record_bytes(header)
    honest = size and any(header[8:24]) and offset_in(header) == offset and timestamp_in(header) >= minimum
    return Rest.CLAIMED if honest and position + size >= data_end else Rest.UNCLEAR


def offsets_possible(directory: Path, segment: Segment) -> int:
    """More offsets than there can be records in the bytes behind the last valid one. OSError."""
    with opened_log(directory, segment.start_offset) as log:
        return (_end_of_data(log, segment.log_bytes, segment.file_bytes) - segment.log_bytes) // HEADER_BYTES + 1


def _end_of_data(log: int, position: int, size: int) -> int:
    """Where the zeros at the end of a log begin, `position` at least."""
    while size > position:
        begin = max(position, size - _COPY_BYTES)
        chunk = read_at(log, size - begin, begin).rstrip(b"\0")
        if chunk:
            return begin + len(chunk)
        size = begin
    return position


def cut_zeros(directory: Path, segment: Segment) -> None:
    """Cuts a tail of zero bytes off, durably, and what the index has for it. OSError."""
    with opened_log(directory, segment.start_offset, os.O_RDWR) as log:
        os.ftruncate(log, segment.log_bytes)
        os.fsync(log)
    cut_index(directory, segment)


def cut_index(directory: Path, segment: Segment) -> None:
    """Leaves the entries of the segment's records only. OSError."""
    with opened_index(directory, segment.start_offset, os.O_RDWR | os.O_CREAT) as index:
        cut_entries(index, segment.count)


def cut_tail(directory: Path, segment: Segment) -> Path:
    """Copies the bytes behind the last valid record to a `.torn` file and cuts them off the log, each step durable
    before the next. Returns the path of the copy. OSError (also for want of room: then nothing has been cut)."""
    with opened_log(directory, segment.start_offset, os.O_RDWR) as log:
        torn_path = _save_tail(directory, segment, log)
        os.ftruncate(log, segment.log_bytes)
        os.fsync(log)
    cut_index(directory, segment)
    return torn_path


def cut_torn(directory: Path, segment: Segment, what: str, recovered: Recovered) -> None:
    """Cuts what lies behind the segment's last record, and says `what` it is. Without room for the copy the partition
    is read only. OSError."""
    damage = f"{layout.segment_log(directory, segment.start_offset)}: {what} at byte {segment.log_bytes}"
    surplus = segment.file_bytes - segment.log_bytes
    try:
        torn_path = cut_tail(directory, segment)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        recovered.state = Status.CANNOT_WRITE_TO_FILE
        recovered.notes.append(
            f"{damage}, no room to save the {surplus} bytes behind it: read only until the next start"
        )
        return
    recovered.torn = True
    recovered.notes.append(f"{damage}: torn tail of {surplus} bytes cut off, kept in {torn_path.name}")


def cut_surplus(directory: Path, segment: Segment, *, clear: bool) -> str:
    """What lies behind the last record of a sealed segment is of an append that was taken back: the power went before
    that was on the device. With it the segment can neither be sealed nor archived, so it is cut off, as above, where
    the rest is `clear`. What was done. OSError."""
    surplus = segment.file_bytes - segment.log_bytes
    path = layout.segment_log(directory, segment.start_offset)
    note = f"{path}: {surplus} bytes behind the last record of a sealed segment"
    if not clear or layout_of(directory, segment.start_offset) is not PLAIN:
        return f"{note}, ignored"
    try:
        return f"{note}, cut off, kept in {cut_tail(directory, segment).name}"
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        return f"{note}, no room to save them: ignored until the next start"


def _save_tail(directory: Path, segment: Segment, log: int) -> Path:
    torn_path, torn = _create_torn(directory, segment.start_offset)
    try:
        for position in range(segment.log_bytes, segment.file_bytes, _COPY_BYTES):
            chunk = os.pread(log, min(_COPY_BYTES, segment.file_bytes - position), position)
            if chunk.count(0) != len(chunk):  # zero-filled space stays a hole
                _write_fully(torn, chunk, position - segment.log_bytes)
        os.ftruncate(torn, segment.file_bytes - segment.log_bytes)
        os.fsync(torn)
        layout.sync_directory(directory)
    except OSError:
        torn_path.unlink(missing_ok=True)
        raise
    finally:
        os.close(torn)
    return torn_path


def _create_torn(directory: Path, start_offset: int) -> tuple[Path, int]:
    number = 0
    while True:
        path = layout.segment_torn(directory, start_offset, number)
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            number += 1


def _write_fully(descriptor: int, chunk: bytes, position: int) -> None:
    written = 0
    while written < len(chunk):
        written += os.pwrite(descriptor, chunk[written:], position + written)
