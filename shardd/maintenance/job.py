"""What a job in the background is, and what it gets to work with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar, TypeVarTuple

import msgspec

from shardd.runtime.slices import Slices
from shardd.runtime.threads import Threads
from shardd.runtime.throttle import Throttle

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class JobThread(msgspec.Struct, frozen=True):
    """A helper thread for jobs, made when it is first needed. Jobs that name the same one wait for each other."""

    name: str
    nice: int = 0  # added to the priority of the worker: the thread computes on the CPU of the loop


class Turn:
    """What one job works with, in all of its runs."""

    def __init__(self, throttle: Throttle, slices: Slices, thread: Callable[[], Threads]) -> None:
        self.throttle = throttle
        self._slices = slices
        self._thread = thread

    async def beside(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """What the function returns or raises, called in the helper thread of the job. What takes longer than 0.1 s
        gets `throttle` and calls its `spend` between two steps."""
        return await self._thread().run(function, *arguments)

    async def on_loop(self, steps: Iterable[object]) -> None:
        """Takes every step on the loop; all jobs together get a millisecond of each of its turns."""
        await self._slices.run(self._counted(steps))

    def _counted(self, steps: Iterable[object]) -> Iterable[object]:
        for each in steps:
            self.throttle.count()
            yield each


Work = Callable[[Turn], Awaitable[float | None]]


class Job(msgspec.Struct, frozen=True):
    """A kind of work in the background of a worker.

    `work` is one run, on the loop: all that there is to do now. It returns after how many seconds the next one is due;
    None: after `interval_s`, and without one only when the job is woken. It is cancelled when the worker stops.
    """

    name: str
    work: Work
    interval_s: float | None = None  # from the end of a run to the next one
    first_s: float | None = 0.0  # from the start to the first run; None: when it is woken
    thread: JobThread | None = None
    per_second: int = 0  # units that its throttle allows, 0: no limit
    unit: str = "steps"  # or "bytes"
    # Held while the loop has no time to spare, as long as this says so, or while the device does not answer.
    gives_way: Callable[[], bool] | None = None
    left: Callable[[], int] | None = None  # what it has to do yet, in its own measure: segments, files
