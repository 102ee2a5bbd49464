"""Opening what a directory holds under a name that somebody else may have put there: a regular file, or an error that
says what it is. Never a symbolic link (it leads elsewhere), a FIFO (its opening waits) or a device."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

SMALL_BYTES_MAX: Final = 16 << 20  # of a file that is read into memory and is not expected to grow with the data
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_KINDS: Final = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegularError(OSError):
    """Something else than a regular file bears the name."""


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o644, *, directory: int | None = None) -> int:
    """A descriptor; a relative `path` is one in the open `directory`. NotRegularError, IsADirectoryError, OSError."""
    try:
        descriptor = os.open(path, flags | _FLAGS, mode, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotRegularError(errno.ELOOP, "it is a symbolic link and no regular file", str(path)) from error
        if error.errno in (errno.ENXIO, errno.ENODEV):  # a FIFO without a reader, a socket
            raise NotRegularError(error.errno, "it is no regular file", str(path)) from error
        raise
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    what = next((name for matches, name in _KINDS if matches(kind)), "something else")
    raise NotRegularError(errno.EINVAL, f"it is {what} and no regular file", str(path))


def read_regular(path: Path, bytes_max: int = SMALL_BYTES_MAX) -> bytes:
    """The whole content of a regular file. ValueError when it has more bytes than it can have; NotRegularError,
    OSError."""
    descriptor = open_regular(path)
    try:
        return read_descriptor(descriptor, path, bytes_max)
    finally:
        os.close(descriptor)


def read_descriptor(descriptor: int, path: Path, bytes_max: int) -> bytes:
    """As read_regular, of an open file; `path` is for the sentence."""
    size = os.fstat(descriptor).st_size
    if size > bytes_max:
        raise ValueError(f"{path}: it has {size} bytes, more than such a file can have")
    return _read(descriptor, path, bytes_max)


def _read(descriptor: int, path: Path, bytes_max: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        try:
            return file.read(bytes_max)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error  # a read names no file


def read_beginning(path: Path, bytes_max: int) -> bytes:
    """At most so many bytes of a regular file, of whatever size it is. NotRegularError, OSError."""
    descriptor = open_regular(path)
    try:
        return _read(descriptor, path, bytes_max)
    finally:
        os.close(descriptor)


def linked_directory(directory: Path, levels: int) -> Path | None:
    """The directory, or the nearest of so many of its ancestors, that is a symbolic link; None: none of them."""
    return next((path for path in (directory, *directory.parents[:levels]) if path.is_symlink()), None)
