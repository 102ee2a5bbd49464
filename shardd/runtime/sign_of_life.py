"""A door's sign of life: a thread tells how far the loop has come. So a turn that takes long is not taken for the end
of all turns, and a loop that stands still cannot hide behind a thread that runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from shardd.runtime.bounded_loop import Progress
from shardd.runtime.control_messages import HEARTBEAT_INTERVAL_MS


class SignOfLife(threading.Thread):
    """`tell` is called with the loop's progress, in this thread, from `start` on."""

    def __init__(self, progress: Progress, tell: Callable[[int], None]) -> None:
        super().__init__(name="sign of life", daemon=True)
        self._progress = progress
        self._tell = tell
        self._ending = threading.Event()

    def run(self) -> None:
        self._tell(self._progress.count)
        while not self._ending.wait(HEARTBEAT_INTERVAL_MS / 1000):
            self._tell(self._progress.count)

    def end(self) -> None:
        self._ending.set()
        self.join()
