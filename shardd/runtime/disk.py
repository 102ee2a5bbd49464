"""The seam to the file system: what the metadata log does with files, so that tests can make any of it fail."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Final, Protocol

from shardd.runtime.regular_files import open_regular

FILE_BYTES_MAX: Final = 1 << 30  # of log and snapshot, which are read into memory: a million partitions need a tenth
_log = logging.getLogger(__name__)


class Disk(Protocol):
    """Blocking calls with the meaning of their namesakes in `os`; each may raise OSError."""

    def open(self, path: Path, flags: int) -> int: ...
    def close(self, descriptor: int) -> None: ...
    def size(self, descriptor: int) -> int: ...
    def pread(self, descriptor: int, length: int, position: int) -> bytes: ...
    def pwrite(self, descriptor: int, data: bytes | memoryview, position: int) -> int: ...
    def ftruncate(self, descriptor: int, size: int) -> None: ...
    def fdatasync(self, descriptor: int) -> None: ...
    def rename(self, source: Path, target: Path) -> None: ...
    def unlink(self, path: Path) -> None: ...
    def sync_directory(self, path: Path) -> None: ...


class OsDisk:
    """The real one."""

    def open(self, path: Path, flags: int) -> int:
        return open_regular(path, flags, 0o600)  # the log holds password hashes

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def pread(self, descriptor: int, length: int, position: int) -> bytes:
        return os.pread(descriptor, length, position)

    def pwrite(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
        return os.pwrite(descriptor, data, position)

    def ftruncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def fdatasync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_all(disk: Disk, descriptor: int, data: bytes, position: int) -> None:
    """Writes all of `data` at `position`, whatever single calls take. Raises OSError."""
    rest = memoryview(data)
    while rest:
        written = disk.pwrite(descriptor, rest, position)
        if written <= 0:
            raise OSError(errno.EIO, "a write took no bytes")
        rest, position = rest[written:], position + written


def read_all(disk: Disk, descriptor: int, length: int, position: int = 0) -> bytes:
    """At most `length` bytes from `position`, fewer at the end of the file. Raises OSError."""
    parts = []
    while length > 0:
        part = disk.pread(descriptor, length, position)
        if not part:
            break
        parts.append(part)
        length, position = length - len(part), position + len(part)
    return b"".join(parts)


def check_size(size_bytes: int) -> None:
    """That of a file which is read or about to be written: one bound for both. OSError."""
    if size_bytes > FILE_BYTES_MAX:
        raise OSError(errno.EFBIG, f"{size_bytes} bytes are more than such a file can have ({FILE_BYTES_MAX})")


def read_file(disk: Disk, descriptor: int) -> bytes:
    """All of it. OSError, also when it is larger than such a file can be."""
    size = disk.size(descriptor)
    check_size(size)
    return read_all(disk, descriptor, size)


def close_quietly(disk: Disk, descriptor: int) -> None:
    """What had to be stored was synced before, so an error of the close changes nothing; it is logged."""
    try:
        disk.close(descriptor)
    except OSError as error:
        _log.warning("closing a file of the metadata: %s", error.strerror)


def remove_quietly(disk: Disk, path: Path) -> None:
    """A temporary file that stays is written over by the next attempt."""
    try:
        disk.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        _log.warning("%s cannot be removed: %s", path, error.strerror)
