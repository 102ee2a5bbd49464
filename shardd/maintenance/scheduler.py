"""Runs the jobs in the background of one worker: when they are due, at their pace, and never beside a stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

from shardd.maintenance.job import Job, JobThread, Turn
from shardd.maintenance.loop_load import LoopLoad
from shardd.runtime.helper_threads import HelperThreads
from shardd.runtime.slices import Slices
from shardd.runtime.threads import Threads
from shardd.runtime.throttle import StoppedError, Throttle

STOP_S: Final = 0.1  # from the word to stop to the end of every job that is between two steps
RETRY_S: Final = 5.0  # after a run that has failed; twice as long after each further one
RETRY_MAX_S: Final = 600.0
LOOK_INTERVAL_S: Final = 0.25  # between two looks at the load, while a job runs that gives way
HELD_LOOKS_MAX: Final = 4  # without a pause; then it goes on until the next look, whatever the load

_log = logging.getLogger(__name__)


class ClosableThreads(Threads, Protocol):
    """Threads with an end."""

    async def close(self) -> None: ...


def _helper_threads(thread: JobThread) -> ClosableThreads:
    return HelperThreads(1, thread.name, nice=thread.nice)


class _Entry:
    """A job with its figures. `failures`: of the last runs, one after the other."""

    def __init__(self, job: Job, turn: Turn, now_s: float) -> None:
        self.job = job
        self.turn = turn
        self.woken = asyncio.Event()
        self.runs = self.errors = self.failures = 0
        self.running = False
        self.since_s = now_s  # it runs, or waits for its next run
        self.ran_s = 0.0

    def change(self, now_s: float, *, running: bool) -> None:
        if self.running:
            self.ran_s += now_s - self.since_s
        self.running, self.since_s = running, now_s

    def counters(self, now_s: float) -> dict[str, int]:
        ran_s = self.ran_s + (now_s - self.since_s if self.running else 0.0)
        throttle = self.turn.throttle
        figures = {
            "runs": self.runs,
            "steps": throttle.steps,
            "busy_ms": max(0, round((ran_s - throttle.rested_s) * 1000)),
            "errors": self.errors,
        }
        return figures | {"bytes": throttle.units} if self.job.unit == "bytes" else figures

    def gauges(self, now_s: float) -> dict[str, int]:
        since_ms = round((now_s - self.since_s) * 1000)
        return {
            "running": int(self.running),
            "running_ms": since_ms if self.running else 0,
            "waiting_ms": 0 if self.running else since_ms,
            "held": int(self.running and self.turn.throttle.held),
            "failing": self.failures,
            "left": self.job.left() if self.job.left is not None else 0,
        }


class JobScheduler:
    """Made and used on the loop thread. `stands_still`: whether the device of this worker does not answer now."""

    def __init__(
        self,
        stands_still: Callable[[], bool] = lambda: False,
        threads: Callable[[JobThread], ClosableThreads] = _helper_threads,
        load: Callable[[], LoopLoad] = LoopLoad,
    ) -> None:
        self._stands_still = stands_still
        self._make_threads = threads
        self._make_load = load
        self._loop = asyncio.get_running_loop()
        self._slices = Slices()
        self._entries: dict[str, _Entry] = {}
        self._threads: dict[JobThread, ClosableThreads] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._state = "new"

    def add(self, job: Job) -> Callable[[], None]:
        """Registers a job, before or after the start; what is returned wakes it. ValueError for one that cannot be."""
        if job.name in self._entries:
            raise ValueError(f"there is a job {job.name} already")
        if job.thread is None and (job.per_second or job.gives_way is not None):
            raise ValueError(f"the job {job.name} would rest on the loop")
        entry = _Entry(job, Turn(Throttle(job.per_second), self._slices, lambda: self._thread(job)), self._loop.time())
        self._entries[job.name] = entry
        if self._state == "started":
            self._begin(entry)
        return entry.woken.set

    def start(self) -> None:
        """From now on jobs run."""
        self._state = "started"
        for entry in self._entries.values():
            self._begin(entry)

    async def stop(self) -> None:
        """No job runs any more. A helper thread may still be in its last step: `close` waits for it."""
        self._state = "stopped"
        for entry in self._entries.values():
            entry.turn.throttle.stop()
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=STOP_S)
        late = [name for name, task in self._tasks.items() if not task.done()]
        if late:
            _log.warning("jobs that do not end within %.1f s: %s", STOP_S, ", ".join(late))

    async def close(self) -> None:
        """After `stop`: the helper threads end."""
        await asyncio.gather(*(threads.close() for threads in self._threads.values()))

    # ---- figures ----

    def counters(self) -> dict[str, int]:
        """`<job>.<figure>`: runs, steps, bytes, milliseconds at work without the rests, runs that have failed."""
        now_s = self._loop.time()
        return {f"{name}.{key}": value for name, entry in self._entries.items() for key, value in
                entry.counters(now_s).items()}  # fmt: skip

    def gauges(self) -> dict[str, int]:
        """`<job>.<figure>`: whether and for how long it runs or waits, whether it is held, how many runs in a row have
        failed, what is left to do."""
        now_s = self._loop.time()
        return {f"{name}.{key}": value for name, entry in self._entries.items() for key, value in
                entry.gauges(now_s).items()}  # fmt: skip

    # ---- life of a job ----

    def _thread(self, job: Job) -> ClosableThreads:
        if job.thread is None:
            raise RuntimeError(f"the job {job.name} has no thread")
        if self._state == "stopped":
            raise StoppedError
        if job.thread not in self._threads:
            self._threads[job.thread] = self._make_threads(job.thread)
        return self._threads[job.thread]

    def _begin(self, entry: _Entry) -> None:
        self._tasks[entry.job.name] = self._loop.create_task(self._live(entry), name=f"job {entry.job.name}")

    async def _live(self, entry: _Entry) -> None:
        due_s = entry.job.first_s
        while True:
            if entry.failures:  # what fails again and again is not to be hastened
                await asyncio.sleep(min(RETRY_S * 2 ** (entry.failures - 1), RETRY_MAX_S))
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(due_s):
                        await entry.woken.wait()
            entry.woken.clear()
            entry.change(self._loop.time(), running=True)
            try:
                async with self._giving_way(entry):
                    due_s = await entry.job.work(entry.turn)
                entry.runs, entry.failures = entry.runs + 1, 0
            except StoppedError:
                return
            except Exception:
                entry.errors, entry.failures = entry.errors + 1, min(entry.failures + 1, 16)
                _log.exception("the job %s has failed; it is tried again", entry.job.name)
            finally:
                entry.change(self._loop.time(), running=False)
            due_s = entry.job.interval_s if due_s is None else due_s

    @contextlib.asynccontextmanager
    async def _giving_way(self, entry: _Entry) -> AsyncIterator[None]:
        if entry.job.gives_way is None:
            yield
            return
        holding = self._hold(entry.turn.throttle, entry.job.gives_way)
        watch = self._loop.create_task(holding, name=f"load beside {entry.job.name}")
        try:
            yield
        finally:
            watch.cancel()
            entry.turn.throttle.go_on()

    async def _hold(self, throttle: Throttle, gives_way: Callable[[], bool]) -> None:
        load, looks = self._make_load(), 0
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            busy, still = load.is_high() and gives_way(), self._stands_still()
            if still or (busy and looks < HELD_LOOKS_MAX):
                looks += 1
                throttle.hold()
            else:
                looks = 0
                throttle.go_on()
