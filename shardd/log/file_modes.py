"""Who may read what the server writes: its user alone, or a group as well (`system.group`).

Modes come from the umask of the process, which every file and directory is made under, by C and by Python; secrets are
made with 0600 under any umask. A directory that a group may read carries the set-group-ID bit, so that what is made in
it belongs to the group. What an earlier version, another umask or another group has left is corrected at the start;
a directory comes after all that is in it, so that one that is right needs no further look.
"""

from __future__ import annotations

import grp
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from shardd.config.digits import number_of
from shardd.log.directory_info import INFO_NAME
from shardd.log.layout import ARCHIVE, STREAMS, TRASH

OWNER_UMASK: Final = 0o077
GROUP_UMASK: Final = 0o027
SECRET_MODE: Final = 0o600
_FOR_THE_GROUP: Final = frozenset({STREAMS, TRASH, ARCHIVE, INFO_NAME})  # the rest may hold secrets
_DEPTH_MAX: Final = 32  # ours end at 9
_GROUP_READS_FILES: Final = 0o040
_GROUP_READS_DIRECTORIES: Final = 0o2050
_WHAT_OTHERS_SEE: Final = 0o7077


class Corrected(msgspec.Struct):
    """How many files and directories got another mode or group, how many could not, and why the first one could not."""

    changed: int = 0
    failed: int = 0
    reason: str = ""

    def fail(self, name: str, error: OSError) -> None:
        self.failed += 1
        self.reason = self.reason or f"{name}: {error.strerror}"


def umask_for(group: int | None) -> int:
    return OWNER_UMASK if group is None else GROUP_UMASK


def group_id(name: str) -> int | None:
    """Of a name or a number; "" means no group. ValueError (a sentence)."""
    if not name:
        return None
    number = number_of(name)
    if number is not None and number < 2**32 - 1:
        return number
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ValueError(f"there is no group {name!r} on this host") from None


def correct_modes(data: Path, group: int | None) -> Corrected:
    """Gives everything below a data directory the modes that it would be made with now; symbolic links are left alone.

    A directory that belongs to somebody else (a mount point) stays as it is and is counted as failed. ValueError (a
    sentence) when it does not get the group. OSError."""
    corrected = Corrected()
    descriptor = os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not _is_right(os.fstat(descriptor), group):
            for entry in _entries(descriptor):
                _correct(descriptor, entry, group if entry.name in _FOR_THE_GROUP else None, corrected, 1)
            try:
                _set(descriptor, group)
                corrected.changed += 1
            except PermissionError as error:
                corrected.fail(str(data), error)
            if group is not None and os.fstat(descriptor).st_gid != group:
                raise ValueError(f"{data} cannot be given to it ({corrected.reason}); its user has to be a member")
    finally:
        os.close(descriptor)
    return corrected


def _is_right(found: os.stat_result, group: int | None) -> bool:
    others_see = found.st_mode & _WHAT_OTHERS_SEE
    if group is None:
        return not others_see
    wanted = _GROUP_READS_DIRECTORIES if stat.S_ISDIR(found.st_mode) else _GROUP_READS_FILES
    return others_see == wanted and found.st_gid == group


def _set(descriptor: int, group: int | None) -> None:
    found = os.fstat(descriptor)
    if group is not None and found.st_gid != group:
        os.fchown(descriptor, -1, group)
    wanted = 0
    if group is not None:
        wanted = _GROUP_READS_DIRECTORIES if stat.S_ISDIR(found.st_mode) else _GROUP_READS_FILES
    os.fchmod(descriptor, found.st_mode & 0o700 | wanted)


def _entries(directory: int) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        return list(entries)


def _correct(parent: int, entry: os.DirEntry[str], group: int | None, corrected: Corrected, depth: int) -> None:
    """A file or a directory with all below it."""
    try:
        found = entry.stat(follow_symlinks=False)
        is_directory = stat.S_ISDIR(found.st_mode)
        right = _is_right(found, group)
        if right or not (is_directory or stat.S_ISREG(found.st_mode)):
            return
        kind = os.O_DIRECTORY if is_directory else os.O_NONBLOCK
        descriptor = os.open(entry.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=parent)
    except FileNotFoundError:
        return
    except OSError as error:
        corrected.fail(entry.name, error)
        return
    try:
        if is_directory and depth < _DEPTH_MAX:
            for below in _entries(descriptor):
                _correct(descriptor, below, group, corrected, depth + 1)
        _set(descriptor, group)
        corrected.changed += 1
    except OSError as error:
        corrected.fail(entry.name, error)
    finally:
        os.close(descriptor)


@contextmanager
def made_like(directory: Path) -> Iterator[None]:
    """What is made inside is for the group when `directory` exists and its group may read it, else for the owner.

    For commands that make backups and data directories: the umask is that of the whole process."""
    try:
        for_the_group = directory.stat().st_mode & 0o050 == 0o050 and directory.stat().st_mode & stat.S_ISGID
    except FileNotFoundError:
        for_the_group = False
    before = os.umask(GROUP_UMASK if for_the_group else OWNER_UMASK)
    try:
        yield
    finally:
        os.umask(before)
