"""Time and chance, as seams: a simulator has its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

RandomBits = Callable[[int], int]  # so many random bits


class Clock(Protocol):
    def now_us(self) -> int:
        """Microseconds since the epoch."""
        ...


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1000
