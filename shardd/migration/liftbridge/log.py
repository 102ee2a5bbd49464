"""The log files of one partition of a Liftbridge server (docs/formats.md#liftbridge-log), read once from front to end.

`<streams>/<name>/<partition>/<first possible offset, 20 digits>.log`: records back to back, all integers big-endian.

    offset size field
    0      8    offset
    8      8    timestamp       nanoseconds
    16     8    leader epoch
    24     4    length          of everything behind this field
    28     4    CRC-32C         of everything behind this field
    32     1    magic           1
    33     1    attributes      0
    34     4    length of the key, -1: none
    ..     n    key
    ..     4    length of the value, -1: none
    ..     n    value
    ..     2    count of headers
    ..          of each: 2 length, name, 4 length, value

The index beside a log proves nothing here: a record is what its checksum says. Offsets ascend; compaction leaves some
of them without a record. What an interrupted write has left behind the last record is a torn tail, everything else that
is not a record is damage.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final

import google_crc32c
import msgspec

from shardd.protocol.limits import MESSAGE_PAYLOAD_BYTES_MAX, USER_HEADERS_BYTES_MAX
from shardd.runtime.regular_files import NotRegularError, open_regular

HEAD: Final = struct.Struct(">QqQI")
CHECKSUM: Final = struct.Struct(">I")
RECORD_BYTES_MAX: Final = MESSAGE_PAYLOAD_BYTES_MAX + USER_HEADERS_BYTES_MAX  # what a native record can hold
CHECKPOINT: Final = "replication-offset-checkpoint"
CHECKPOINT_BYTES_MAX: Final = 64
FILES_MAX: Final = 1_000_000  # of one partition

_MAGIC: Final = b"\x01\x00"
_LENGTH: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">H")
_BODY_BYTES_MIN: Final = CHECKSUM.size + len(_MAGIC) + 2 * _LENGTH.size + _SHORT.size
_CHUNK_BYTES: Final = 1 << 20
_LOG_NAME: Final = re.compile(r"([0-9]{20})\.log")
_OFFSET_END: Final = 1 << 63


class DamageKind(StrEnum):
    """What is wrong with a partition of the source."""

    CHECKSUM = "checksum"  # bytes that are no record, with records behind them
    FORMAT = "format"  # a whole record that says what none can say
    OFFSET = "offset"  # offsets that do not ascend
    TRUNCATED = "truncated"  # a record that is cut off, in a file that is not the last one
    MISSING = "missing"  # messages that were committed are not there
    SEALED = "sealed"  # a value that the key does not open
    UNREADABLE = "unreadable"  # the device does not give it, or it is no regular file


class Damage(msgspec.Struct, frozen=True):
    """Where a partition is not whole. `offset`: the first one that is not there."""

    kind: DamageKind
    file: str
    position: int
    offset: int
    about: str


class DamagedError(Exception):
    """The text is a sentence."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(f"{damage.file}: {damage.about} at byte {damage.position} (offset {damage.offset})")
        self.damage = damage


class SourceRecord(msgspec.Struct, frozen=True, gc=False):
    """One message. `position`: of its record in the file."""

    offset: int
    timestamp_ns: int
    key: bytes
    value: bytes
    headers: dict[str, bytes]
    position: int


class SourceFile(msgspec.Struct, frozen=True):
    """`base_offset`: no record has a lower one."""

    path: Path
    base_offset: int


def log_files(directory: Path) -> list[SourceFile]:
    """In their order. OSError, ValueError."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            name = _LOG_NAME.fullmatch(entry.name)
            if name is not None and int(name[1]) < _OFFSET_END:
                found.append(SourceFile(Path(entry.path), int(name[1])))
            if len(found) > FILES_MAX:
                raise ValueError(f"{directory} has more than {FILES_MAX} log files")
    return sorted(found, key=lambda file: file.base_offset)


class LogReader:
    """The records of one file. `next_offset`: behind the last one that was read; `torn_bytes`: what an interrupted
    write has left at the end."""

    def __init__(self, file: SourceFile, next_offset: int, *, last: bool) -> None:
        self.file, self.last = file, last
        self.next_offset = max(next_offset, file.base_offset)
        self.position = self.torn_bytes = self.size_bytes = 0
        self._buffer = b""
        self._buffer_at = 0

    def records(self) -> Iterator[SourceRecord]:
        """DamagedError behind the last record before the damage."""
        try:
            descriptor = open_regular(self.file.path)
        except (NotRegularError, IsADirectoryError) as error:
            raise self.damaged(DamageKind.UNREADABLE, error.strerror or "it is no regular file") from error
        try:
            self.size_bytes = os.fstat(descriptor).st_size
            yield from self._records(descriptor)
        finally:
            os.close(descriptor)

    def damaged(self, kind: DamageKind, about: str) -> DamagedError:
        """At the place that was reached."""
        return DamagedError(Damage(kind, str(self.file.path), self.position, self.next_offset, about))

    def _records(self, descriptor: int) -> Iterator[SourceRecord]:
        while self.position < self.size_bytes:
            left = self.size_bytes - self.position
            head = self._read(descriptor, self.position, min(HEAD.size, left))
            length = HEAD.unpack(head)[3] if len(head) == HEAD.size else 0
            end = self.position + HEAD.size + length
            if len(head) < HEAD.size or end > self.size_bytes:
                self._end_here(descriptor, DamageKind.TRUNCATED, "a record is cut off")
                return
            if not _BODY_BYTES_MIN <= length <= RECORD_BYTES_MAX:
                self._end_here(descriptor, DamageKind.FORMAT, f"no record has {length} bytes")
                return
            body = self._read(descriptor, self.position + HEAD.size, length)
            if google_crc32c.value(body[CHECKSUM.size :]) != CHECKSUM.unpack_from(body)[0]:
                self._end_here(descriptor, DamageKind.CHECKSUM, "the checksum does not match", end)
                return
            record = self._record(head, body)
            self.position, self.next_offset = end, record.offset + 1
            yield record

    def _record(self, head: bytes, body: bytes) -> SourceRecord:
        offset, timestamp_ns, _epoch, _length = HEAD.unpack(head)
        if not self.next_offset <= offset < _OFFSET_END:
            raise self.damaged(DamageKind.OFFSET, f"a record has the offset {offset}")
        try:
            key, value, headers = _content(body)
        except (struct.error, ValueError) as error:
            raise self.damaged(DamageKind.FORMAT, f"a record with a valid checksum is none: {error}") from error
        return SourceRecord(offset, timestamp_ns, key, value, headers, self.position)

    def _end_here(self, descriptor: int, kind: DamageKind, about: str, end: int = 0) -> None:
        """What begins at `position` is no record: a torn tail when nothing follows that was written later.
        DamagedError."""
        if self.last and (kind is DamageKind.TRUNCATED or end == self.size_bytes or self._only_zeros(descriptor)):
            self.torn_bytes = self.size_bytes - self.position
            return
        raise self.damaged(kind, about)

    def _only_zeros(self, descriptor: int) -> bool:
        at = self.position
        while at < self.size_bytes:
            part = self._read(descriptor, at, min(_CHUNK_BYTES, self.size_bytes - at))
            if not part or part.count(0) != len(part):
                return False
            at += len(part)
        return True

    def _read(self, descriptor: int, position: int, length: int) -> bytes:
        """`length` bytes. DamagedError when the device or the file does not have them."""
        begin = position - self._buffer_at
        if not 0 <= begin <= len(self._buffer) - length:
            try:
                self._buffer = os.pread(descriptor, max(length, _CHUNK_BYTES), position)
            except OSError as error:
                raise self.damaged(DamageKind.UNREADABLE, error.strerror or "it cannot be read") from error
            self._buffer_at, begin = position, 0
            if len(self._buffer) < length:
                raise self.damaged(DamageKind.UNREADABLE, "it became shorter while it was read")
        return self._buffer[begin : begin + length]


def _content(body: bytes) -> tuple[bytes, bytes, dict[str, bytes]]:
    """(key, value, headers) behind the checksum. struct.error, ValueError."""
    at = CHECKSUM.size
    if body[at : at + len(_MAGIC)] != _MAGIC:
        raise ValueError(f"its version is {body[at]}.{body[at + 1]}")
    key, at = _part(body, at + len(_MAGIC), _LENGTH)
    value, at = _part(body, at, _LENGTH)
    (count,) = _SHORT.unpack_from(body, at)
    at += _SHORT.size
    headers = {}
    for _ in range(count):
        name, at = _part(body, at, _SHORT)
        headers[name.decode()], at = _part(body, at, _LENGTH)
    if at != len(body):
        raise ValueError(f"it has {len(body) - at} bytes too many")
    return key, value, headers


def _part(body: bytes, at: int, kind: struct.Struct) -> tuple[bytes, int]:
    (length,) = kind.unpack_from(body, at)
    start = at + kind.size
    if length == -1:
        return b"", start
    if length < 0 or start + length > len(body):
        raise ValueError(f"a part of it has {length} bytes")
    return body[start : start + length], start + length


def read_checkpoint(directory: Path) -> int | None:
    """The high watermark that was saved last, -1 for none; None without a readable file: it is saved each five seconds
    and after a crash it may be missing. OSError."""
    try:
        descriptor = open_regular(directory / CHECKPOINT)
    except (FileNotFoundError, NotRegularError, IsADirectoryError):
        return None
    try:
        text = os.read(descriptor, CHECKPOINT_BYTES_MAX).decode(errors="replace").strip()
    finally:
        os.close(descriptor)
    return int(text) if re.fullmatch(r"-1|[0-9]{1,19}", text, re.ASCII) else None
