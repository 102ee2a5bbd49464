"""The metadata log `<data>/state.messages` as a file: written by shard 0 alone (wal.py), read by every shard when it
starts.

    offset size field
    0      8    magic "SHRDMETA"
    8      4    version, u32 little-endian: 1, or 2 once the log was cut
    12     4    reserved, 0
    16     8    version 2 only: base, the index of the last record that was cut away (a snapshot covers it)
    24     32   version 2 only: digest of that record
    56     32   version 2 only: SHA-256 over bytes 0 .. 56
    16/88  ...  records back to back (records.py), the first one has index 1 or base + 1

A log is cut by exchanging it for a new one (state.messages.tmp, synced, renamed, directory synced) with the records
behind the base. The file is born with its header in the same way, and every record is synced before the next one is
written. So a power failure can spoil the last record and nothing else, and that decides what bytes
behind the last valid record are:

- A *torn tail* when no valid record starts anywhere behind them and they are not longer than one record can be. It was
  never acknowledged (or is the last record, damaged later: the two look alike), so it is cut off; the bytes are kept as
  state.messages.torn[.n].
- *Damage* otherwise. A later record proves that the bad one was complete once. The file is refused, untouched.

A later record is valid when its digest matches the 32 bytes in front of it, or the digest that the bad record itself
should have carried: so a flipped bit in a stored digest does not hide the record behind it.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from pathlib import Path
from typing import Final

import msgspec

from shardd.metadata.errors import LogError
from shardd.metadata.records import (
    DIGEST_BYTES,
    FIRST_DIGEST,
    HEADER,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    Record,
    RecordError,
    UnknownCommandError,
    body_digest,
    decode_record,
    record_end,
)
from shardd.metadata.whole_file import read_whole
from shardd.runtime.disk import Disk, OsDisk

FILE_NAME: Final = "state.messages"
MAGIC: Final = b"SHRDMETA"
VERSION: Final = 1
VERSION_CUT: Final = 2
FILE_HEADER: Final = struct.Struct("<8sII")
CUT_HEADER: Final = struct.Struct("<8sIIQ32s")
CUT_HEADER_BYTES: Final = CUT_HEADER.size + DIGEST_BYTES


class LogContent(msgspec.Struct, frozen=True):
    """`ends[i]` is the position behind the i-th record (`ends[0]`: behind the file header). `tail`: bytes behind.
    The first record follows `base`, the index of the last record that was cut away, 0 for none. `missing`: no file."""

    records: list[Record]
    ends: array[int]
    tail: bytes
    base: int = 0
    base_digest: bytes = FIRST_DIGEST
    missing: bool = False

    @property
    def index(self) -> int:
        """Of the last record."""
        return self.base + len(self.records)

    @property
    def digest(self) -> bytes:
        return self.records[-1].digest if self.records else self.base_digest

    def digest_at(self, index: int) -> bytes:
        """The digest of the record `index`, which is at least the base."""
        return self.base_digest if index == self.base else self.records[index - self.base - 1].digest


def read_log(path: Path, disk: Disk | None = None) -> LogContent:
    """The valid records from the start of the log; a missing file is an empty log. Never changes the file, which
    shard 0 may be writing: what follows the last valid record is in `tail`, and is not an error.

    Raises LogError when it is not a log of a known version, holds changes of a newer one, or cannot be read.
    """
    data = read_whole(path, disk or OsDisk())
    if data is None:
        return LogContent([], array("Q", [FILE_HEADER.size]), b"", missing=True)
    start, base, base_digest = _read_file_header(path, data)
    try:
        return _parse(memoryview(data), start, base, base_digest)
    except UnknownCommandError as error:
        raise LogError(f"{path} was written by a newer version and is left untouched: {error}") from error


def check_tail(path: Path, content: LogContent) -> None:
    """Raises LogError unless the tail can be what a crash left of the last write (see the head of this file)."""
    expected = content.index + 1
    position = content.ends[-1]
    if len(content.tail) > RECORD_BYTES_MAX:
        raise LogError(
            f"{path} is damaged: record {expected} at byte {position} is not valid and {len(content.tail)} bytes "
            f"follow, more than one interrupted write can leave"
        )
    later = _later_record(memoryview(content.tail), content.digest, expected)
    if later is not None:
        raise LogError(
            f"{path} is damaged: record {expected} at byte {position} is not valid, but a valid record follows "
            f"at byte {position + later}"
        )


def _read_file_header(path: Path, data: bytes) -> tuple[int, int, bytes]:
    """(where the records start, base, its digest)."""
    if len(data) < FILE_HEADER.size:
        raise LogError(f"{path} is not a metadata log: it ends inside its header")
    magic, version, reserved = FILE_HEADER.unpack_from(data)
    if magic != MAGIC:
        raise LogError(f"{path} is not a metadata log: it does not start with {MAGIC.decode()}")
    if version not in (VERSION, VERSION_CUT) or reserved != 0:
        raise LogError(
            f"{path} has format version {version}.{reserved}, which this program does not know; it knows {VERSION}.0 "
            f"and {VERSION_CUT}.0 and leaves the file untouched"
        )
    if version == VERSION:
        return FILE_HEADER.size, 0, FIRST_DIGEST
    if hashlib.sha256(data[: CUT_HEADER.size]).digest() != data[CUT_HEADER.size : CUT_HEADER_BYTES]:
        raise LogError(f"{path} is damaged: the checksum of its header does not match")
    _, _, _, base, digest = CUT_HEADER.unpack_from(data)
    return CUT_HEADER_BYTES, base, digest


def _parse(data: memoryview, start: int, base: int, base_digest: bytes) -> LogContent:
    records: list[Record] = []
    ends = array("Q", [start])
    position, digest = start, base_digest
    while position < len(data):
        try:
            record, position = decode_record(data, position, digest, base + len(records) + 1)
        except RecordError:
            break
        digest = record.digest
        records.append(record)
        ends.append(position)
    return LogContent(records, ends, bytes(data[position:]), base, base_digest)


def _later_record(tail: memoryview, previous_digest: bytes, expected_index: int) -> int | None:
    """Where in `tail`, which starts with a bad record `expected_index`, a valid later record starts."""
    end = record_end(tail, 0)
    if end is not None and _is_later(tail, end, body_digest(tail, 0, end, previous_digest), expected_index):
        return end
    for position in range(DIGEST_BYTES, len(tail) - RECORD_BYTES_MIN + 1):
        if _is_later(tail, position, tail[position - DIGEST_BYTES : position], expected_index):
            return position
    return None


def _is_later(tail: memoryview, position: int, previous_digest: bytes | memoryview, expected_index: int) -> bool:
    end = record_end(tail, position)
    if end is None:
        return False
    index: int = HEADER.unpack_from(tail, position)[1]
    if not expected_index < index <= expected_index + len(tail) // RECORD_BYTES_MIN:
        return False
    return body_digest(tail, position, end, previous_digest) == tail[end - DIGEST_BYTES : end]
