"""Lanes beside each other until so many inputs were sent; the door is looked at behind each step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from tests.fuzz.door_watch import DoorWatch
from tests.fuzz.lanes import FindingError


class Work:
    """What all lanes of a run share. `sent` raises a FindingError."""

    def __init__(self, inputs: int, watch: DoorWatch, progress: Callable[[int], None]) -> None:
        self.done = 0
        self._inputs, self._watch, self._progress = inputs, watch, progress

    @property
    def is_over(self) -> bool:
        return self.done >= self._inputs

    def sent(self, inputs: int) -> None:
        self.done += inputs
        self._watch.check()
        self._progress(self.done)

    async def run(self, lanes: int, lane: Callable[[int], Coroutine[None, None, None]]) -> None:
        """`lane` gets its number, and ends when the work is over. FindingError: the first one."""
        try:
            async with asyncio.TaskGroup() as beside:
                for number in range(lanes):
                    beside.create_task(lane(number))
        except* FindingError as group:
            raise group.exceptions[0] from None
        self._watch.look()
