"""The figures of one worker, from everything that counts in it. Counting happens where the work is done; a figure is
read only when somebody asks. Lives on the loop thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from shardd.runtime.control_messages import Stalls
from shardd.runtime.patience import Patience

Read = Callable[[], dict[str, int]]
_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = 4096
# what Engine.counters() holds beside counters
_ENGINE_GAUGES: Final = frozenset(
    {"connections", "pool_used_bytes", "pool_capacity_bytes", "pool_resident_bytes", "routes", "partitions",
     "syncs_running"}
)  # fmt: skip


STALL_CAUSES: Final = ("device", "cpu")


class EngineFigures(Protocol):
    """The part of the engine that is read here."""

    def counters(self) -> dict[str, int]: ...
    def gauges(self) -> dict[str, int]: ...


class ShardFigures(msgspec.Struct, array_like=True, frozen=True):
    """One worker at one moment, as it travels over the bus. `clock_us`: monotonic, for rates between two answers.

    `generation`: counts the starts of the shard's workers, whose counters begin at 0.
    """

    shard: int
    generation: int
    clock_us: int
    counters: dict[str, int]
    gauges: dict[str, int]
    latency: list[int]


class MetricRegistry:
    """Names are `<source>.<figure>`. Counters only grow while the worker lives; gauges are what there is now."""

    def __init__(self, latency: Callable[[], list[int]] = list) -> None:
        self._latency = latency
        self._counters: dict[str, Read] = {}
        self._gauges: dict[str, Read] = {}

    def add(self, source: str, gauges: Read | None = None, counters: Read | None = None) -> None:
        if gauges is not None:
            self._gauges[source] = gauges
        if counters is not None:
            self._counters[source] = counters

    def add_engine(self, engine: EngineFigures) -> None:
        def gauges() -> dict[str, int]:
            figures = engine.counters()
            return {name: figures[name] for name in figures if name in _ENGINE_GAUGES} | engine.gauges()

        def counters() -> dict[str, int]:
            return {name: value for name, value in engine.counters().items() if name not in _ENGINE_GAUGES}

        self.add("engine", gauges, counters)

    def read(self, shard: int, generation: int) -> ShardFigures:
        return ShardFigures(
            shard,
            generation,
            time.monotonic_ns() // 1000,
            _collect(self._counters),
            _collect(self._gauges),
            self._latency(),
        )


def _collect(sources: dict[str, Read]) -> dict[str, int]:
    return {f"{source}.{name}": value for source, read in sources.items() for name, value in read().items()}


class StallFigures:
    """How often and how long this shard stood still, and whether it does now; the supervisor tells it."""

    def __init__(self, shard: int, patience: Patience) -> None:
        self._shard = shard
        self._patience = patience
        self._told = Stalls([], {}, {})

    def follow(self, told: Stalls) -> None:
        self._told = told
        self._patience.follow({each.shard: each for each in told.standing})

    def stands_still(self) -> bool:
        return self._shard in self._patience.standing

    def counters(self) -> dict[str, int]:
        times, total_ms = self._told.times, self._told.total_ms
        return {
            name: value
            for cause in STALL_CAUSES
            for name, value in ((cause, times.get(cause, 0)), (f"{cause}_ms", total_ms.get(cause, 0)))
        }

    def gauges(self) -> dict[str, int]:
        now_us = time.monotonic_ns() // 1000
        since_us = {each.cause: each.since_us for each in self._told.standing if each.shard == self._shard}
        return {f"{cause}_now_ms": (now_us - since_us.get(cause, now_us)) // 1000 for cause in STALL_CAUSES}


def process_counters() -> dict[str, int]:
    """CPU time of this process in microseconds, helper threads included; `loop`: of the calling thread."""
    return {"cpu_us": time.process_time_ns() // 1000, "loop_cpu_us": time.thread_time_ns() // 1000}


def process_gauges() -> dict[str, int]:
    return {"resident_bytes": int(_STATM.read_text().split()[1]) * _PAGE_BYTES}
