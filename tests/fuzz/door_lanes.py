"""What a door is to its fuzzer, and lanes beside each other until so many inputs were sent. The door is looked at
behind each step, and a well-behaved client asks beside the lanes all the time."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar, Final, Self

import psutil

from tests.fuzz.door_watch import DoorWatch
from tests.fuzz.lanes import FindingError
from tests.support.doors import serving_door
from tests.support.server import Server

BESIDE_EVERY_S: Final = 0.1
BESIDE_MAX_S: Final = 60.0  # an answer to the well-behaved client; lanes and server share its CPUs
SERVED: Final = "beside: answers"
MOST: Final = "most"  # in the name of a count that is no sum
LONGEST: Final = f"beside: {MOST} ms"


class FuzzedDoor(ABC):
    """A door of a server of its own, which runs inside this context. `lanes`: connections, or groups of them.
    `growth_max_bytes`: of the door's process, `workers_growth_max_bytes`: of all workers."""

    process_name: ClassVar[str]
    lanes: ClassVar[int]
    growth_max_bytes: ClassVar[int] = 256 << 20
    workers_growth_max_bytes: ClassVar[int] = 1 << 30

    def __init__(self, server: Server) -> None:
        self.server = server

    def __enter__(self) -> Self:
        self.server.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.__exit__(kind, error, trace)

    def process(self) -> psutil.Process:
        return serving_door(self.server, self.process_name)

    def watch(self) -> DoorWatch:
        return DoorWatch(self.server, self.process(), self.growth_max_bytes, self.workers_growth_max_bytes)

    @abstractmethod
    def prepare(self) -> None:
        """Makes anew what inputs name. No lane is at work; the call blocks."""

    @abstractmethod
    async def lane(self, number: int, seed: str, work: Work) -> None:
        """Sends inputs until the work is over. FindingError."""

    @abstractmethod
    async def ask(self) -> None:
        """A request of a well-behaved client on a new connection. Any error means that the door does not serve it."""


class Work:
    """What all lanes of a round share. `sent` raises a FindingError."""

    def __init__(self, inputs: int, watch: DoorWatch, progress: Callable[[int], None]) -> None:
        self.done = 0
        self.counts = Counter[str]()
        self._inputs, self._watch, self._progress = inputs, watch, progress

    @property
    def is_over(self) -> bool:
        return self.done >= self._inputs

    def sent(self, inputs: int) -> None:
        self.done += inputs
        self._watch.check()
        self._progress(self.done)

    async def run(self, door: FuzzedDoor, seed: str) -> Counter[str]:
        """How often each answer came. FindingError: the first one."""
        try:
            async with asyncio.TaskGroup() as beside:
                asking = beside.create_task(self._ask(door))
                async with asyncio.TaskGroup() as lanes:
                    for number in range(door.lanes):
                        lanes.create_task(door.lane(number, f"{seed} {number}", self))
                asking.cancel()
        except* FindingError as group:
            raise _first_of(group) from None
        self._watch.look()
        self.counts["inputs"] = self.done
        for name, grown in self._watch.grown_most_bytes.items():
            self.counts[f"{name}: {MOST} MiB grown"] = grown >> 20
        return self.counts

    async def _ask(self, door: FuzzedDoor) -> None:
        while True:
            began_s = time.monotonic()
            try:
                async with asyncio.timeout(BESIDE_MAX_S):
                    await door.ask()
            except Exception as error:
                raise FindingError(f"a well-behaved client is not served beside the inputs: {error!r}") from error
            took_ms = round((time.monotonic() - began_s) * 1000)
            self.counts[SERVED] += 1
            self.counts[LONGEST] = max(self.counts[LONGEST], took_ms)
            await asyncio.sleep(BESIDE_EVERY_S)


def _first_of(group: BaseExceptionGroup[FindingError]) -> FindingError:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first
