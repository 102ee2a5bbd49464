"""Tells when the supervisor itself waits for the device: a start or a stop that seems to do nothing says why."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Final

from shardd.server.standstill import ThreadSample
from shardd.server.thread_samples import read_thread

LOOK_INTERVAL_S: Final = 0.5
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def told_when_stuck() -> Iterator[None]:
    """One line at the begin and the end of each wait of the calling thread for a file that outlasts two looks."""
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(threading.get_native_id(), over), name="stuck", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(thread: int, over: threading.Event) -> None:
    before: ThreadSample | None = None
    since: float | None = None
    while not over.wait(LOOK_INTERVAL_S):
        try:
            now = read_thread(thread)
        except (OSError, ValueError, IndexError):
            return  # /proc does not tell
        stuck = before is not None and now.waits_for_file and before.waits_for_file and now.runs == before.runs
        if stuck and since is None:
            since = time.monotonic() - LOOK_INTERVAL_S
            _log.warning(
                "process %d waits for the device (in %s) and goes on when it answers", os.getpid(), now.waits_in
            )
        elif not stuck and since is not None:
            _log.warning("the device answers again after %.1f s", time.monotonic() - since)
            since = None
        before = now
