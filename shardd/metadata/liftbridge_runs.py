"""Marks of partitions as runs: which are paused or read-only, and when that was changed. All in one pass."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise

from shardd.metadata.liftbridge_state import RUNS_MAX, Range, Run


def ranges_of(partitions: Iterable[int]) -> tuple[Range, ...]:
    """Ids in any order, also twice, as ranges in order."""
    ranges: list[Range] = []
    for partition in sorted(set(partitions)):
        if ranges and ranges[-1][1] == partition:
            ranges[-1] = ranges[-1][0], partition + 1
        else:
            ranges.append((partition, partition + 1))
    return tuple(ranges)


def marked(runs: tuple[Run, ...], ranges: tuple[Range, ...], on: bool, now_ns: int) -> tuple[Run, ...]:
    """The runs after `ranges` were marked, or their marks taken away: both count as an event."""
    borders = sorted(
        {each for run in runs for each in (run.first, run.end)} | {each for both in ranges for each in both}
    )
    result: list[Run] = []
    at_run = at_range = 0
    for first, end in pairwise(borders):
        while at_run < len(runs) and runs[at_run].end <= first:
            at_run += 1
        while at_range < len(ranges) and ranges[at_range][1] <= first:
            at_range += 1
        known = runs[at_run] if at_run < len(runs) and runs[at_run].first <= first else None
        if at_range < len(ranges) and ranges[at_range][0] <= first:
            _add(result, Run(first, end, on, now_ns if known is None else known.first_ns, now_ns))
        elif known is not None:
            _add(result, Run(first, end, known.on, known.first_ns, known.latest_ns))
    return tuple(result) if len(result) <= RUNS_MAX else _joined(result)


def _joined(runs: list[Run]) -> tuple[Run, ...]:
    """Neighbours with the same mark as one run, with the earliest and the latest of their times: marking all partitions
    always leaves one run."""
    joined: list[Run] = []
    for run in runs:
        last = joined[-1] if joined else None
        if last is not None and (last.end, last.on) == (run.first, run.on):
            first_ns, latest_ns = min(last.first_ns, run.first_ns), max(last.latest_ns, run.latest_ns)
            joined[-1] = Run(last.first, run.end, run.on, first_ns, latest_ns)
        else:
            joined.append(run)
    return tuple(joined)


def _add(runs: list[Run], run: Run) -> None:
    """One with the run before it when nothing tells them apart."""
    last = runs[-1] if runs else None
    if last is not None and (last.end, last.on, last.first_ns, last.latest_ns) == (
        run.first,
        run.on,
        run.first_ns,
        run.latest_ns,
    ):
        runs[-1] = Run(last.first, run.end, run.on, run.first_ns, run.latest_ns)
    else:
        runs.append(run)


def cut(runs: tuple[Run, ...], partitions: int) -> tuple[Run, ...]:
    """Only those of the first `partitions`."""
    kept = [run for run in runs if run.first < partitions]
    if kept and kept[-1].end > partitions:
        last = kept[-1]
        kept[-1] = Run(last.first, partitions, last.on, last.first_ns, last.latest_ns)
    return tuple(kept)


def run_of(runs: tuple[Run, ...], partition: int) -> Run | None:
    """The one that the partition is in."""
    at = bisect_right(runs, partition, key=lambda run: run.first) - 1
    return runs[at] if at >= 0 and partition < runs[at].end else None


def is_on(runs: tuple[Run, ...], partition: int) -> bool:
    run = run_of(runs, partition)
    return run is not None and run.on


def on_ranges(runs: tuple[Run, ...]) -> tuple[Range, ...]:
    """Those that are marked now."""
    ranges: list[Range] = []
    for run in runs:
        if run.on and ranges and ranges[-1][1] == run.first:
            ranges[-1] = ranges[-1][0], run.end
        elif run.on:
            ranges.append((run.first, run.end))
    return tuple(ranges)


def partitions_in(ranges: Iterable[Range]) -> tuple[int, ...]:
    return tuple(partition for first, end in ranges for partition in range(first, end))


def differing(old: tuple[Range, ...], new: tuple[Range, ...]) -> Iterator[tuple[Range, bool]]:
    """What is in one of both only, and whether it is in the new one."""
    borders = sorted({border for piece in (*old, *new) for border in piece})
    at_old = at_new = 0
    for first, end in pairwise(borders):
        while at_old < len(old) and old[at_old][1] <= first:
            at_old += 1
        while at_new < len(new) and new[at_new][1] <= first:
            at_new += 1
        was = at_old < len(old) and old[at_old][0] <= first
        now = at_new < len(new) and new[at_new][0] <= first
        if was != now:
            yield (first, end), now
