"""Garbage collection in pieces (docs/adr/0038-bounded-steps.md).

The collector of Python stops the loop of a worker, or of a door, while it looks at everything that there is: 0.15 s
with 100,000 partitions. Here it looks at what is new, 10,000 objects at most, and never again at what it has left
alive: that is frozen. Objects that are no cycle go as ever, frozen or not. Cycles that became garbage after they were
frozen are looked for when Python has twice as much as after the last time.
"""

from __future__ import annotations

import asyncio
import gc
import math
import sys
import time
from typing import Final

THRESHOLDS: Final = (700, 3, 1)  # new objects; collections of the youngest, and of the middle ones, before the next
GROWTH: Final = 2
GROWTH_BLOCKS_MIN: Final = 1_000_000  # of Python's allocator: about 100 MB
_OLDEST: Final = 2


class Collector:
    """One in a process, from `start` on. `growth_blocks_min`: so many more there may be before all is looked at.
    `all_after_s`: all is looked at once in that time, too, since a block counts as one, however many bytes it has."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        growth_blocks_min: int | None = None,
        all_after_s: float = math.inf,
    ) -> None:
        self._loop = loop
        self._all_after_s = all_after_s
        self._all_at_s = math.inf
        self._growth_blocks_min = GROWTH_BLOCKS_MIN if growth_blocks_min is None else growth_blocks_min
        self._blocks_max = 0
        self._asked = False

    def start(self) -> None:
        """Everything that the process needs to serve is there."""
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._collected)
        self._settle()  # what is frozen already stays so: modules

    def stop(self) -> None:
        gc.callbacks.remove(self._collected)
        gc.unfreeze()

    def _collect_all(self) -> None:
        self._asked = False
        gc.unfreeze()
        self._settle()

    def _settle(self) -> None:
        gc.collect()
        gc.freeze()
        gc.collect()  # of next to nothing: the collector waits for a quarter more than it saw the last time
        blocks = sys.getallocatedblocks()
        self._blocks_max = blocks + max((GROWTH - 1) * blocks, self._growth_blocks_min)
        self._all_at_s = time.monotonic() + self._all_after_s

    def _collected(self, phase: str, facts: dict[str, int]) -> None:
        """In whichever thread needed room."""
        if phase != "stop" or facts["generation"] != _OLDEST:
            return
        gc.freeze()
        if self._asked or not self._blocks_max:
            return
        if sys.getallocatedblocks() > self._blocks_max or time.monotonic() >= self._all_at_s:
            self._asked = True
            self._loop.call_soon_threadsafe(self._collect_all)
