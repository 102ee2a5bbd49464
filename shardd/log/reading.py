"""Reads logs once, from front to end: digest, check of every record, and a copy, at a bounded rate and without pushing
what the server needs out of the page cache."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

import xxhash

from shardd.engine import _native
from shardd.log.segments import Fault
from shardd.log.walk import read_passing

CHUNK_BYTES: Final = 64 << 10
FLUSH_BYTES: Final = 512 << 10  # written and not yet on the device, at most: a sync of the server waits for it
TAIL_ATTEMPTS: Final = 5  # looks at bytes that a server may be writing at this moment
TAIL_PAUSE_S: Final = 0.02
_LENGTHS: Final = struct.Struct("<II")  # user headers, payload; at byte 48 of a record
_HEADER_BYTES: Final = 64


class Throttle:
    """At most so many bytes a second (0: no limit); what was not used is not saved up."""

    def __init__(self, bytes_per_second: int = 0) -> None:
        self._rate = bytes_per_second
        self._due_s = 0.0

    def spend(self, count: int) -> None:
        """Sleeps when the last bytes were too many."""
        if not self._rate:
            return
        now_s = time.monotonic()
        if self._due_s > now_s:
            time.sleep(self._due_s - now_s)
        self._due_s = max(self._due_s, now_s) + count / self._rate


class UnreadableError(OSError):
    """The device does not give what a file holds."""


class Reader:
    """Chunks of an open file. Pages that were not in the cache before do not stay there: no read-ahead, and what had
    to come from the device is dropped."""

    def __init__(self, descriptor: int, throttle: Throttle) -> None:
        self._descriptor = descriptor
        self._throttle = throttle
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def read(self, position: int, length: int) -> bytes:
        """At most `length` bytes, fewer only at the end of the file. UnreadableError."""
        self._throttle.spend(length)
        try:
            return read_passing(self._descriptor, length, position)
        except OSError as error:
            raise UnreadableError(error.errno, f"{error.strerror} at byte {position}") from error


class Scanner:
    """Checks records that come in pieces of any size. Timestamps below `imported_end` may fall."""

    def __init__(self, start_offset: int, imported_end: int = 0) -> None:
        self.start_offset = start_offset
        self.valid_bytes = 0
        self.count = 0
        self.last_timestamp = 0
        self.fault = Fault.OK
        self._imported_end = imported_end
        self._rest = bytearray()
        self._need = _HEADER_BYTES

    @property
    def next_offset(self) -> int:
        return self.start_offset + self.count

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """(the records that this piece made whole, their index). Nothing more comes behind a fault until `again`."""
        if self.fault is not Fault.OK:
            return b"", b""
        self._rest += data
        taken = 0
        index = b""
        view = memoryview(self._rest)
        while len(self._rest) - taken >= self._need:
            part = view[taken:]
            valid, count, _, _, last_timestamp, fault, entries = _native.scan_buffer(
                part, self.next_offset, self.last_timestamp, self.start_offset, self.valid_bytes
            )
            part.release()
            taken, index = taken + valid, index + entries
            self.valid_bytes, self.count = self.valid_bytes + valid, self.count + count
            self.last_timestamp = last_timestamp if count else self.last_timestamp
            if fault == Fault.BAD_TIMESTAMP and self.next_offset < self._imported_end:
                self.last_timestamp, self._need = 0, _HEADER_BYTES
                continue
            self.fault = Fault.OK if fault == Fault.TRUNCATED else Fault(fault)
            self._need = self._record_bytes(view[taken:])
            break
        records = bytes(view[:taken])
        view.release()
        del self._rest[:taken]
        return records, index

    def again(self) -> None:
        """The next piece is what follows the last valid record."""
        self.fault, self._need = Fault.OK, _HEADER_BYTES
        self._rest.clear()

    @staticmethod
    def _record_bytes(rest: memoryview) -> int:
        """Length of the record that `rest` begins with; at least that of a header."""
        length = _HEADER_BYTES
        if len(rest) >= _HEADER_BYTES:
            length += sum(_LENGTHS.unpack_from(rest, 48))
        rest.release()
        return length


@dataclass(frozen=True, slots=True)
class Content:
    """What was found: `bytes` (kept, with `digest` over them), the first of them `count` valid records; `damage`: a
    sentence about what follows these, or nothing."""

    bytes: int
    count: int
    digest: xxhash.xxh3_128
    damage: str = ""


Sink = Callable[[bytes], None]


class Log:
    """One pass over an open .log file. `copy` gets its kept bytes in order, `index` the entries of the records."""

    def __init__(
        self,
        descriptor: int,
        start_offset: int,
        imported_end: int,
        throttle: Throttle,
        copy: Sink | None = None,
        index: Sink | None = None,
    ) -> None:
        self._descriptor = descriptor
        self._reader = Reader(descriptor, throttle)
        self._scanner = Scanner(start_offset, imported_end)
        self._digest = xxhash.xxh3_128()
        self._copy = copy
        self._index = index

    def whole(self, end_offset: int | None = None, bytes_max: int | None = None) -> Content:
        """Every byte of a file that does not change, or the first `bytes_max`. `end_offset`: where its records have to
        end. OSError."""
        size = self._size() if bytes_max is None else min(self._size(), bytes_max)
        self._scan(size)
        scanner = self._scanner
        damage = ""
        if scanner.valid_bytes < size:
            damage = f"{self._fault()} at byte {scanner.valid_bytes} of {size}"
            size = self._raw(size)
        elif end_offset is not None and scanner.next_offset != end_offset:
            damage = f"its records end before offset {scanner.next_offset} instead of {end_offset}"
        return Content(size, scanner.count, self._digest, damage)

    def tail(self, bytes_min: int = 0) -> Content:
        """The whole valid records of the newest segment, which a server may be writing to: not what is being written,
        nor zeros, nor a torn tail. Everything when valid records lie behind a bad one, or when they end before
        `bytes_min`, up to where they were whole once. OSError."""
        scanner = self._scanner
        size = self._size()
        self._scan(size)
        reached = scanner.valid_bytes
        if reached >= bytes_min and (reached == size or self._rest_is_zero(size)):
            return Content(reached, scanner.count, self._digest)
        for _ in range(TAIL_ATTEMPTS):
            time.sleep(TAIL_PAUSE_S)
            scanner.again()
            self._scan(self._size())
            if scanner.valid_bytes > reached:  # it was being written: what follows is newer than this backup
                return Content(scanner.valid_bytes, scanner.count, self._digest)
        later = _native.find_later(self._descriptor, reached, scanner.next_offset, scanner.last_timestamp) is not None
        if not later and reached >= bytes_min:
            return Content(reached, scanner.count, self._digest)
        behind = "valid messages behind it" if later else f"its manifest tells of {bytes_min} whole bytes"
        damage = f"{self._fault()} at byte {reached}, {behind}"
        return Content(self._raw(self._size()), scanner.count, self._digest, damage)

    def _size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def _fault(self) -> str:
        return (self._scanner.fault or Fault.TRUNCATED).name

    def _scan(self, size: int) -> None:
        """Goes on behind the last valid record, up to `size` or a fault."""
        position = self._scanner.valid_bytes
        while position < size and self._scanner.fault is Fault.OK:
            data = self._reader.read(position, min(CHUNK_BYTES, size - position))
            if not data:
                return
            position += len(data)
            records, index = self._scanner.feed(data)
            if records:
                self._keep(records)
            if index and self._index is not None:
                self._index(index)

    def _raw(self, size: int) -> int:
        """The bytes behind the last valid record as they are; where the file ended."""
        position = self._scanner.valid_bytes
        while position < size and (data := self._reader.read(position, min(CHUNK_BYTES, size - position))):
            self._keep(data)
            position += len(data)
        return position

    def _rest_is_zero(self, size: int) -> bool:
        position = self._scanner.valid_bytes
        while position < size and (data := self._reader.read(position, min(CHUNK_BYTES, size - position))):
            if data.count(0) != len(data):
                return False
            position += len(data)
        return True

    def _keep(self, data: bytes) -> None:
        self._digest.update(data)
        if self._copy is not None:
            self._copy(data)


class Writer:
    """A new file (it must not exist), written from front to end; never much of it waits in the page cache."""

    def __init__(self, path: str | os.PathLike[str], mode: int = 0o644) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        self._position = 0
        self._flushed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def write(self, data: bytes) -> None:
        """OSError."""
        rest = memoryview(data)
        while rest:
            written = os.write(self.descriptor, rest)
            self._position += written
            rest = rest[written:]
        if self._position - self._flushed >= FLUSH_BYTES:
            os.fdatasync(self.descriptor)
            os.posix_fadvise(self.descriptor, 0, self._position, os.POSIX_FADV_DONTNEED)
            self._flushed = self._position


def sync_file_system(descriptor: int) -> None:
    """Everything on the file system of this file is on the device afterwards: one call instead of one for each file
    and directory. OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
