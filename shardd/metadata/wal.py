"""The metadata log `<data>/state.messages`: written by shard 0 alone, read by every shard when it starts.

    offset size field
    0      8    magic "SHRDMETA"
    8      4    version, u32 little-endian: 1
    12     4    reserved, 0
    16     ...  records back to back (records.py)

The file is born with its header (written as state.messages.tmp, synced, renamed), and every record is synced before
the next one is written. So a power failure can spoil the last record and nothing else, and that decides what bytes
behind the last valid record are:

- A *torn tail* when no valid record starts anywhere behind them and they are not longer than one record can be. It was
  never acknowledged (or is the last record, damaged later: the two look alike), so it is cut off; the bytes are kept as
  state.messages.torn[.n].
- *Damage* otherwise. A later record proves that the bad one was complete once. The file is refused, untouched.

A later record is valid when its digest matches the 32 bytes in front of it, or the digest that the bad record itself
should have carried: so a flipped bit in a stored digest does not hide the record behind it.
"""

from __future__ import annotations

import logging
import os
import struct
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardd.metadata.disk import Disk, OsDisk, read_all, write_all
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
from shardd.protocol.errors import Status

FILE_NAME: Final = "state.messages"
MAGIC: Final = b"SHRDMETA"
VERSION: Final = 1
FILE_HEADER: Final = struct.Struct("<8sII")

_log = logging.getLogger(__name__)


class LogError(Exception):
    """The log cannot be used; the text is a sentence for the operator."""


class AppendError(Exception):
    """A record was not stored, and the log is as it was before it. `status` is the answer for the client."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class LogContent:
    """`ends[i]` is the position behind the i-th record (`ends[0]`: behind the file header). `tail`: bytes behind."""

    records: list[Record]
    ends: array[int]
    tail: bytes


def read_log(path: Path, disk: Disk | None = None) -> LogContent:
    """The valid records from the start of the log; a missing file is an empty log. Never changes the file, which
    shard 0 may be writing: what follows the last valid record is in `tail`, and is no error.

    Raises LogError when it is no log of a known version, holds changes of a newer one, or cannot be read.
    """
    disk = disk or OsDisk()
    try:
        descriptor = disk.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return LogContent([], array("Q", [FILE_HEADER.size]), b"")
    except OSError as error:
        raise LogError(f"{path} cannot be opened: {error.strerror}") from error
    try:
        data = read_all(disk, descriptor, disk.size(descriptor))
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}") from error
    finally:
        disk.close(descriptor)
    _check_file_header(path, data)
    try:
        return _parse(memoryview(data))
    except UnknownCommandError as error:
        raise LogError(f"{path} was written by a newer version and is left untouched: {error}") from error


def check_tail(path: Path, content: LogContent) -> None:
    """Raises LogError unless the tail can be what a crash left of the last write (see the head of this file)."""
    expected = len(content.records) + 1
    position = content.ends[-1]
    if len(content.tail) > RECORD_BYTES_MAX:
        raise LogError(
            f"{path} is damaged: record {expected} at byte {position} is not valid and {len(content.tail)} bytes "
            f"follow, more than one interrupted write can leave"
        )
    previous = content.records[-1].digest if content.records else FIRST_DIGEST
    later = _later_record(memoryview(content.tail), previous, expected)
    if later is not None:
        raise LogError(
            f"{path} is damaged: record {expected} at byte {position} is not valid, but a valid record follows "
            f"at byte {position + later}"
        )


class MetadataLog:
    """The log as shard 0 writes it. One caller at a time; every method but the properties blocks on the disk."""

    def __init__(self, path: Path, disk: Disk, descriptor: int, content: LogContent) -> None:
        self._path = path
        self._disk = disk
        self._descriptor = descriptor  # -1: the file is born with its first record
        self._ends = content.ends
        self._failure = ""

    @classmethod
    def open(cls, path: Path, disk: Disk | None = None) -> tuple[MetadataLog, list[Record]]:
        """The log and its records; cuts off a torn tail. Raises LogError.

        What is read was perhaps never synced (its writer was killed): it is synced before anybody relies on it.
        """
        disk = disk or OsDisk()
        content = read_log(path, disk)
        check_tail(path, content)
        log = cls(path, disk, -1, content)
        try:
            if content.tail:
                kept = _keep_tail(path, disk, content.tail)
                _log.warning(
                    "%s: cut off %d bytes of an unfinished record %d, kept as %s",
                    path, len(content.tail), len(content.records) + 1, kept.name,
                )  # fmt: skip
            if path.exists():
                log._descriptor = disk.open(path, os.O_RDWR)
                if content.tail:
                    disk.ftruncate(log._descriptor, content.ends[-1])
                disk.fdatasync(log._descriptor)
                disk.sync_directory(path.parent)
        except OSError as error:
            log.close()
            raise LogError(f"{path} cannot be made ready for writing: {error.strerror}") from error
        return log, content.records

    @property
    def index(self) -> int:
        """Index of the last record; 0 when there is none."""
        return len(self._ends) - 1

    def append(self, data: bytes) -> None:
        """Stores one encoded record durably. Raises AppendError, with the log as it was before.

        A failed write (10006) is cut off again. After a failed sync (10009), or when cutting off fails, the state of
        the file is unknown to the kernel itself: nothing is written any more until the next start.
        """
        if self._failure:
            raise AppendError(Status.CANNOT_SYNC_FILE, self._failure)
        end = self._ends[-1]
        try:
            if self._descriptor < 0:
                self._descriptor = self._create()
            write_all(self._disk, self._descriptor, data, end)
        except OSError as error:
            self._cut(end)
            raise AppendError(Status.CANNOT_WRITE_TO_FILE, f"{self._path}: {error.strerror}") from error
        try:
            self._disk.fdatasync(self._descriptor)
        except OSError as error:
            self._failure = f"{self._path} takes no more changes: a sync failed ({error.strerror})"
            self._cut(end)
            raise AppendError(Status.CANNOT_SYNC_FILE, self._failure) from error
        self._ends.append(end + len(data))

    def read_after(self, index: int, bytes_max: int) -> list[bytes]:
        """Encoded records from `index + 1` on, at most `bytes_max` in all but at least one if there is one. OSError."""
        if index >= self.index:
            return []
        last = index + 1
        while last < self.index and self._ends[last + 1] - self._ends[index] <= bytes_max:
            last += 1
        start = self._ends[index]
        data = read_all(self._disk, self._descriptor, self._ends[last] - start, start)
        return [data[self._ends[i] - start : self._ends[i + 1] - start] for i in range(index, last)]

    def digest_at(self, index: int) -> bytes:
        """The digest of the record `index` (0: of the empty log). OSError."""
        if index == 0:
            return FIRST_DIGEST
        return read_all(self._disk, self._descriptor, DIGEST_BYTES, self._ends[index] - DIGEST_BYTES)

    def close(self) -> None:
        if self._descriptor >= 0:
            self._disk.close(self._descriptor)
            self._descriptor = -1

    def _create(self) -> int:
        """The file with its header, under its name for good. Descriptor; OSError."""
        temporary = self._path.with_name(self._path.name + ".tmp")
        descriptor = self._disk.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(self._disk, descriptor, FILE_HEADER.pack(MAGIC, VERSION, 0), 0)
            self._disk.fdatasync(descriptor)
            self._disk.rename(temporary, self._path)
            self._disk.sync_directory(self._path.parent)
        except OSError:
            self._disk.close(descriptor)
            raise
        return descriptor

    def _cut(self, size: int) -> None:
        """Takes back what a failed append may have left. Without that nothing more can be written."""
        if self._descriptor < 0:
            return
        try:
            self._disk.ftruncate(self._descriptor, size)
        except OSError as error:
            self._failure = f"{self._path} takes no more changes: cutting it back failed ({error.strerror})"
            _log.error("%s", self._failure)


def _check_file_header(path: Path, data: bytes) -> None:
    if len(data) < FILE_HEADER.size:
        raise LogError(f"{path} is not a metadata log: it ends inside its header")
    magic, version, reserved = FILE_HEADER.unpack_from(data)
    if magic != MAGIC:
        raise LogError(f"{path} is not a metadata log: it does not start with {MAGIC.decode()}")
    if version != VERSION or reserved != 0:
        raise LogError(
            f"{path} has format version {version}.{reserved}, which this program does not know; it knows {VERSION}.0 "
            f"and leaves the file untouched"
        )


def _parse(data: memoryview) -> LogContent:
    records: list[Record] = []
    ends = array("Q", [FILE_HEADER.size])
    position, digest = FILE_HEADER.size, FIRST_DIGEST
    while position < len(data):
        try:
            record, position = decode_record(data, position, digest, len(records) + 1)
        except RecordError:
            break
        digest = record.digest
        records.append(record)
        ends.append(position)
    return LogContent(records, ends, bytes(data[position:]))


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


def _keep_tail(path: Path, disk: Disk, tail: bytes) -> Path:
    """Stores the bytes beside the log, durably, under a name that is not taken. OSError."""
    number = 0
    while True:
        kept = path.with_name(f"{path.name}.torn{f'.{number}' if number else ''}")
        try:
            descriptor = disk.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            break
        except FileExistsError:
            number += 1
    try:
        write_all(disk, descriptor, tail, 0)
        disk.fdatasync(descriptor)
    finally:
        disk.close(descriptor)
    disk.sync_directory(path.parent)
    return kept
