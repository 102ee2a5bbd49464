"""How much of its time the loop of a worker needs, as jobs see it that give way."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

HIGH: Final = 0.75  # of the time, computing or waiting for its CPU
_SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")  # nanoseconds on a CPU, nanoseconds ready without one, ...


class LoopLoad:
    """On the loop thread; counts from its making on."""

    def __init__(self) -> None:
        self._looked_ns, self._needed_ns = time.monotonic_ns(), _needed_ns()

    def is_high(self) -> bool:
        """Since the last look."""
        now_ns, needed_ns = time.monotonic_ns(), _needed_ns()
        passed_ns, used_ns = now_ns - self._looked_ns, needed_ns - self._needed_ns
        self._looked_ns, self._needed_ns = now_ns, needed_ns
        return used_ns >= HIGH * passed_ns


def _needed_ns() -> int:
    """On a CPU or ready for one; where the kernel does not tell, the first alone."""
    try:
        computed, waited = _SCHEDSTAT.read_text().split()[:2]
        return int(computed) + int(waited)
    except (OSError, ValueError):
        return time.thread_time_ns()
