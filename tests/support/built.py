"""`make` as tests call it: one at a time, whichever process of the test run it comes from."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_OF_THE_CALLER: Final = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}  # a `make test` above


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """No other test runs `make` there meanwhile."""
    with (directory / "Makefile").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make(directory: Path, *targets: str) -> subprocess.CompletedProcess[str]:
    """`make` there. Nothing is done for what is new enough."""
    with alone_in(directory):
        command = ["make", "--no-print-directory", "--silent", "-C", str(directory), *targets]
        environment = {name: value for name, value in os.environ.items() if name not in _OF_THE_CALLER}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
