"""The jobs in the background, as `shardd top` shows them: one line for each, over all shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from rich.table import Table

_PREFIX: Final = "jobs."


class JobRow(msgspec.Struct, frozen=True):
    """One kind of job over an interval, over all shards that have it.

    `running`: shards on which it runs now, `held` of them give way to load; `active_s`: for how long the longest runs.
    `left`: what it has to do yet, in its own measure. `failing`: most runs in a row that have failed on one shard.
    `busy_percent`: of the interval, without rests, of one shard.
    """

    name: str
    running: int
    held: int
    active_s: float
    left: int
    runs: int
    steps_per_s: float
    bytes_per_s: float
    busy_percent: float
    errors: int
    failing: int


class Interval(msgspec.Struct, frozen=True):
    """One worker between two moments; counters of a new worker began at 0."""

    seconds: float
    figures: dict[str, int]
    earlier: dict[str, int]

    def rate(self, name: str) -> float:
        grown = self.figures.get(name, 0) - self.earlier.get(name, 0)
        return grown / self.seconds if self.seconds > 0 else 0.0


def job_rows(intervals: Iterable[Interval]) -> list[JobRow]:
    shards = list(intervals)
    names = {name.split(".")[1] for each in shards for name in each.figures if name.startswith(_PREFIX)}
    return [_row(name, shards) for name in sorted(names)]


def _row(name: str, shards: list[Interval]) -> JobRow:
    def now(figure: str) -> list[int]:
        return [each.figures.get(f"{_PREFIX}{name}.{figure}", 0) for each in shards]

    def rate(figure: str) -> float:
        return sum(each.rate(f"{_PREFIX}{name}.{figure}") for each in shards)

    return JobRow(
        name=name,
        running=sum(now("running")),
        held=sum(now("held")),
        active_s=max(now("running_ms"), default=0) / 1000,
        left=sum(now("left")),
        runs=sum(now("runs")),
        steps_per_s=rate("steps"),
        bytes_per_s=rate("bytes"),
        busy_percent=rate("busy_ms") / 10,
        errors=sum(now("errors")),
        failing=max(now("failing"), default=0),
    )


def jobs_table(rows: list[JobRow], size: Callable[[float], str]) -> Table:
    result = Table(box=None, pad_edge=False)
    result.add_column("job", no_wrap=True)
    for name in ("running", "left", "runs", "steps/s", "bytes/s", "busy", "failed"):
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column("", no_wrap=True)
    for row in rows:
        result.add_row(
            row.name,
            str(row.running or "-"),
            f"{row.left:,}",
            f"{row.runs:,}",
            f"{row.steps_per_s:,.0f}",
            size(row.bytes_per_s),
            f"{row.busy_percent:.0f} %",
            f"{row.errors:,}",
            _note(row),
        )
    return result


def _note(row: JobRow) -> str:
    notes = [f"for {row.active_s:,.0f} s"] if row.active_s >= 1 else []
    notes += ["gives way"] if row.held else []
    notes += [f"the last {row.failing} runs failed"] if row.failing else []
    return ", ".join(notes)
