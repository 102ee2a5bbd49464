"""`make` as tests call it: one at a time, whichever process of the test run it comes from. Libraries that a server
loads before its own."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
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


@cache
def shared_library(source: Path) -> bytes:
    """Made of a C file, once in a process: many servers have the same one."""
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory, source.stem)
        command = [*os.environ.get("CC", "cc").split(), "-shared", "-fPIC", "-O1", "-Wall", "-Werror"]
        subprocess.run([*command, "-o", str(library), str(source), "-ldl"], check=True)
        return library.read_bytes()
