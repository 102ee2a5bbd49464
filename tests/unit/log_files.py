"""Builds partition directories for the tests of recovery, with records as the native core stores them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import xxhash

from shardd.engine import _native
from shardd.log import layout
from shardd.log.incarnation import write_incarnation
from shardd.log.manifest import Manifest, Sealed
from shardd.log.offsets_table import OFFSET_CONSUMER, StoredOffset

INCARNATION = 7


def write_offset_files(directory: Path, offsets: list[StoredOffset]) -> None:
    """Stored offsets as format version 1 has them."""
    for kind, number, value, *_use in offsets:
        holder = directory / layout.OFFSETS / (layout.CONSUMERS if kind == OFFSET_CONSUMER else layout.GROUPS)
        holder.mkdir(parents=True, exist_ok=True)
        (holder / str(number)).write_bytes(value.to_bytes(8, "little"))


def message(payload: bytes, headers: bytes = b"", message_id: int = 0) -> bytes:
    """One message as a client sends it."""
    lengths = len(headers).to_bytes(4, "little") + len(payload).to_bytes(4, "little")
    return bytes(8) + message_id.to_bytes(16, "little") + bytes(24) + lengths + bytes(8) + payload + headers


def batch(
    first_offset: int, payloads: list[bytes], timestamp: int, segment_start: int, position: int
) -> tuple[bytes, bytes]:
    """(records, index) as appended at `position` of the segment."""
    messages = b"".join(message(payload, headers=payload[:3]) for payload in payloads)
    relative = first_offset - segment_start
    return _native.batch_assign(messages, len(payloads), first_offset, timestamp, relative, position, first_offset)


@dataclass
class Stored:
    """What was written to one segment."""

    start: int
    log: bytes
    index: bytes
    borders: list[int]  # end positions of the records, from 0

    @property
    def count(self) -> int:
        return len(self.borders) - 1


def store(start: int, batches: list[list[bytes]], timestamp: int = 1000) -> Stored:
    """Bytes of a segment with these payloads; each batch is one microsecond later."""
    log, index, offset = b"", b"", start
    for number, payloads in enumerate(batches):
        records, entries = batch(offset, payloads, timestamp + number, start, len(log))
        log += records
        index += entries
        offset += len(payloads)
    ends = [int.from_bytes(index[i + 4 : i + 8], "little") for i in range(0, len(index), 16)]
    return Stored(start, log, index, [0, *ends])


def segment(start: int, batches: list[int], timestamp: int = 1000, payload_bytes: int = 40) -> Stored:
    """Bytes of a segment with that many records in each batch; each batch is one microsecond later."""
    payloads, offset = [], start
    for count in batches:
        payloads.append([bytes([(offset + i) % 251]) * (payload_bytes + i) for i in range(count)])
        offset += count
    return store(start, payloads, timestamp)


def write(directory: Path, *segments: Stored, incarnation: int = INCARNATION) -> None:
    """Writes segments with exact indexes and the marker into a new partition directory."""
    directory.mkdir(parents=True, exist_ok=True)
    write_incarnation(directory, incarnation)
    for stored in segments:
        layout.segment_log(directory, stored.start).write_bytes(stored.log)
        layout.segment_index(directory, stored.start).write_bytes(stored.index)


def tree(directory: Path) -> dict[str, bytes]:
    """Names and bytes of all files below a directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def thinned(stored: Stored, kept: list[int]) -> Stored:
    """The same segment with the records of these offsets only: what is left of it has gaps."""
    log, index, borders = b"", b"", [0]
    for offset in kept:
        k = offset - stored.start
        log += stored.log[stored.borders[k] : stored.borders[k + 1]]
        index += stored.index[16 * k : 16 * k + 4] + len(log).to_bytes(4, "little")
        index += stored.index[16 * k + 8 : 16 * k + 16]
        borders.append(len(log))
    return Stored(stored.start, log, index, borders)


def manifest_of(stored: Stored, end_offset: int = 0, *, incarnation: int = INCARNATION, first: int = 0) -> Manifest:
    """Of a sealed segment; with an end offset that of one whose gaps are explained."""
    times = [int.from_bytes(stored.index[i + 8 : i + 16], "little") for i in (0, len(stored.index) - 16)]
    digest = xxhash.xxh3_128_digest(stored.log)
    sealed = Sealed(len(stored.log), stored.count, times[0], times[1], digest)
    sparse = end_offset > stored.start + stored.count
    return Manifest(
        incarnation, stored.start, log_start_offset=first, sealed=sealed, end_offset=end_offset, sparse=sparse
    )
