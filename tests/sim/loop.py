"""An event loop with virtual time and processes that can die between any two of its steps.

Nothing sleeps: when no callback is ready the clock jumps to the next timer. Timers of the same moment come in the
order of the seed. Whatever is started inside `Process.context` belongs to that process (tasks, timers and futures
inherit it); after `kill` none of it runs again, as after SIGKILL: no `finally`, no last word.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

START_S = 1_000.0  # virtual time at which every run begins
TIE_S = 1e-6  # timers move by up to so much
_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
T = TypeVar("T")


class ProcessKilled(BaseException):
    """Raised inside a process at the call during which it dies; no `except Exception` stops it."""


class DeadlockError(Exception):
    """Nothing can ever happen again."""


class Process:
    """What lives and dies together. `incarnation` tells apart the processes of one shard."""

    def __init__(self, name: str, incarnation: int) -> None:
        self.name = name
        self.incarnation = incarnation
        self.alive = True
        self.paused = False
        self.backlog: deque[asyncio.Handle] = deque()
        self.on_kill: list[Callable[[], None]] = []
        self.tasks: list[asyncio.Task[Any]] = []  # a dead one's tasks are kept: collecting them would run `finally`
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)

    def spawn(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of this process, whoever calls."""
        return self.context.run(loop.create_task, work)

    def kill(self) -> None:
        if self.alive:
            self.alive = False
            self.backlog.clear()
            for call in self.on_kill:
                call()


def current_process() -> Process | None:
    return _process.get()


class SimLoop(asyncio.BaseEventLoop):
    """`steps` counts callbacks."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = random.Random(f"loop {seed}")
        self._now = START_S
        self.steps = 0
        self.after_step: Callable[[], None] = lambda: None
        self.set_task_factory(_make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        return self._now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return super().call_at(when + self._rng.random() * TIE_S, callback, *args, context=context)

    def resume(self, process: Process) -> None:
        """Lets a paused process go on with everything that came meanwhile."""
        process.paused = False
        self._ready.extend(process.backlog)  # type: ignore[attr-defined]
        process.backlog.clear()

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        while True:
            if ready:
                handle = ready.popleft()
            elif scheduled:
                handle = heapq.heappop(scheduled)
                handle._scheduled = False
                if not handle._cancelled:
                    self._now = max(self._now, handle._when)
            else:
                raise DeadlockError("nothing is left that could ever happen")
            if handle._cancelled:
                continue
            process = handle._context.get(_process)
            if process is None or (process.alive and not process.paused):
                break
            if process.alive:
                process.backlog.append(handle)
        self.steps += 1
        handle._run()
        self.after_step()

    def _process_events(self, event_list: Any) -> None:
        """There are no descriptors."""

    def _write_to_self(self) -> None:
        """Nobody else could wake this loop."""


def _make_task(loop: SimLoop, work: Any, context: contextvars.Context | None = None) -> asyncio.Task[Any]:
    task = asyncio.Task(work, loop=loop, context=context)
    process = _process.get()
    if process is not None:
        tasks = process.tasks
        tasks.append(task)
        if len(tasks) > 256:
            process.tasks = [each for each in tasks if not each.done()]
    return task
