"""Long computations on the loop of a worker, in slices: however many requests ask for one at the same time, together
they get one slice in each turn of the loop. Heartbeats, sends and polls go on beside them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from shardd.runtime.fair_turns import FairTurns
from shardd.runtime.threads import UnwantedError

SLICE_MS: Final = 1.0
T = TypeVar("T")


class Slices:
    """One for each kind of work of a worker, used on its loop thread. One computation after the other: the memory that
    they need until they are done is that of one. Those that wait take turns by `path` (FairTurns), which is of one
    length for all computations of one kind."""

    def __init__(self) -> None:
        self._turn = FairTurns(1)
        self._used_s = 0.0  # in this turn of the loop

    async def run(
        self, steps: Iterable[object], wanted: Callable[[], bool] | None = None, path: Sequence[str] = ()
    ) -> None:
        """Takes every step; one alone should be far below a slice. `wanted` is asked before each slice but one that
        begins at once: `UnwantedError` when it says no.
        """
        loop, work = asyncio.get_running_loop(), iter(steps)
        waited = self._turn.is_busy
        async with self._turn.turn(path):
            while True:
                if self._used_s >= SLICE_MS / 1000:
                    await asyncio.sleep(0)  # behind `_next_turn`
                    waited = True
                if waited and wanted is not None and not wanted():
                    raise UnwantedError
                if self._take(work, loop):
                    return

    async def call(self, function: Callable[[], T], path: Sequence[str] = ()) -> T:
        """What `function()` returns or raises; as one step, in its turn."""
        made: list[T] = []

        def step() -> Iterator[None]:
            made.append(function())
            yield

        await self.run(step(), path=path)
        return made[0]

    def _take(self, work: Iterator[object], loop: asyncio.AbstractEventLoop) -> bool:
        """True when there is nothing left to do."""
        if not self._used_s:
            loop.call_soon(self._next_turn)
        began, before = loop.time(), self._used_s
        try:
            for _ in work:
                self._used_s = before + loop.time() - began
                if self._used_s >= SLICE_MS / 1000:
                    return False
            return True
        finally:
            self._used_s = before + loop.time() - began

    def _next_turn(self) -> None:
        self._used_s = 0.0
