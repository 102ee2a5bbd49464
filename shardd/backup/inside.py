"""Files inside a backup, which may be from anywhere: regular files below real directories, nothing else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from shardd.backup.format import BackupError, FileEntry, file_digest
from shardd.runtime.regular_files import open_regular


@contextmanager
def opened_inside(backup: Path, path: Path) -> Iterator[int]:
    """Descriptor of the file `path`, below the directory `backup`, for a `with` block. BackupError: a sentence."""
    descriptor = _open_inside(backup, path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_inside(backup: Path, path: Path) -> int:
    *directories, name = path.relative_to(backup).parts
    place = backup
    try:
        descriptor = os.open(backup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for each in directories:
                place /= each
                inner = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            place = path
            return open_regular(Path(name), directory=descriptor)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise BackupError(f"{path} is missing") from None
    except NotADirectoryError:
        what = "is a symbolic link" if place.is_symlink() else "is no directory"
        raise BackupError(f"{place} {what}: nothing of a backup is read through it") from None
    except OSError as error:
        raise BackupError(f"{place}: {error.strerror}") from error


def check_size(backup: Path, path: Path, size_bytes: int, *, may_be_longer: bool = False) -> None:
    """BackupError unless the file is there and has this length."""
    with opened_inside(backup, path) as descriptor:
        found = os.fstat(descriptor).st_size
    if found < size_bytes or (found > size_bytes and not may_be_longer):
        raise BackupError(f"{path}: it has {found} bytes instead of {size_bytes}")


def read_entry(backup: Path, path: Path, entry: FileEntry) -> bytes:
    """The content of a small file that is exactly its entry. BackupError."""
    with opened_inside(backup, path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size != entry.bytes:
            raise BackupError(f"{path}: it has {size} bytes instead of {entry.bytes}")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(size)
    if FileEntry(len(content), file_digest(xxhash.xxh3_128_digest(content))) != entry:
        raise BackupError(f"{path}: its digest does not match")
    return content


def is_there(path: Path) -> bool:
    """Whether anything bears the name, a symbolic link to nowhere, too."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def everything_below(directory: Path) -> Iterator[Path]:
    """What is not a directory, links to directories as well; not followed."""
    with os.scandir(directory) as entries:
        found = sorted((entry.name, stat.S_ISDIR(entry.stat(follow_symlinks=False).st_mode)) for entry in entries)
    for name, is_directory in found:
        if is_directory:
            yield from everything_below(directory / name)
        else:
            yield directory / name
