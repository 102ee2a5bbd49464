"""Files of a backup, and of what is restored from it, are written in one go and never fill the page cache."""

from __future__ import annotations

import ctypes
import os
from typing import Final, Self

FLUSH_BYTES: Final = 512 << 10  # written and not yet on the device, at most: a sync of the server waits for it


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

    def write(self, data: bytes | memoryview) -> None:
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
