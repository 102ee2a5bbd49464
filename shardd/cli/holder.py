"""The server that runs on a data directory of this machine."""

from __future__ import annotations

import fcntl
from pathlib import Path

from shardd.server.data_directory import LOCK_NAME


class NoServerError(Exception):
    """A sentence."""


def holder_of(directory: Path) -> int:
    """The process of its supervisor. NoServerError: there is none."""
    try:
        with (directory / LOCK_NAME).open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(lock.read(32))
    except (OSError, ValueError):
        pass
    raise NoServerError(f"no server runs on {directory}")
