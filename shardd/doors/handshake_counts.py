"""Handshakes of a process of a door, told to a worker now and then: they are among its figures
(docs/extensions.md#get-metrics), by the names that those of the engine have there."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Final

from shardd.doors.door import Door
from shardd.doors.links import WorkerLostError
from shardd.protocol.door_figures import TellHandshakes
from shardd.protocol.errors import ShardError

INTERVAL_S: Final = 1.0
_SHARD: Final = 0  # one of them: sums over shards stay right
_COUNTED: Final = ("begun", "handshakes", "resumed", "failed", "refused")


class HandshakeCounts:
    """Since the process began. `failed`: connections that ended before their handshake was over; `refused`: those for
    which none began, as there were too many."""

    __slots__ = _COUNTED

    def __init__(self) -> None:
        self.begun = self.handshakes = self.resumed = self.failed = self.refused = 0

    def values(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in _COUNTED}


async def tell_handshakes(door: Door, task: str, counts: HandshakeCounts, waiting: Callable[[], int]) -> None:
    """Until it is cancelled. What could not be told is told the next time. `waiting()`: steps that wait for a turn."""
    told, told_waiting = HandshakeCounts().values(), 0
    while True:
        await asyncio.sleep(INTERVAL_S)
        now, waits = counts.values(), waiting()
        if now != told or waits or told_waiting:
            more = {name: now[name] - told[name] for name in _COUNTED}
            with contextlib.suppress(ShardError, WorkerLostError):
                await door.task(task, TellHandshakes(os.getpid(), waits, **more), shard=_SHARD)
                told, told_waiting = now, waits
