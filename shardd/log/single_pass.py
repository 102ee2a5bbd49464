"""Reads a whole log once, from front to end: check of every record, digest, and a copy, in short steps at a bounded
rate and without pushing what the server needs out of the page cache. For sealing and for backups."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

import msgspec
import xxhash

from shardd.engine import _native
from shardd.engine.record_faults import RecordFault
from shardd.log.record_format import HEADER_BYTES, record_bytes
from shardd.log.verified_slices import fill_passing
from shardd.runtime.throttle import Throttle

CHUNK_BYTES: Final = 64 << 10
TAIL_ATTEMPTS: Final = 5  # looks at bytes that a server may be writing at this moment
TAIL_PAUSE_S: Final = 0.02


class UnreadableError(OSError):
    """The device does not give what a file holds."""


class PassReader:
    """Parts of an open file, in ascending order. Pages that were not in the cache before do not stay there: no
    read-ahead, and what had to come from the device is dropped."""

    def __init__(self, descriptor: int, throttle: Throttle) -> None:
        self._descriptor = descriptor
        self._throttle = throttle
        self._buffer = memoryview(bytearray(2 * CHUNK_BYTES))
        self._begin = self._end = 0  # what of the file is in it
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def read(self, position: int, length: int) -> memoryview:
        """At most `length` bytes, fewer only at the end of the file; valid until the next call. What the last call had
        behind `position` is not read again. UnreadableError."""
        kept = min(self._end - position, length) if self._begin <= position < self._end else 0
        begin = position - self._begin
        buffer = self._buffer if length <= len(self._buffer) else memoryview(bytearray(length))
        buffer[:kept] = self._buffer[begin : begin + kept]
        self._buffer, self._begin, self._end = buffer, position, position + kept
        while self._end < position + length:
            wanted = min(position + length - self._end, CHUNK_BYTES)
            self._throttle.spend(wanted)
            filled = self._end - position
            try:
                read = fill_passing(self._descriptor, buffer[filled : filled + wanted], self._end)
            except OSError as error:
                raise UnreadableError(error.errno, f"{error.strerror} at byte {self._end}") from error
            self._end += read
            if read < wanted:
                break
        return buffer[: self._end - position]

    def forget(self) -> None:
        """What was read may have changed."""
        self._begin = self._end = 0


class RecordScanner:
    """Checks records, a part of the log after the other. Timestamps begin with the minimum; below `imported_end` they
    may fall. Up to `sparse_end` offsets may have no record."""

    def __init__(
        self, start_offset: int, imported_end: int = 0, minimum_timestamp: int = 0, sparse_end: int = 0
    ) -> None:
        self.start_offset = self.next_offset = start_offset
        self.valid_bytes = 0
        self.count = 0
        self.first_timestamp = 0
        self.last_timestamp = minimum_timestamp
        self.fault = RecordFault.OK
        self.need_bytes = HEADER_BYTES  # of the next record, as far as it is known
        self._imported_end = imported_end
        self._sparse_end = sparse_end

    def scan(self, data: memoryview) -> tuple[int, bytes]:
        """(bytes of the whole records that `data` begins with, their index). `data` follows the last valid record."""
        taken = 0
        index = b""
        while len(data) - taken >= HEADER_BYTES:
            part = _native.scan_buffer(
                data[taken:],
                self.next_offset,
                self.last_timestamp,
                self.start_offset,
                self.valid_bytes,
                self._sparse_end,
            )
            self.next_offset = part.next_offset
            taken, index = taken + part.valid_bytes, index + part.entries
            if part.records:
                self.first_timestamp = self.first_timestamp if self.count else part.first_timestamp
                self.last_timestamp = part.last_timestamp
            self.valid_bytes, self.count = self.valid_bytes + part.valid_bytes, self.count + part.records
            if part.fault != RecordFault.BAD_TIMESTAMP or self.next_offset >= self._imported_end:
                self.fault = RecordFault.OK if part.fault == RecordFault.TRUNCATED else RecordFault(part.fault)
                break
            self.last_timestamp = 0
        self.need_bytes = max(HEADER_BYTES, record_bytes(data[taken : taken + HEADER_BYTES]))
        return taken, index

    def again(self) -> None:
        """The next part is what follows the last valid record."""
        self.fault, self.need_bytes = RecordFault.OK, HEADER_BYTES


class PassResult(msgspec.Struct, frozen=True):
    """What was found: `bytes` (kept, with `digest` over them), the first of them `count` valid records with these
    timestamps; `damage`: a sentence about what follows these, or nothing."""

    bytes: int
    count: int
    first_timestamp: int
    last_timestamp: int
    digest: xxhash.xxh3_128
    damage: str = ""


Sink = Callable[[bytes | memoryview], None]  # what it gets is valid during the call


class LogPass:
    """One pass over an open .log file. `copy` gets its kept bytes in order, `index` the entries of the records."""

    def __init__(
        self,
        descriptor: int,
        start_offset: int,
        imported_end: int,
        throttle: Throttle,
        copy: Sink | None = None,
        index: Sink | None = None,
        minimum_timestamp: int = 0,
        sparse_end: int = 0,
    ) -> None:
        self._descriptor = descriptor
        self._reader = PassReader(descriptor, throttle)
        self._scanner = RecordScanner(start_offset, imported_end, minimum_timestamp, sparse_end)
        self._sparse_end = sparse_end
        self._digest = xxhash.xxh3_128()
        self._copy = copy
        self._index = index

    def whole(self, end_offset: int | None = None, bytes_max: int | None = None) -> PassResult:
        """Every byte of a file that does not change, or the first `bytes_max`. `end_offset`: where its records have to
        end. OSError."""
        size = self._size() if bytes_max is None else min(self._size(), bytes_max)
        self._scan(size)
        scanner = self._scanner
        damage = ""
        if scanner.valid_bytes < size:
            damage = f"{self._fault()} at byte {scanner.valid_bytes} of {size}"
            size = self._raw(size)
        elif end_offset is not None and not self._sparse_end and scanner.next_offset != end_offset:
            damage = f"its records end before offset {scanner.next_offset} instead of {end_offset}"
        return self._content(size, damage)

    def tail(self, bytes_min: int = 0) -> PassResult:
        """The whole valid records of the newest segment, which a server may be writing to: not what is being written,
        nor zeros, nor a torn tail. Everything when valid records lie behind a bad one, or when they end before
        `bytes_min`, up to where they were whole once. OSError."""
        scanner = self._scanner
        size = self._size()
        self._scan(size)
        reached = scanner.valid_bytes
        if reached >= bytes_min and (reached == size or self._rest_is_zero(size)):
            return self._content(reached)
        for _ in range(TAIL_ATTEMPTS):
            time.sleep(TAIL_PAUSE_S)
            scanner.again()
            self._reader.forget()
            self._scan(self._size())
            if scanner.valid_bytes > reached:  # it was being written: what follows is newer than this backup
                return self._content(scanner.valid_bytes)
        later = _native.find_later(self._descriptor, reached, scanner.next_offset, scanner.last_timestamp) is not None
        if not later and reached >= bytes_min:
            return self._content(reached)
        behind = "valid messages behind it" if later else f"its manifest tells of {bytes_min} whole bytes"
        damage = f"{self._fault()} at byte {reached}, {behind}"
        return self._content(self._raw(self._size()), damage)

    def _content(self, size: int, damage: str = "") -> PassResult:
        found = self._scanner
        return PassResult(size, found.count, found.first_timestamp, found.last_timestamp, self._digest, damage)

    def _size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def _fault(self) -> str:
        return (self._scanner.fault or RecordFault.TRUNCATED).name

    def _scan(self, size: int) -> None:
        """Goes on behind the last valid record, up to `size` or a fault."""
        scanner = self._scanner
        while scanner.valid_bytes + scanner.need_bytes <= size and scanner.fault is RecordFault.OK:
            position = scanner.valid_bytes
            wanted = min(max(CHUNK_BYTES, scanner.need_bytes), size - position)
            data = self._reader.read(position, wanted)
            taken, index = scanner.scan(data)
            if taken:
                self._keep(data[:taken])
            if index and self._index is not None:
                self._index(index)
            if len(data) < wanted:  # the file has become shorter
                return

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
            if bytes(data).count(0) != len(data):
                return False
            position += len(data)
        return True

    def _keep(self, data: memoryview) -> None:
        self._digest.update(data)
        if self._copy is not None:
            self._copy(data)
