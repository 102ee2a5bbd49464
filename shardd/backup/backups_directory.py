"""The directory that takes the backups: which are complete, the one that is being made, what killed runs have left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from shardd.backup.check import read_checked
from shardd.backup.format import (
    BACKUP_BYTES_MAX,
    BACKUP_NAME,
    INCOMPLETE_SUFFIX,
    Backup,
    BackupError,
    encode_backup,
    is_backup_name,
)
from shardd.backup.writing import sync_file_system
from shardd.log import layout
from shardd.log.segment_reader import opened

LOCK_NAME: Final = ".lock"
MARKER_NAME: Final = "in-progress"
MARKER: Final = b"shardd-backup-in-progress\n"


def time_text(moment: datetime) -> str:
    """RFC 3339, as it stands in backup.json."""
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def complete_backups(directory: Path) -> list[Path]:
    """Directories with the name of a complete backup, oldest first. OSError."""
    return sorted(path for path in directory.iterdir() if is_backup_name(path.name) and path.is_dir())


def newest_backup(directory: Path) -> tuple[Path, Backup] | None:
    """The newest one that can be read. OSError."""
    for path in reversed(complete_backups(directory)):
        with contextlib.suppress(BackupError):
            return path, read_checked(path)
    return None


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One run at a time makes backups in a directory, which is made when missing; the lock ends with the process.
    BackupError when somebody has it, OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(f"another backup is being made in {directory}") from None
        yield
    finally:
        os.close(descriptor)


def remove_leftovers(directory: Path) -> list[Path]:
    """Removes what killed runs have left: only what is named so and carries our marker, or is empty. The lock must be
    held. OSError."""
    removed = []
    for path in sorted(directory.iterdir()):
        if not path.name.endswith(INCOMPLETE_SUFFIX) or not is_backup_name(path.name.removesuffix(INCOMPLETE_SUFFIX)):
            continue
        try:
            ours = MARKER.startswith((path / MARKER_NAME).read_bytes())
        except OSError:
            ours = path.is_dir() and not any(path.iterdir())  # killed before the marker
        if ours:
            _remove(path)
            removed.append(path)
    return removed


def _remove(path: Path) -> None:
    """The marker goes last: a removal that is killed can be repeated."""
    for entry in path.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != MARKER_NAME:
            entry.unlink()
    (path / MARKER_NAME).unlink(missing_ok=True)
    path.rmdir()


class Unfinished:
    """A backup that is being made. A context manager: what does not come to `finish` is removed."""

    def __init__(self, directory: Path, began: datetime) -> None:
        """OSError."""
        self._final = directory / began.strftime("%Y%m%dT%H%M%S.%fZ")
        self.path = self._final.with_name(self._final.name + INCOMPLETE_SUFFIX)
        self.path.mkdir()
        (self.path / MARKER_NAME).write_bytes(MARKER)
        self._finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._finished:
            with contextlib.suppress(OSError):  # what stays goes with the next run
                _remove(self.path)

    def finish(self, backup: Backup) -> Path:
        """Makes everything durable, then backup.json, then the name; the path of the backup. OSError."""
        with opened(self.path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            sync_file_system(descriptor)
        layout.write_durably(self.path / BACKUP_NAME, encode_backup(backup), BACKUP_BYTES_MAX)
        self.path.rename(self._final)
        try:
            layout.sync_directory(self._final.parent)
        except OSError:
            self._final.rename(self.path)
            raise
        self._finished = True
        with contextlib.suppress(OSError):  # it only says that a run was under way
            (self._final / MARKER_NAME).unlink()
        return self._final


def now() -> datetime:
    return datetime.now(UTC)
