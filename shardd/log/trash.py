"""Deleting in two steps: a rename now (atomic, cheap, under the metadata record), the unlinks later and slowly.

Files are unlinked, never truncated: a poll that is being answered may still read them through its descriptor.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from shardd.log import layout

LOOK_INTERVAL_S = 15.0
STEPS_PER_S = 200  # unlinks and rmdirs; a topic of 1,000 partitions is gone after half a minute

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


def empty_trash(trash: Path) -> Iterator[Path | OSError]:
    """Removes the content of the trash, depth first. Each step removes one name and gives its path, or the error that
    kept it from going (that name stays for the next run, the others go on)."""
    yield from _remove_content(trash)


def _remove_content(directory: Path) -> Iterator[Path | OSError]:
    try:
        with os.scandir(directory) as entries:
            children = [(Path(entry.path), entry.is_dir(follow_symlinks=False)) for entry in entries]
    except FileNotFoundError:
        return
    except OSError as error:
        yield error
        return
    for path, is_directory in children:
        if is_directory:
            yield from _remove_content(path)
        try:
            if is_directory:
                path.rmdir()
            else:
                path.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            yield error
        else:
            yield path


class TrashEmptier:
    """Helper thread of shard 0 that empties the trash at a bounded rate. Owns no partition."""

    def __init__(self, trash: Path, report: Callable[[str], None], steps_per_s: int = STEPS_PER_S) -> None:
        """`report` gets one sentence for each run in which names could not be removed (called on the helper thread)."""
        self._trash = trash
        self._report = report
        self._pause_s = 1 / steps_per_s
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trash", daemon=True)

    def start(self) -> None:
        """Starts the thread; what an earlier process has left goes first. The directory is made now: on a full disk it
        could not be made when it is needed."""
        with contextlib.suppress(OSError):
            self._trash.mkdir(parents=True, exist_ok=True)
        self._wake.set()
        self._thread.start()

    def wake(self) -> None:
        """Something was moved to the trash."""
        self._wake.set()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Ends the thread after the step it is in; the rest stays for the next start."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(LOOK_INTERVAL_S)  # segments come without a word: any shard moves its own
            self._wake.clear()
            errors: list[OSError] = []
            for step in empty_trash(self._trash):
                if isinstance(step, OSError):
                    errors.append(step)
                if self._stop.wait(self._pause_s):
                    return
            if errors:
                self._report(f"{len(errors)} names in {self._trash} cannot be removed, the first: {errors[0]}")
