"""The figures of one worker, from everything that counts in it. Counting happens where the work is done; a figure is
read only when somebody asks. Lives on the loop thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec

Read = Callable[[], dict[str, int]]
_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = 4096
# what Engine.counters() holds beside counters
_ENGINE_GAUGES: Final = frozenset(
    {"connections", "pool_used_bytes", "pool_capacity_bytes", "pool_resident_bytes", "routes", "partitions",
     "syncs_running"}
)  # fmt: skip


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


class Metrics:
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


def process_counters() -> dict[str, int]:
    """CPU time of this process in microseconds, helper threads included; `loop`: of the calling thread."""
    return {"cpu_us": time.process_time_ns() // 1000, "loop_cpu_us": time.thread_time_ns() // 1000}


def process_gauges() -> dict[str, int]:
    return {"resident_bytes": int(_STATM.read_text().split()[1]) * _PAGE_BYTES}
