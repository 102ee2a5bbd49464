"""How long the steps of a worker's loop compute (docs/adr/0038-bounded-steps.md). A step is what runs on the loop
thread without a turn for the others: one callback of asyncio, such as a request up to its next `await`, the events of
one turn, or a pass of the engine inside one. The rule: 10 ms of its CPU time at most, garbage collection included.

The wall clock is read at every step, the CPU time of the thread, which costs six times as much, only when a
millisecond has passed since it was read last. So a step is taken for a millisecond longer than it was at most, and one
that took less is seen only with `exact`.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import threading
from collections import Counter
from collections.abc import Mapping
from time import perf_counter_ns, thread_time_ns
from typing import Final

_log = logging.getLogger(__name__)

LIMIT_MS: Final = 10
LOOK_NS: Final = 1_000_000
NAMES_MAX: Final = 300  # commands, methods of the bus, jobs and callbacks have fewer
GARBAGE: Final = "garbage collection"
ENGINE_TURN: Final = "engine turn"
OTHERS: Final = "others"
EXIT_STATUS: Final = 3  # of a worker that breaks the rule in a battery
# for test programs: the limit in milliseconds at which the worker ends; 0: every step is measured, none ends it
LIMIT_VARIABLE: Final = "SHARDD_TEST_LOOP_LIMIT_MS"
_OLDEST: Final = 2  # generation of the collector that grows with what there is


class LoopWatch:
    """One for each loop, used on its thread. Counts from `start` on."""

    def __init__(self, *, exact: bool = False, fatal_ms: int = 0) -> None:
        self._look_ns = 0 if exact else LOOK_NS
        self._noted_ns = 0 if exact else LOOK_NS
        self._fatal_ns = fatal_ms * 1_000_000
        self._step: object = None
        self._thread = 0
        self._began_ns = self._read_ns = self._cpu_ns = self._collected_ns = self._collecting_ns = 0
        self._longest_ns: dict[str, int] = {}
        self._over: Counter[str] = Counter()

    def start(self) -> None:
        """What the worker did so far was for nobody."""
        self._look(perf_counter_ns())
        self._thread = threading.get_ident()
        gc.callbacks.append(self._collection)

    def stop(self) -> None:
        if self._thread:
            gc.callbacks.remove(self._collection)
            self._thread = 0

    def begin(self, step: object) -> None:
        """The step before has ended. `step`: a callback of asyncio, a list of events; None is not judged."""
        now_ns = perf_counter_ns()
        if now_ns - self._read_ns >= self._look_ns:
            self._look(now_ns)
        self._began_ns, self._step = now_ns, step

    def engine_turn(self, longest_us: int) -> None:
        """It measures itself (native/src/engine/turn_watch.h)."""
        if self._thread:
            self._note(ENGINE_TURN, longest_us * 1000)

    def _look(self, now_ns: int) -> None:
        cpu_ns = thread_time_ns()
        used_ns = min(cpu_ns - self._cpu_ns, now_ns - self._began_ns)
        collected_ns, self._collected_ns = self._collected_ns, 0
        self._cpu_ns, self._read_ns = cpu_ns, now_ns
        if used_ns >= self._noted_ns and self._thread and self._step is not None:
            self._note(GARBAGE if 2 * collected_ns > used_ns else step_name(self._step), used_ns)

    def _collection(self, phase: str, facts: dict[str, int]) -> None:
        """Of the collector, in whichever thread needed room: the loop stands still meanwhile."""
        if facts["generation"] != _OLDEST:
            return
        if phase == "start":
            self._collecting_ns = thread_time_ns()
            return
        used_ns = thread_time_ns() - self._collecting_ns
        if threading.get_ident() == self._thread:
            self._collected_ns += used_ns  # a part of the step that runs
        elif used_ns >= self._noted_ns:
            self._note(GARBAGE, used_ns)

    def _note(self, name: str, used_ns: int) -> None:
        if name not in self._longest_ns and len(self._longest_ns) >= NAMES_MAX:
            name = OTHERS
        longest_ns = self._longest_ns.get(name, 0)
        self._longest_ns[name] = max(longest_ns, used_ns)
        if used_ns < LIMIT_MS * 1_000_000:
            return
        self._over[name] += 1
        if used_ns > longest_ns:
            _log.warning("%s computed for %.1f ms at once; others waited", name, used_ns / 1e6)
        if 0 < self._fatal_ns <= used_ns:
            _log.critical("%s broke the rule of %d ms", name, self._fatal_ns // 1_000_000)
            logging.shutdown()
            os._exit(EXIT_STATUS)

    # ---- figures ----

    def counters(self) -> dict[str, int]:
        return {"over_limit": self._over.total()} | {f"{name}.over_limit": n for name, n in self._over.items()}

    def gauges(self) -> dict[str, int]:
        longest = {f"{name}.longest_us": ns // 1000 for name, ns in self._longest_ns.items()}
        return {"longest_us": max(longest.values(), default=0)} | longest


def watch_of(environment: Mapping[str, str]) -> LoopWatch:
    """As a test program wants it, and as ever without one."""
    wanted = environment.get(LIMIT_VARIABLE)
    return LoopWatch() if wanted is None else LoopWatch(exact=True, fatal_ms=int(wanted))


def step_name(step: object) -> str:
    """Tasks by their name, unless asyncio gave it, or by their coroutine; callbacks by their function; events by the
    kind that is there most often."""
    if isinstance(step, list):
        [(kind, _)] = Counter(type(each).__name__ for each in step).most_common(1)
        return kind
    while isinstance(step, functools.partial):
        step = step.func
    owner = getattr(step, "__self__", None)
    if isinstance(owner, asyncio.Task):
        name = owner.get_name()
        return getattr(owner.get_coro(), "__qualname__", name) if name.startswith("Task-") else name
    return getattr(step, "__qualname__", type(step).__name__)
