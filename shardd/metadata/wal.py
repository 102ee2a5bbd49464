"""The metadata log as shard 0 writes it: appended, cut, given to replicas. The format: log_file.py."""

from __future__ import annotations

import hashlib
import logging
import os
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import msgspec

from shardd.metadata.errors import LogError
from shardd.metadata.log_file import (
    CUT_HEADER,
    CUT_HEADER_BYTES,
    FILE_HEADER,
    MAGIC,
    VERSION,
    VERSION_CUT,
    LogContent,
    check_tail,
    read_log,
)
from shardd.metadata.records import DIGEST_BYTES
from shardd.metadata.reserve import Reserve
from shardd.protocol.errors import Status
from shardd.runtime.disk import Disk, OsDisk, check_size, close_quietly, read_all, remove_quietly, write_all
from shardd.runtime.disk_errors import NO_ROOM

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_log = logging.getLogger(__name__)


class AppendError(Exception):
    """A record was not stored, and the log is as it was before it. `status` is the answer for the client."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Cut(msgspec.Struct, frozen=True):
    """A log that has taken the place of the one before it. `failure`: why nothing may be written to it."""

    descriptor: int
    ends: array[int]
    base: int
    base_digest: bytes
    failure: str


class MetadataLog:
    """The log as shard 0 writes it. One caller at a time; every method but the properties blocks on the disk."""

    def __init__(self, path: Path, disk: Disk, descriptor: int, content: LogContent, reserve: Reserve | None) -> None:
        self._path = path
        self._disk = disk
        self._descriptor = descriptor  # -1: the file is born with its first record
        self._ends = content.ends
        self._base = content.base
        self._base_digest = content.base_digest
        self._reserve = reserve
        self._failure = ""

    @classmethod
    def open(
        cls, path: Path, disk: Disk | None = None, reserve: Reserve | None = None
    ) -> tuple[MetadataLog, LogContent]:
        """The log and what it holds; cuts off a torn tail. Raises LogError. A full disk gets room out of `reserve`.

        What is read was perhaps never synced (its writer was killed): it is synced before anybody relies on it. The
        last record is written again for that: where a sync has failed its pages may count as clean, and a sync would
        bring nothing. Nothing is ever written behind a failed sync, so that is true of no other record.
        """
        disk = disk or OsDisk()
        content = read_log(path, disk)
        check_tail(path, content)
        log = cls(path, disk, -1, content, reserve)
        try:
            if content.tail:
                kept = log._kept_tail(content.tail)
                _log.warning(
                    "%s: cut off %d bytes of an unfinished record %d, %s",
                    path, len(content.tail), content.index + 1, f"kept as {kept.name}" if kept else "not kept",
                )  # fmt: skip
            if not content.missing:  # else it is born with its first record
                log._descriptor = disk.open(path, os.O_RDWR)
                if content.tail:
                    disk.ftruncate(log._descriptor, content.ends[-1])
                if content.records:
                    start = content.ends[-2]
                    last = read_all(disk, log._descriptor, content.ends[-1] - start, start)
                    log._with_room(write_all, disk, log._descriptor, last, start)
                disk.fdatasync(log._descriptor)
                disk.sync_directory(path.parent)
        except OSError as error:
            log.close()
            raise LogError(f"{path} cannot be made ready for writing: {error.strerror}") from error
        return log, content

    @property
    def index(self) -> int:
        """Index of the last record; 0 when there is none."""
        return self._base + len(self._ends) - 1

    @property
    def base(self) -> int:
        """Index of the last record that was cut away; 0 for none."""
        return self._base

    def bytes_after(self, index: int) -> int:
        """Bytes of the records behind `index`, which is at least the base."""
        return self._ends[-1] - self._ends[index - self._base]

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
                self._descriptor = self._with_room(self._create)
            check_size(end + len(data))
            self._with_room(write_all, self._disk, self._descriptor, data, end)
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
        """Encoded records from `index + 1` on, at most `bytes_max` in all but at least one if there is one. `index` is
        at least the base. OSError."""
        first, count = index - self._base, len(self._ends) - 1
        if first >= count:
            return []
        last = first + 1
        while last < count and self._ends[last + 1] - self._ends[first] <= bytes_max:
            last += 1
        start = self._ends[first]
        data = read_all(self._disk, self._descriptor, self._ends[last] - start, start)
        return [data[self._ends[i] - start : self._ends[i + 1] - start] for i in range(first, last)]

    def digest_at(self, index: int) -> bytes:
        """The digest of the record `index`, which is at least the base (0: of the empty log). OSError."""
        if index == self._base:
            return self._base_digest
        return read_all(self._disk, self._descriptor, DIGEST_BYTES, self._ends[index - self._base] - DIGEST_BYTES)

    def prepare_cut(self, index: int) -> Cut:
        """Makes a log without the records up to `index` and puts it in the place of this one; blocks. The caller gives
        the result to `adopt`, and appends nothing in between. OSError: this log stays as it was."""
        digest = self.digest_at(index)
        start = self._ends[index - self._base]
        kept = read_all(self._disk, self._descriptor, self._ends[-1] - start, start)
        shift = start - CUT_HEADER_BYTES
        ends = array("Q", (end - shift for end in self._ends[index - self._base :]))
        temporary = self._path.with_name(self._path.name + ".tmp")
        descriptor = -1
        try:
            descriptor = self._disk.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            header = CUT_HEADER.pack(MAGIC, VERSION_CUT, 0, index, digest)
            write_all(self._disk, descriptor, header + hashlib.sha256(header).digest() + kept, 0)
            self._disk.fdatasync(descriptor)
            self._disk.rename(temporary, self._path)
        except OSError:
            if descriptor >= 0:
                close_quietly(self._disk, descriptor)
            remove_quietly(self._disk, temporary)
            raise
        try:
            self._disk.sync_directory(self._path.parent)
        except OSError as error:
            # A power failure may bring the old log back: what would be written now could be lost with the new one.
            failure = f"{self._path} takes no more changes: its directory cannot be synced ({error.strerror})"
            return Cut(descriptor, ends, index, digest, failure)
        return Cut(descriptor, ends, index, digest, "")

    def adopt(self, cut: Cut) -> None:
        """Goes on with the log that `prepare_cut` made. Does not block."""
        old, self._descriptor = self._descriptor, cut.descriptor
        self._ends, self._base, self._base_digest = cut.ends, cut.base, cut.base_digest
        self._failure = self._failure or cut.failure
        if old >= 0:
            close_quietly(self._disk, old)

    def _kept_tail(self, tail: bytes) -> Path | None:
        """The file with a copy of the tail; None: a full disk has no room for it, and nothing reads it. OSError."""
        try:
            return self._with_room(_keep_tail, self._path, self._disk, tail)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return None

    def _with_room(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """The call; when the disk has no room for it, once more with the room of the reserve. OSError."""
        try:
            return function(*arguments)
        except OSError as error:
            if error.errno not in NO_ROOM or self._reserve is None or not self._reserve.release():
                raise
        return function(*arguments)

    def close(self) -> None:
        if self._descriptor >= 0:
            close_quietly(self._disk, self._descriptor)
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
            close_quietly(self._disk, descriptor)
            remove_quietly(self._disk, temporary)
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
    except OSError:
        remove_quietly(disk, kept)
        raise
    finally:
        close_quietly(disk, descriptor)
    disk.sync_directory(path.parent)
    return kept
