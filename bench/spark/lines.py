"""What is measured: one `Line` for each row of the table. Ours and the reference do the same to the same rows."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Line:
    """`ours` and `reference` are names of works (bench/spark/works.py); `ratio_min` of their speeds."""

    name: str
    payload_bytes: int
    ours: str
    reference: str
    ratio_min: float


LINES: Final = (
    Line("sum-1024", 1024, "cold-sum", "parquet-sum", 1.1),
    Line("sum-value-1024", 1024, "cold-sum-value", "parquet-sum", 0.9),
    Line("all-1024", 1024, "cold-all", "parquet-all", 0.8),
    Line("live-1024", 1024, "live-sum", "cold-sum", 0.8),
    Line("archive-1024", 1024, "archive", "spark-writer", 2.0),
    Line("all-100", 100, "cold-all", "parquet-all", 0.7),
    Line("live-100", 100, "live-sum", "cold-sum", 0.8),
    Line("archive-100", 100, "archive", "spark-writer", 2.0),
    Line("sink-1024", 1024, "sink", "discard", 0.5),
    Line("sink-100", 100, "sink", "discard", 0.3),
    Line("sink-once-1024", 1024, "sink-once", "sink", 0.9),
    Line("sink-once-100", 100, "sink-once", "sink", 0.9),
    Line("micro-batches-1024", 1024, "micro-sink", "micro-discard", 0.5),
    Line("micro-batches-once-1024", 1024, "micro-once", "micro-discard", 0.5),
)
FIRST_ROW: Final = "first-row"
ONE_ROW: Final = "one-row"  # its reference: a Python source with one row
FIRST_ROW_RATIO_MAX: Final = 1.3
MEMORY: Final = "driver-memory"
MEMORY_RATIO_MAX: Final = 1.1  # two starts of a JVM differ by some percent


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured. `log_bytes`: of segments for each payload size. `touch_bytes`: memory that is touched and
    freed before each measurement."""

    rounds: int
    log_bytes: int
    segment_bytes: int
    touch_bytes: int
    starts: int
    small_rows: int
    big_rows: int


FULL: Final = Effort(5, 768 << 20, 64 << 20, 1 << 30, 5, 1_000_000, 100_000_000)
QUICK: Final = Effort(1, 24 << 20, 2 << 20, 64 << 20, 1, 100_000, 400_000)


def names() -> tuple[str, ...]:
    return (*(line.name for line in LINES), FIRST_ROW, MEMORY)


def select(patterns: Sequence[str]) -> set[str]:
    """Names that match one of the shell patterns; ValueError for a pattern that matches nothing."""
    chosen: set[str] = set()
    for pattern in patterns:
        found = set(fnmatch.filter(names(), pattern))
        if not found:
            raise ValueError(f"no line is called {pattern!r}; there are: {', '.join(names())}")
        chosen |= found
    return chosen
