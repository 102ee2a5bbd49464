"""--follow: a pipeline goes on until SIGTERM, which ends it in order with its summary, or SIGINT."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def until_sigterm() -> Iterator[threading.Event]:
    """Set when the process is told to end. Of the main thread."""
    ended = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield ended
    finally:
        signal.signal(signal.SIGTERM, before)


def again_and_again(run: Callable[[], dict[str, Any]], interval_s: float) -> dict[str, Any]:
    """A run that is going on comes to its end. The last summary, with the rows of all runs."""
    rows = runs = 0
    with until_sigterm() as ended:
        while True:
            made = run()
            rows, runs = rows + made["rows"], runs + 1
            if ended.wait(interval_s):
                return {**made, "rows": rows, "runs": runs}
