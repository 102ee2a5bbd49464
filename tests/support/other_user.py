"""What another user of this host gets: a function called in a child with other ids, or a program. Needs root."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

STRANGER = 64_999  # neither user nor group of this host
MEMBERS = 64_998  # a group without a name
_LONGEST_S = 30
T = TypeVar("T")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: needs root")


def as_other_user(function: Callable[[], T], group: int = STRANGER) -> T:
    """What `function` returns as user STRANGER in one group; its exception is raised here."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(_LONGEST_S)
            os.setgroups([])
            os.setgid(group)
            os.setuid(STRANGER)
            try:
                result: tuple[bool, object] = True, function()
            except Exception as error:
                result = False, error
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(result, pipe)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    assert told, "the child told nothing"
    well, value = pickle.loads(told)
    if not well:
        raise value
    return value  # type: ignore[no-any-return]


def as_stranger(modules: str, program: str, *arguments: str) -> list[str]:
    """Command that runs a Python program as STRANGER. `modules` are imported before: they may lie where only root can
    read."""
    become = f"import os; os.setgroups([]); os.setgid({STRANGER}); os.setuid({STRANGER})\n"
    return [sys.executable, "-P", "-c", f"import {modules}\n{become}{program}", *arguments]


def names_below(directory: Path) -> set[str]:
    """All files and directories, also while a server removes some of them (pathlib raises then)."""
    return {
        str((Path(parent) / name).relative_to(directory))
        for parent, directories, files in os.walk(directory)
        for name in (*directories, *files)
    }


def readable_below(directory: Path, group: int = STRANGER) -> set[str]:
    """Files below a directory that the other user can open, and directories that it can list, as relative paths."""

    def look() -> set[str]:
        found = set()
        for path in names:
            try:
                descriptor = os.open(directory / path, os.O_RDONLY | os.O_NONBLOCK)
            except OSError:
                continue
            os.close(descriptor)
            found.add(path)
        return found

    names = [".", *names_below(directory)]
    return as_other_user(look, group)


@contextmanager
def public_directory() -> Iterator[Path]:
    """A directory that everybody can enter (pytest's own cannot be), with one file that everybody can read."""
    directory = Path(tempfile.mkdtemp(prefix="shardd-test-", dir="/tmp"))
    directory.chmod(0o755)
    try:
        canary = directory / "canary"
        canary.touch()
        canary.chmod(0o644)
        assert as_other_user(canary.read_bytes) == b"", "the other user cannot even read what is for all"
        yield directory
    finally:
        for _ in range(20):  # a server that was just killed may still write
            shutil.rmtree(directory, ignore_errors=True)
            if not directory.exists():
                break
            time.sleep(0.1)
