"""Deleting in two steps: a rename now (atomic, cheap, under the metadata record), the unlinks later and slowly. This is
the first one."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

from shardd.log import layout

_numbers = itertools.count()


def move_to_trash(directory: Path, trash: Path, *, durable: bool = True) -> Path | None:
    """Renames a directory into the trash; `durable` syncs both parents. None when it does not exist. OSError.

    Without `durable` a power loss may bring the directory back: its marker then keeps it from being opened, and the
    sweep at start moves it again.
    """
    trash.mkdir(parents=True, exist_ok=True)
    target = trash / f"{time.time_ns()}-{os.getpid()}-{next(_numbers)}-{directory.name}"
    try:
        directory.rename(target)
    except FileNotFoundError:
        return None
    if durable:
        layout.sync_directory(trash)
        layout.sync_directory(directory.parent)
    return target
