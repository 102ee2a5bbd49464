"""Rows straight from sealed segment files: no server involved. Only sealed segments are read; they never change, and a
retention that unlinks one while it is mapped takes nothing away."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from shardd.log import layout
from shardd.log.incarnation import read_incarnation
from shardd.log.record_format import HEADER_BYTES, INDEX_ENTRY, offset_in, record_bytes
from shardd.spark.decode import Decoder, Fault
from shardd.spark.loss import ForeignIncarnationError


class SegmentGoneError(FileNotFoundError):
    """The file is not there any more, or not here."""


class DamagedRecordError(ValueError):
    """A record that fails its check; the message names partition, offset and file."""


def read(
    decoder: Decoder, path: Path, *, segment_start: int, incarnation: int, start: int, end: int, label: str
) -> Iterator[pa.RecordBatch]:
    """Batches of the offsets [start, end). `SegmentGoneError`, `ForeignIncarnationError`, `DamagedRecordError`."""
    try:
        # the marker is read behind the open: a directory that was exchanged before it shows, one after it does not
        # matter
        with path.open("rb") as file:
            found = read_incarnation(path.parent)
            if found is None:
                raise SegmentGoneError(f"the directory of {path} is gone")
            if found != incarnation:
                raise ForeignIncarnationError(
                    f"{path} belongs to another incarnation of {label}: it was purged, made anew or restored since it"
                    " was planned"
                )
            size = os.fstat(file.fileno()).st_size
            position = _position(path, file.fileno(), size, segment_start, start)
            if size == 0:
                raise DamagedRecordError(f"{label}: {path} is empty")
            with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as data:
                data.madvise(mmap.MADV_SEQUENTIAL)
                yield from decode_all(decoder, data, position, start, end, f"{label}, file {path}")
    except FileNotFoundError as error:
        raise SegmentGoneError(str(error)) from error


def _position(path: Path, log: int, size: int, segment_start: int, offset: int) -> int:
    """Byte where the record `offset` starts: what the index says if the record before it ends there, else the start of
    the segment. A wrong entry could lead into a payload, to bytes that somebody made look like the record."""
    number = offset - segment_start
    if number == 0:
        return 0
    try:
        with layout.segment_index(path.parent, segment_start).open("rb") as index:
            first = max(0, number - 2)
            entries = os.pread(index.fileno(), (number - first) * INDEX_ENTRY.size, first * INDEX_ENTRY.size)
    except FileNotFoundError:
        return 0
    if len(entries) < (number - first) * INDEX_ENTRY.size:
        return 0
    *before, (_, position, _) = INDEX_ENTRY.iter_unpack(entries)
    begin = before[0][1] if before else 0
    header = os.pread(log, HEADER_BYTES, begin) if position < size else b""
    agrees = len(header) == HEADER_BYTES and offset_in(header) == offset - 1
    return int(position) if agrees and begin + record_bytes(header) == position else 0


def decode_all(
    decoder: Decoder, data: mmap.mmap | bytes | memoryview, position: int, start: int, end: int, label: str
) -> Iterator[pa.RecordBatch]:
    """Decodes until `end`; everything up to there must be in `data`."""
    at = start
    while at < end:
        decoded = decoder.decode(data, position, at, end)
        if decoded.batch is not None:
            yield decoded.batch
        position, at = decoded.position, decoded.next_offset
        if decoded.fault is not Fault.OK:
            raise DamagedRecordError(f"{label}: {explain(decoded.fault, at, decoded.fault_offset)}")
        if decoded.rows == 0:
            raise DamagedRecordError(f"{label}: ends before offset {at}, {end} is expected")


def explain(fault: Fault, offset: int, found: int) -> str:
    """What is wrong at `offset`, as text."""
    match fault:
        case Fault.GAP:
            return f"offset {found} stands where offset {offset} belongs"
        case Fault.BAD_CHECKSUM:
            return (
                f"the message at offset {offset} fails its checksum; verifyChecksums=report reads on with the column"
                " checksumOk"
            )
        case Fault.TRUNCATED:
            return f"the data ends inside the message at offset {offset}"
        case _:
            return f"there is no message at offset {offset}: its lengths are impossible"
