"""The Unix socket for clients on this host (`unix.*`): made by the supervisor, inherited by every worker.

Whoever can replace the socket, or a directory above it, can be what clients believe to be the server. So no other user
may have that right anywhere on the way; a directory with the sticky bit above the last one is safe enough.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import stat
from pathlib import Path
from typing import Final

import msgspec

from shardd.config.schema import Unix
from shardd.log.file_modes import group_id
from shardd.server.address_lock import AddressLock, lock_address
from shardd.server.errors import StartupError

_BACKLOG: Final = 4096
_OVERFLOW_UID: Final = Path("/proc/sys/kernel/overflowuid")
_FOR_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class UnixListener(msgspec.Struct):
    """A listening socket at a path, until `close`."""

    listener: socket.socket
    path: Path
    lock: AddressLock
    identity: tuple[int, int]

    def close(self) -> None:
        """The path goes, too, if it still is ours."""
        self.listener.close()
        with contextlib.suppress(OSError):
            if _identity(self.path.lstat()) == self.identity:
                self.path.unlink()
        self.lock.close()


def open_unix_listener(settings: Unix) -> UnixListener | None:
    """None when there is to be none. Raises StartupError."""
    if not settings.path:
        return None
    _check_users(settings.users)
    try:
        group = group_id(settings.group)
    except ValueError as error:
        raise StartupError(f"unix.group: {error}") from error
    path = Path(settings.path)
    try:
        _check_directory(path)
        lock = lock_address("unix-" + hashlib.sha256(settings.path.encode()).hexdigest()[:32], shown=settings.path)
        try:
            _remove_stale(path)
            return _listen(path, settings.mode, group, lock)
        except BaseException:
            lock.close()
            raise
    except OSError as error:
        raise StartupError(f"unix.path: {path}: {error.strerror}") from error


def _check_users(users: dict[int, str]) -> None:
    try:
        overflow = int(_OVERFLOW_UID.read_text())
    except (OSError, ValueError):
        overflow = 65_534
    if overflow in users:
        raise StartupError(f"unix.users: {overflow} stands for every user of other namespaces, it cannot be one user")


def _check_directory(path: Path) -> None:
    """Nobody else may put something else in the place of the socket."""
    directory = path.parent.resolve(strict=True)
    trusted = {0, os.geteuid()}
    for each in (directory, *directory.parents):
        found = each.stat()
        sticky = each != directory and found.st_mode & stat.S_ISVTX
        if found.st_uid not in trusted:
            raise StartupError(f"unix.path: {each} belongs to another user (uid {found.st_uid})")
        if found.st_mode & _FOR_OTHERS and not sticky:
            raise StartupError(f"unix.path: other users may write to {each}")
    if not directory.is_dir():
        raise StartupError(f"unix.path: {directory} is no directory")


def _remove_stale(path: Path) -> None:
    """What a killed server has left there."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise StartupError(f"unix.path: {path} is there, and no socket")
    if found.st_uid not in {0, os.geteuid()}:
        raise StartupError(f"unix.path: {path} belongs to another user (uid {found.st_uid})")
    if _is_listened_on(path):
        raise StartupError(f"unix.path: a server listens at {path} already")
    path.unlink()


def _is_listened_on(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as probe:
        return probe.connect_ex(str(path)) != errno.ECONNREFUSED


def _listen(path: Path, mode: int, group: int | None, lock: AddressLock) -> UnixListener:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        listener.bind(str(path))
        try:
            if group is not None:
                os.chown(path, -1, group)
            path.chmod(mode)
            listener.listen(_BACKLOG)  # nobody could connect before
            return UnixListener(listener, path, lock, _identity(path.lstat()))
        except BaseException:
            path.unlink()
            raise
    except BaseException:
        listener.close()
        raise


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
