"""Time and chance, as seams: a simulator has its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol

RandomBits = Callable[[int], int]  # so many random bits


def random_bits(count: int) -> int:
    """Of the kernel. `secrets` would bring its own generators, which no worker needs."""
    return int.from_bytes(os.urandom((count + 7) // 8)) >> -count % 8


class Clock(Protocol):
    def now_us(self) -> int:
        """Microseconds since the epoch."""
        ...


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1000
