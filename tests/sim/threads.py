"""Helper threads whose every disk call is a step of the simulator.

A job runs in a real thread, but only while the loop waits for it: it gets the baton, runs to its next disk call
(`Lanes.park`), gives the baton back and goes on when the seed says. So appends, snapshots and loads of several shards
interleave call by call, and in the same way for the same seed. Handing over is what a run costs most: seeds without it
(`interleaved` false) run a whole job as one step.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

from shardd.runtime.threads import UnwantedError
from tests.sim.loop import Process, ProcessKilled

STEP_S = 0.0004  # longest time between two disk calls
LANES = 2
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Runner:
    """A real thread that is used again and again."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        self.back = threading.Semaphore(0)
        self.work: Callable[[], None] | None = None
        threading.Thread(target=self._run, daemon=True, name="sim helper").start()

    def _run(self) -> None:
        while True:
            self.go.acquire()
            assert self.work is not None
            self.work()
            self.work = None
            self.back.release()


_idle: list[_Runner] = []
_here = threading.local()


class SimThreads:
    """The helper threads of one process (`shardd.runtime.threads.Threads`)."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, process: Process, rng: random.Random, *, interleaved: bool
    ) -> None:
        self._loop = loop
        self._process = process
        self._rng = rng
        self._interleaved = interleaved
        self._room = asyncio.Semaphore(LANES)
        self._parked: set[_Runner] = set()
        process.on_kill.append(self._killed)

    async def run(self, function: Callable[[*Ts], T], *arguments: *Ts, wanted: Callable[[], bool] | None = None) -> T:
        async with self._room:
            if wanted is not None and not wanted():
                raise UnwantedError
            if not self._interleaved:
                await asyncio.sleep(self._rng.random() * STEP_S)
                return function(*arguments)
            runner = _idle.pop() if _idle else _Runner()
            finished: asyncio.Future[None] = self._loop.create_future()
            outcome: dict[str, Any] = {}

            def work() -> None:
                _here.job = self, runner
                try:
                    outcome["value"] = function(*arguments)
                except BaseException as error:
                    outcome["error"] = error
                finally:
                    _here.job = None

            runner.work = work
            self._parked.add(runner)
            self._later(runner, finished)
            await asyncio.shield(finished)
            if "error" in outcome:
                raise outcome["error"]
            value: T = outcome["value"]
            return value

    def _later(self, runner: _Runner, finished: asyncio.Future[None]) -> None:
        delay = self._rng.random() * STEP_S
        self._process.context.run(self._loop.call_later, delay, self._step, runner, finished)

    def _step(self, runner: _Runner, finished: asyncio.Future[None]) -> None:
        if runner not in self._parked:
            return
        self._hand_over(runner)
        if runner.work is None:
            if not finished.done():
                finished.set_result(None)
        elif self._process.alive:
            self._later(runner, finished)
        if not self._process.alive:
            self._killed()

    def _hand_over(self, runner: _Runner) -> None:
        self._parked.discard(runner)
        runner.go.release()
        runner.back.acquire()
        if runner.work is None:
            _idle.append(runner)
        else:
            self._parked.add(runner)

    def _killed(self) -> None:
        """Jobs of a dead process end: every disk call that they still make raises ProcessKilled."""
        if getattr(_here, "job", None) is not None:
            return  # it dies inside one of its own jobs: `_step` does it
        while self._parked:
            self._hand_over(min(self._parked, key=id))


def park(process: Process) -> None:
    """Called at every disk call: lets others run when this is a helper thread. Raises ProcessKilled."""
    job = getattr(_here, "job", None)
    if job is not None and process.alive:
        _, runner = job
        runner.back.release()
        runner.go.acquire()
    if not process.alive:
        raise ProcessKilled
