"""From rounds to ratios, verdicts and the rows of the table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.report import Summary
from bench.spark.lines import FIRST_ROW, FIRST_ROW_RATIO_MAX, MEMORY, MEMORY_RATIO_MAX, Line

COLUMNS: Final = ("line", "what", "MB/s", "reference", "its MB/s", "ratio [min..max]", "target")


@dataclass(slots=True)
class Cell:
    """Seconds of each round, ours and the reference's, for `log_bytes` of segments; or what went wrong."""

    log_bytes: int
    ours_s: list[float] = field(default_factory=list)
    reference_s: list[float] = field(default_factory=list)
    error: str | None = None


def ratio(cell: Cell) -> Summary | None:
    """Speed of ours over the reference's of the same round."""
    values = [reference / ours for ours, reference in zip(cell.ours_s, cell.reference_s, strict=True)]
    return Summary(statistics.median(values), min(values), max(values)) if values else None


def rate(log_bytes: int, seconds: Sequence[float]) -> str:
    """Median MB/s."""
    return f"{log_bytes / 1e6 / statistics.median(seconds):,.0f}" if seconds else "-"


def verdict(held: bool, wanted: str) -> str:
    return f"{wanted}: {'met' if held else 'NOT met'}"


def rows(lines: Sequence[Line], cells: Mapping[str, Cell]) -> list[list[str]]:
    """One row of COLUMNS for each line that was measured."""
    out = []
    for line in lines:
        cell = cells[line.name]
        found = ratio(cell)
        held = found is not None and found.median >= line.ratio_min
        speeds = (rate(cell.log_bytes, cell.ours_s), line.reference, rate(cell.log_bytes, cell.reference_s))
        target = cell.error or verdict(held, f">= {line.ratio_min}")
        out.append([line.name, line.ours, *speeds, "-" if found is None else str(found), target])
    return out


def first_row(ours_s: Sequence[float], reference_s: Sequence[float]) -> list[str]:
    """From the start of the process to the first row, over that of a source with one row that is made up."""
    values = [ours / reference for ours, reference in zip(ours_s, reference_s, strict=True)]
    found = Summary(statistics.median(values), min(values), max(values))
    middle = statistics.median(ours_s), statistics.median(reference_s)
    said = f"start to first row: {middle[0]:.1f} s, of a source that does nothing {middle[1]:.1f} s"
    target = verdict(found.median <= FIRST_ROW_RATIO_MAX, f"<= {FIRST_ROW_RATIO_MAX}")
    return [FIRST_ROW, said, "-", "one-row", "-", str(found), target]


def memory(small: Mapping[str, float], big: Mapping[str, float]) -> list[str]:
    """Driver memory of the big topic over that of the small one: what stays in the heap and the Python's peak."""
    needed = [each["python_mib"] + each["heap_mib"] for each in (small, big)]
    said = "; ".join(
        f"{each['rows']:,.0f} rows, {each['tasks']:.0f} tasks: Python peak {each['python_mib']:.0f} MiB,"
        f" heap {each['heap_mib']:.0f} MiB after a collection, JVM peak {each['jvm_peak_mib']:.0f} MiB"
        for each in (small, big)
    )
    value = needed[1] / needed[0]
    target = verdict(value <= MEMORY_RATIO_MAX, f"<= {MEMORY_RATIO_MAX}")
    return [MEMORY, said, "-", "-", "-", f"{value:.2f}", target]
