"""What lies in the trash: names and bytes, counted once for each thing that is moved there and carried on as it is
removed. Any thread."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Final

import msgspec

BLOCK_BYTES: Final = 512  # of st_blocks, whatever the file system


class _Entry(msgspec.Struct):
    """A directory with all that is below it, or a file. `stuck`: something in it could not be removed."""

    names: int
    size_bytes: int
    stuck: bool = False


class TrashContent:
    """`names` of what can be removed, and the `size_bytes` that everything takes on the disk."""

    def __init__(self, trash: Path) -> None:
        self._trash = trash
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self.names = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def look(self) -> None:
        """Finds out what has come and gone. Blocks."""
        with self._lock:
            try:
                found = {entry.name for entry in os.scandir(self._trash)}
            except OSError:
                found = set()
            for name in [name for name in self._entries if name not in found]:
                self._drop(name)
            for name in found - self._entries.keys():
                self._entries[name] = entry = _Entry(*_measure(self._trash / name))
                self.names += entry.names
                self.size_bytes += entry.size_bytes

    def removed(self, path: Path, size_bytes: int, *, name: bool) -> None:
        """A path below the trash has lost so many bytes, and (`name`) its name."""
        with self._lock:
            top = path.relative_to(self._trash).parts[0]
            entry = self._entries.get(top)
            if entry is None:
                return
            if name and path.parent == self._trash:
                self._drop(top)
                return
            self.size_bytes -= min(size_bytes, entry.size_bytes)
            entry.size_bytes -= min(size_bytes, entry.size_bytes)
            if name and entry.names > 1:
                entry.names -= 1
                self.names -= not entry.stuck

    def is_stuck(self, path: Path) -> None:
        """A path below the trash cannot be removed: nobody is to wait for what it is in."""
        with self._lock:
            parts = path.relative_to(self._trash).parts
            entry = self._entries.get(parts[0]) if parts else None
            if entry is not None and not entry.stuck:
                entry.stuck = True
                self.names -= entry.names

    def try_again(self) -> None:
        """What could not be removed may be removable now."""
        with self._lock:
            for entry in self._entries.values():
                self.names += entry.names if entry.stuck else 0
                entry.stuck = False

    def _drop(self, name: str) -> None:
        entry = self._entries.pop(name)
        self.names -= 0 if entry.stuck else entry.names
        self.size_bytes -= entry.size_bytes


def _measure(path: Path) -> tuple[int, int]:
    """Names, the path's own included, and bytes on the disk. What vanishes meanwhile does not count."""
    try:
        status = path.lstat()
    except OSError:
        return 1, 0
    names, size_bytes = 1, status.st_blocks * BLOCK_BYTES if status.st_nlink == 1 else 0
    if not stat.S_ISDIR(status.st_mode):
        return names, size_bytes
    try:
        below = [path / entry.name for entry in os.scandir(path)]
    except OSError:
        return names, 0
    for each in below:
        more_names, more_bytes = _measure(each)
        names, size_bytes = names + more_names, size_bytes + more_bytes
    return names, size_bytes
