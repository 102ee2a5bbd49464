"""One supervisor for an address: lock files of the user in directories that nobody else may enter.

SO_REUSEPORT would let a second server of the same user share the port without a word; the kernel refuses it across
users. So the lock need not reach further than one user, and no other user can hold it. The files are below /run/user/N
(root: /run) and /tmp, wherever that can be used: who makes /tmp/shardd-N first takes one lock away, not the start. A
server that answers a PING at the address is found in any case (supervisor_sockets.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from shardd.shard.supervisor_errors import StartupError

_DIRECTORY_MODE: Final = 0o700
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
        while True:
            fd = _open_lock_file(directory, name)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(fd, directory / name):
                    self._held.append((directory / name, fd))
                    return True
            except BlockingIOError:
                os.close(fd)
                return False
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # whoever had it has removed it meanwhile

    def close(self) -> None:
        while self._held:
            path, fd = self._held.pop()
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(fd)


def runtime_directories(uid: int) -> list[Path]:
    """Where the files of a user may be; the first belongs to root or the login manager, which nobody comes before."""
    return [Path(f"/run/user/{uid}/shardd") if uid else Path("/run/shardd"), Path(f"/tmp/shardd-{uid}")]


def lock_address(address: str, directories: Iterable[Path] | None = None) -> AddressLock:
    """The lock of "host:port" among the servers of this user. Raises StartupError."""
    lock = AddressLock()
    reasons = []
    for directory in runtime_directories(os.geteuid()) if directories is None else directories:
        try:
            if not lock.take(directory, f"{address}.lock"):
                lock.close()
                raise StartupError(f"another shardd server holds the address {address}")
        except OSError as error:
            reasons.append(f"{directory}: {error.strerror}")
    if not lock.held:
        _log.warning("the address is not locked, a second server is only found when it answers: %s", "; ".join(reasons))
    return lock


def _open_lock_file(directory: Path, name: str) -> int:
    with contextlib.suppress(FileExistsError):
        directory.mkdir(_DIRECTORY_MODE)
    directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(directory_fd)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(0, "others may write there or own it")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=directory_fd)
    finally:
        os.close(directory_fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False
