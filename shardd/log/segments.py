"""Recovery of single segments: is a sealed one whole, what of the active one is valid.

The scans themselves are native (native/src/log/record.c). The index is never evidence about the log: where it does not
fit exactly it is written again from the records.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from shardd.engine import _native
from shardd.engine.record_faults import RecordFault
from shardd.log import layout
from shardd.log.manifest import Checkpoint, Manifest
from shardd.log.record_format import INDEX_ENTRY_BYTES, RECORD_BYTES_MAX
from shardd.log.segment_reader import log_path, opened_index, opened_log
from shardd.protocol.record_layout import INDEX_ENTRY
from shardd.runtime.disk_errors import Trouble, losses_passed_over, trouble_of


class Segment(msgspec.Struct, frozen=True):
    """What a log file holds: `log_bytes` of `count` valid records, and how long the file is. `last_timestamp` of an
    empty one: what no record may be below. `scanned_bytes`: what was read to know that. `absent`: offsets without a
    record, which the manifest explains; 0: entry k of the index is that of the offset start + k. `waiting`: the last
    entries of its index, which the file does not have."""

    start_offset: int
    log_bytes: int
    count: int
    first_timestamp: int
    last_timestamp: int
    file_bytes: int
    fault: RecordFault = RecordFault.OK
    scanned_bytes: int = 0
    absent: int = 0
    waiting: bytes = b""

    @property
    def next_offset(self) -> int:
        return self.start_offset + self.count + self.absent


def trust_sealed(directory: Path, manifest: Manifest) -> Segment | None:
    """A sealed segment as its manifest has it, when log and index have the lengths that belong to it; None when it has
    to be scanned. OSError."""
    sealed = manifest.sealed
    if sealed is None:
        return None
    start = manifest.start_offset
    log, index = log_path(directory, start), layout.segment_index(directory, start)
    size_bytes = sealed.log_bytes if manifest.stored is None else manifest.stored.size_bytes
    if log.stat().st_size != size_bytes or not index.is_file():
        return None
    if index.stat().st_size != sealed.count * INDEX_ENTRY_BYTES:
        return None
    return Segment(
        start, sealed.log_bytes, sealed.count, sealed.first_timestamp, sealed.last_timestamp, sealed.log_bytes,
        absent=manifest.absent,
    )  # fmt: skip


def check_sealed(
    directory: Path, start_offset: int, expected_count: int, minimum_timestamp: int, imported_end: int = 0
) -> Segment | None:
    """Judges a sealed segment without reading all of it: as many index entries as the next segment's name demands,
    dense at both ends, the log as long as the last entry says, the last record valid, or on a sector that cannot be
    read: whoever reads it verifies it. None when it has to be scanned. OSError when the index cannot be read."""
    if expected_count <= 0 or not layout.segment_index(directory, start_offset).is_file():
        return None
    with (
        opened_log(directory, start_offset) as log,
        opened_index(directory, start_offset) as index,
    ):
        size = os.fstat(log).st_size
        if os.fstat(index).st_size != expected_count * INDEX_ENTRY_BYTES:
            return None
        first_relative, first_end, first_timestamp = _read_entry(index, 0)
        last_relative, last_end, last_timestamp = _read_entry(index, expected_count - 1)
        last_start = _read_entry(index, expected_count - 2)[1] if expected_count > 1 else 0
        if (first_relative, last_relative, last_end) != (0, expected_count - 1, size):
            return None
        if not (first_end <= last_end and 0 < last_end - last_start <= RECORD_BYTES_MAX):
            return None
        whole_import = start_offset + expected_count <= imported_end
        if not whole_import and not minimum_timestamp <= first_timestamp <= last_timestamp:
            return None
        whole = Segment(start_offset, size, expected_count, first_timestamp, last_timestamp, size)
        last_record = None
        with losses_passed_over():
            last_record = os.pread(log, last_end - last_start, last_start)
    if last_record is None:
        return whole
    last_offset = start_offset + expected_count - 1
    scan = _native.scan_buffer(last_record, last_offset, last_timestamp, start_offset, last_start)
    if (scan.valid_bytes, scan.records, scan.last_timestamp) != (last_end - last_start, 1, last_timestamp):
        return None
    return whole


def _read_entry(index: int, number: int) -> tuple[int, int, int]:
    entry = os.pread(index, INDEX_ENTRY_BYTES, number * INDEX_ENTRY_BYTES)
    relative_offset, end_position, timestamp = INDEX_ENTRY.unpack(entry)
    return relative_offset, end_position, timestamp


_NOTHING = Checkpoint(0, 0, 0, 0)


def scan_segment(
    directory: Path,
    start_offset: int,
    minimum_timestamp: int,
    imported_end: int = 0,
    checkpoint: Checkpoint | None = None,
) -> Segment:
    """Verifies every record from the start of the log, or from a checkpoint that log and index agree with, up to the
    first invalid one, and makes the index exactly that of the valid ones (the engine syncs it). Where that cannot be
    written its entries wait in memory: reading needs no room. Timestamps of records below `imported_end` may fall.
    OSError, of the log."""
    with opened_log(directory, start_offset) as log:
        file_bytes = os.fstat(log).st_size
        waiting = b""
        try:
            with opened_index(directory, start_offset, os.O_RDWR | os.O_CREAT) as index:
                known = _known(checkpoint, file_bytes, index)
                found, fault = _scan_log(log, index, known, start_offset, minimum_timestamp, imported_end)
                if found.log_bytes == file_bytes:
                    cut_entries(index, found.count)
        except OSError as error:
            if trouble_of(error) not in (Trouble.ROOM, Trouble.DEVICE):
                raise
            known = _known_of_file(directory, start_offset, checkpoint, file_bytes)
            with memory_file("index") as index:
                found, fault = _scan_log(log, index, known, start_offset, minimum_timestamp, imported_end)
                at = known.count * INDEX_ENTRY_BYTES
                waiting = os.pread(index, found.count * INDEX_ENTRY_BYTES - at, at)
    return Segment(
        start_offset=start_offset,
        log_bytes=found.log_bytes,
        count=found.count,
        first_timestamp=found.first_timestamp,
        last_timestamp=found.last_timestamp,
        file_bytes=file_bytes,
        fault=fault,
        scanned_bytes=found.log_bytes - known.log_bytes,
        waiting=waiting,
    )


def _known(checkpoint: Checkpoint | None, file_bytes: int, index: int) -> Checkpoint:
    return checkpoint if checkpoint is not None and _agrees(checkpoint, file_bytes, index) else _NOTHING


def _known_of_file(directory: Path, start_offset: int, checkpoint: Checkpoint | None, file_bytes: int) -> Checkpoint:
    """As far as the index can be read."""
    with suppress(OSError), opened_index(directory, start_offset) as index:
        return _known(checkpoint, file_bytes, index)
    return _NOTHING


@contextmanager
def memory_file(name: str) -> Iterator[int]:
    """Descriptor of a file that needs no disk, for a `with` block."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _scan_log(
    log: int, index: int, known: Checkpoint, start_offset: int, minimum_timestamp: int, imported_end: int
) -> tuple[Checkpoint, RecordFault]:
    """Verifies what is behind `known` and writes its entries to `index`; what is valid in all, and why it
    ends there. Without any record `last_timestamp` is the given minimum. OSError."""
    log_bytes, count, first_timestamp = known.log_bytes, known.count, known.first_timestamp
    minimum = last_timestamp = known.last_timestamp if count else minimum_timestamp
    while True:
        more = _native.scan_file(log, log_bytes, start_offset, start_offset + count, minimum, index)
        if more.records:
            first_timestamp = first_timestamp if count else more.first_timestamp
            last_timestamp = more.last_timestamp
        log_bytes, count = log_bytes + more.valid_bytes, count + more.records
        if more.fault != RecordFault.BAD_TIMESTAMP or start_offset + count >= imported_end:
            return Checkpoint(log_bytes, count, first_timestamp, last_timestamp), RecordFault(more.fault)
        minimum = 0  # what was imported may fall


def _agrees(checkpoint: Checkpoint, file_bytes: int, index: int) -> bool:
    """The log reaches the checkpoint, and the index leads there as far as its last entry tells."""
    if not 0 < checkpoint.count * INDEX_ENTRY_BYTES <= os.fstat(index).st_size:
        return False
    entry = checkpoint.count - 1, checkpoint.log_bytes, checkpoint.last_timestamp
    return checkpoint.log_bytes <= file_bytes and _read_entry(index, checkpoint.count - 1) == entry


def position_of(directory: Path, segment: Segment, offset: int) -> int:
    """Where the record of an offset begins in the log of a segment whose index fits it. OSError."""
    count = offset - segment.start_offset
    in_file = segment.count - len(segment.waiting) // INDEX_ENTRY_BYTES
    if count > in_file:
        return int(INDEX_ENTRY.unpack_from(segment.waiting, (count - in_file - 1) * INDEX_ENTRY_BYTES)[1])
    with opened_index(directory, segment.start_offset) as index:
        return _read_entry(index, count - 1)[1] if count else 0


def cut_entries(index: int, count: int) -> None:
    """Entries without records are gone durably: after a power loss they would be those of other records."""
    if os.fstat(index).st_size > count * INDEX_ENTRY_BYTES:
        os.ftruncate(index, count * INDEX_ENTRY_BYTES)
        os.fdatasync(index)
