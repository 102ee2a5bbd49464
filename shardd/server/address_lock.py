"""One supervisor for an address: lock files of the user in directories that nobody else may enter.

SO_REUSEPORT would let a second server of the same user share the port without a word; the kernel refuses it across
users. So the lock need not reach further than one user, and no other user can hold it. The files are below /run/user/N
(root: /run) and /tmp, wherever that can be used: who makes /tmp/shardd-N first takes one lock away, not the start. A
server that answers a PING at the address is found in any case (listeners.py). Each network namespace has ports of its
own, so the locks of ports have its number in their names.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from shardd.server.errors import StartupError

_DIRECTORY_MODE: Final = 0o700
_WAIT_S: Final = 0.2  # for whoever only looks
_log = logging.getLogger(__name__)


class AddressLock:
    """Held until it is closed, or its process ends."""

    def __init__(self) -> None:
        self._held: list[tuple[Path, int]] = []

    @property
    def held(self) -> bool:
        return bool(self._held)

    def take(self, directory: Path, name: str) -> bool:
        """False when somebody has it. OSError when the directory cannot be used."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            fd = _open_lock_file(directory, name, os.O_CREAT)
            try:
                if _try_lock(fd, fcntl.LOCK_EX) and _is_at(fd, directory / name):
                    self._held.append((directory / name, fd))
                    fd = -1
                    return True
            finally:
                if fd >= 0:
                    os.close(fd)  # somebody has it, or has removed it meanwhile
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)

    def close(self) -> None:
        while self._held:
            path, fd = self._held.pop()
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(fd)


def runtime_directories(uid: int) -> list[Path]:
    """Where the files of a user may be; the first belongs to root or the login manager, which nobody comes before."""
    return [Path(f"/run/user/{uid}/shardd") if uid else Path("/run/shardd"), Path(f"/tmp/shardd-{uid}")]


def lock_address(address: str, directories: Iterable[Path] | None = None, *, shown: str = "") -> AddressLock:
    """The lock of "host:port" or "unix-..." among the servers of this user; `shown`: what people call it. Raises
    StartupError."""
    lock = AddressLock()
    reasons = []
    for directory in runtime_directories(os.geteuid()) if directories is None else directories:
        try:
            if not lock.take(directory, lock_name(address)):
                lock.close()
                raise StartupError(f"another shardd server holds the address {shown or address}")
        except OSError as error:
            reasons.append(f"{directory}: {error.strerror}")
    if not lock.held:
        _log.warning("the address is not locked, a second server is only found when it answers: %s", "; ".join(reasons))
    return lock


def is_locked(address: str) -> bool:
    """Whether a server of this user holds the address. Changes nothing; a starting server waits this look out."""
    for directory in runtime_directories(os.geteuid()):
        with contextlib.suppress(OSError):
            fd = _open_lock_file(directory, lock_name(address), 0)
            try:
                if not _try_lock(fd, fcntl.LOCK_SH):
                    return True
            finally:
                os.close(fd)
    return False


def lock_name(address: str) -> str:
    """Of the file of an address, in any of the directories."""
    if address.startswith("unix-"):  # paths are the same for all
        return f"{address}.lock"
    try:
        return f"{address}@{Path('/proc/self/ns/net').stat().st_ino}.lock"
    except OSError:
        return f"{address}.lock"


def _open_lock_file(directory: Path, name: str, create: int) -> int:
    if create:
        with contextlib.suppress(FileExistsError):
            directory.mkdir(_DIRECTORY_MODE)
    directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(directory_fd)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(0, "others may write there or own it")
        flags = os.O_RDWR | create | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=directory_fd)
    finally:
        os.close(directory_fd)


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False
