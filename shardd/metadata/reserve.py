"""Room for the metadata on a full disk: `<data>/state.reserve`, a file of random bytes that is given up when a record,
a recovery or the start finds no room, and made again when there is room. Random: no file system can compress it away.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shardd.runtime.disk import Disk, OsDisk, close_quietly, remove_quietly, write_all
from shardd.runtime.disk_errors import NO_ROOM

RESERVE_NAME: Final = "state.reserve"
RESERVE_BYTES: Final = 1 << 20  # some thousand changes
_log = logging.getLogger(__name__)


class Reserve:
    """The calls block and may come from any thread."""

    def __init__(self, directory: Path, disk: Disk | None = None, size_bytes: int = RESERVE_BYTES) -> None:
        self._path = directory / RESERVE_NAME
        self._disk = disk or OsDisk()
        self._size_bytes = size_bytes
        self._lock = threading.Lock()

    def make(self) -> bool:
        """Makes the file when it is missing or too short. False when there is no room for it: then none of it stays."""
        with self._lock:
            temporary = self._path.with_name(RESERVE_NAME + ".tmp")
            try:
                if self._is_made():
                    return True
                descriptor = self._disk.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
                try:
                    write_all(self._disk, descriptor, os.urandom(self._size_bytes), 0)
                    self._disk.fdatasync(descriptor)
                finally:
                    close_quietly(self._disk, descriptor)
                self._disk.rename(temporary, self._path)
            except OSError as error:
                remove_quietly(self._disk, temporary)
                _log.debug("%s cannot be made: %s", self._path, error.strerror)
                return False
            return True

    def _is_made(self) -> bool:
        try:
            descriptor = self._disk.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return self._disk.size(descriptor) == self._size_bytes
        finally:
            self._disk.close(descriptor)

    def release(self) -> bool:
        """Gives its room to the file system; False when there was none."""
        with self._lock:
            try:
                self._disk.unlink(self._path)
            except OSError:
                return False
            _log.warning("the disk is full: %s gives up its %d bytes", self._path, self._size_bytes)
            return True


def with_reserve(directory: Path, write: Callable[[], None]) -> None:
    """`write`, and again with the room of the reserve when the disk is full. OSError."""
    try:
        write()
    except OSError as error:
        if error.errno not in NO_ROOM or not Reserve(directory).release():
            raise
        write()
