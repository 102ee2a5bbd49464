"""Rows straight from sealed segment files: no server involved. Only sealed segments are read; they never change, and a
retention that unlinks one while it is mapped takes nothing away. What has no row is explained by the manifest beside
the file: offsets whose messages were removed are passed over, isolated ones are a loss, as they are at the server."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from shardd.log.incarnation import read_incarnation
from shardd.log.manifest import DamagedManifestError, Manifest, read_manifest
from shardd.log.record_format import HEADER_BYTES, offset_in, record_bytes, timestamp_in
from shardd.log.segment_reader import opened_index, opened_log
from shardd.log.sparse import entry_number
from shardd.protocol.record_layout import INDEX_ENTRY
from shardd.spark.decode import Decoder, Fault
from shardd.spark.loss import ForeignIncarnationError, HistoryGoneError


class SegmentGoneError(FileNotFoundError):
    """The file is not there any more, or not here."""


class DamagedRecordError(ValueError):
    """A record that fails its check; the message names partition, offset and file."""


def read(
    decoder: Decoder, path: Path, *, segment_start: int, incarnation: int, start: int, end: int, label: str
) -> Iterator[pa.RecordBatch]:
    """Batches of the offsets [start, end). `SegmentGoneError`, `ForeignIncarnationError`, `DamagedRecordError`;
    `HistoryGoneError` in front of what an operator has isolated."""
    try:
        # the marker is read behind the open: a directory that was exchanged before it shows, one after it does not
        # matter
        with opened_log(path.parent, segment_start) as log:
            found = read_incarnation(path.parent)
            if found is None:
                raise SegmentGoneError(f"the directory of {path} is gone")
            if found != incarnation:
                raise ForeignIncarnationError(
                    f"{path} belongs to another incarnation of {label}: it was purged, made anew or restored since it"
                    " was planned"
                )
            size = os.fstat(log).st_size
            if size == 0:
                raise DamagedRecordError(f"{label}: {path} is empty")
            manifest = manifest_of(path, segment_start, incarnation)
            if manifest.sparse and manifest.sealed is not None and size != manifest.sealed.log_bytes:
                raise DamagedRecordError(f"{label}: {path} has {size} bytes instead of {manifest.sealed.log_bytes}")
            position = _position(path, log, size, manifest, start)
            with mmap.mmap(log, size, prot=mmap.PROT_READ) as data:
                data.madvise(mmap.MADV_SEQUENTIAL)
                for low, high, isolated in _parts(manifest, start, end):
                    if isolated:
                        what = f"{label}, file {path}: offsets {low} to {high - 1} were damaged and isolated"
                        raise HistoryGoneError(what, high, low, isolated=True)
                    yield from decode_all(
                        decoder, data, position, low, high, f"{label}, file {path}", gaps=manifest.sparse
                    )
    except FileNotFoundError as error:
        raise SegmentGoneError(str(error)) from error


def manifest_of(path: Path, segment_start: int, incarnation: int) -> Manifest:
    """What explains offsets without a row; one that says nothing when there is none, or a damaged one. ValueError for
    one of a later version."""
    nothing = Manifest(incarnation, segment_start)
    try:
        found = read_manifest(path.parent, segment_start)
    except DamagedManifestError:
        return nothing
    return found if found is not None and found.incarnation == incarnation else nothing


def _parts(manifest: Manifest, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """[start, end) in order: (first offset, end, isolated)."""
    for low, high in manifest.isolated:
        if high <= start or low >= end:
            continue
        if start < low:
            yield start, low, False
        yield max(start, low), min(high, end), True
        start = high
    if start < end:
        yield start, end, False


def _position(path: Path, log: int, size: int, manifest: Manifest, offset: int) -> int:
    """Byte where the record `offset`, or the first one behind it, starts: what the index says if the record before it
    ends there (behind an isolated one: if the record and its own entry agree), else the start of the segment. A wrong
    entry could lead into a payload, to bytes that somebody made look like the record."""
    start = manifest.start_offset
    try:
        with opened_index(path.parent, start) as index:
            count = os.fstat(index).st_size // INDEX_ENTRY.size
            number = entry_number(index, start, count, offset) if manifest.sparse else offset - start
            first = max(0, number - 2)
            data = os.pread(index, (number + 1 - first) * INDEX_ENTRY.size, first * INDEX_ENTRY.size)
    except FileNotFoundError:
        return 0
    entries = list(INDEX_ENTRY.iter_unpack(data[: len(data) // INDEX_ENTRY.size * INDEX_ENTRY.size]))
    if number == 0 or len(entries) < number - first:
        return 0
    relative, position, _ = entries[number - first - 1]
    begin = entries[0][1] if number > 1 else 0
    header = os.pread(log, HEADER_BYTES, begin) if position < size else b""
    if len(header) == HEADER_BYTES and (offset_in(header), begin + record_bytes(header)) == (
        start + relative,
        position,
    ):
        return int(position)
    if any(high == offset for _, high in manifest.isolated) and len(entries) > number - first:
        header = os.pread(log, HEADER_BYTES, position)
        found = offset_in(header) - start, position + record_bytes(header), timestamp_in(header)
        return int(position) if found == entries[number - first] else 0
    return 0


def decode_all(
    decoder: Decoder,
    data: mmap.mmap | bytes | memoryview,
    position: int,
    start: int,
    end: int,
    label: str,
    *,
    gaps: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Decodes until `end`; everything up to there must be in `data`, but what has no record with `gaps`."""
    at = start
    while at < end and not (gaps and position == len(data)):
        decoded = decoder.decode(data, position, at, end, gaps=gaps)
        if decoded.batch is not None:
            yield decoded.batch
        position, at = decoded.position, decoded.next_offset
        if decoded.fault is not Fault.OK:
            raise DamagedRecordError(f"{label}: {explain(decoded.fault, at, decoded.fault_offset)}")
        if decoded.rows == 0 and at < end and not (gaps and position == len(data)):
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
