"""From raw rounds to medians, ratios, verdicts and tables."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.lines import Line
from bench.measure import Cell
from bench.targets import EPOLL, RING

COLUMNS = (
    "line",
    "placement",
    "floor req/s",
    "shardd req/s",
    "shardd MB/s",
    "ratio [min..max]",
    "floor p50/p99/p99.9 us",
    "shardd p50/p99/p99.9 us",
    "p50 ratio",
    "p99 ratio",
    "CPU us/request",
    "target",
)

EPOLL_COLUMNS = (
    "line",
    "io_uring req/s",
    "epoll req/s",
    "epoll/io_uring [min..max]",
    "io_uring p50/p99/p99.9 us",
    "epoll p50/p99/p99.9 us",
    "target",
)

RING_COLUMNS = (
    "line",
    "ring floor req/s",
    "shardd req/s",
    "shardd/ring floor [min..max]",
    "ring floor p50/p99/p99.9 us",
    "shardd p50/p99/p99.9 us",
    "CPU us/request",
    "ring floor/floor [min..max]",
    "target",
)


@dataclass(frozen=True)
class Summary:
    """Median and range over the rounds of one server's value divided by another's of the same round."""

    median: float
    least: float
    most: float
    quartile: float = 0.0  # the lower one

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.least:.2f}..{self.most:.2f}]"


def ratio(ours_cell: Cell, reference_cell: Cell, key: str) -> Summary | None:
    """None when a server has no result. Rounds are paired: both servers met the same conditions in a round."""
    pairs = list(zip(ours_cell.rounds, reference_cell.rounds, strict=False))
    values = [ours[key] / reference[key] for ours, reference in pairs if reference[key] > 0]
    if not values:
        return None
    quartile = statistics.quantiles(values, n=4, method="inclusive")[0] if len(values) > 1 else values[0]
    return Summary(statistics.median(values), min(values), max(values), quartile)


def median(cell: Cell, key: str) -> float | None:
    """Median over the rounds; None without any."""
    return statistics.median(answer[key] for answer in cell.rounds) if cell.rounds else None


def verdict(line: Line, rate: Summary | None, p50: Summary | None, p99: Summary | None = None) -> str:
    """What was demanded, and whether the medians hold it."""
    wanted = f">= {line.ratio_min}" + ("" if line.against is None else f" of {line.against}")
    held = rate is not None and rate.median >= line.ratio_min
    if line.quartile_min is not None:
        wanted += f", lower quartile >= {line.quartile_min}"
        held = held and rate is not None and rate.quartile >= line.quartile_min
    if line.p50_ratio_max is not None:
        wanted += f", p50 <= {line.p50_ratio_max}x"
        held = held and p50 is not None and p50.median <= line.p50_ratio_max
    if line.p99_ratio_max is not None:
        wanted += f", p99 <= {line.p99_ratio_max}x"
        held = held and p99 is not None and p99.median <= line.p99_ratio_max
    return f"{wanted}: {'met' if held else 'NOT met'}"


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _shown(rate: Summary | None) -> str:
    return "-" if rate is None else str(rate)


def _latencies(cell: Cell) -> str:
    return "/".join(_number(median(cell, key), 1) for key in ("p50_us", "p99_us", "p999_us"))


def _cpu(reference: Cell, ours: Cell) -> str:
    """CPU time of all processes of both servers for a request, in microseconds."""
    return " / ".join(_number(median(cell, "cpu_us_per_request"), 1) for cell in (reference, ours))


def rows(lines: Sequence[Line], cells: Mapping[str, Mapping[str, Cell]]) -> list[list[str]]:
    """One row of COLUMNS for each line. A failed line shows its error instead of a verdict."""
    out = []
    for line in lines:
        floor, shardd = cells[line.name]["floor"], cells[line.name].get("shardd", Cell(error="not measured"))
        rate, p50, p99 = (ratio(shardd, floor, key) for key in ("requests_per_s", "p50_us", "p99_us"))
        if line.against is not None:  # the floor cannot do it
            other = cells.get(line.against, {}).get("shardd", Cell(error=f"{line.against} was not measured"))
            floor = Cell(error=other.error)
            rate, p50, p99 = ratio(shardd, other, "requests_per_s"), None, None
        error = shardd.error or floor.error
        out.append(
            [
                line.name,
                shardd.placement or floor.placement or "-",
                _number(median(floor, "requests_per_s")),
                _number(median(shardd, "requests_per_s")),
                _number(median(shardd, "mb_per_s"), 1),
                _shown(rate),
                _latencies(floor),
                _latencies(shardd),
                "-" if p50 is None else f"{p50.median:.2f}",
                "-" if p99 is None else f"{p99.median:.2f}",
                _cpu(floor, shardd),
                verdict(line, rate, p50, p99) if error is None else error.splitlines()[0],
            ]
        )
    return out


def _held_against(ours: Cell, reference: Cell, least: float) -> tuple[list[str], str]:
    """Requests a second of both, their ratio, latencies of both; and the verdict or an error."""
    rate = ratio(ours, reference, "requests_per_s")
    error = ours.error or reference.error
    held = rate is not None and rate.median >= least
    figures = [
        _number(median(reference, "requests_per_s")),
        _number(median(ours, "requests_per_s")),
        _shown(rate),
        _latencies(reference),
        _latencies(ours),
    ]
    return figures, f">= {least}: {'met' if held else 'NOT met'}" if error is None else error.splitlines()[0]


def epoll_rows(lines: Sequence[Line], cells: Mapping[str, Mapping[str, Cell]]) -> list[list[str]]:
    """One row of EPOLL_COLUMNS for each line that was measured on both engines."""
    out = []
    for line in lines:
        ring, epoll = cells[line.name].get("shardd"), cells[line.name].get(EPOLL)
        if ring is not None and epoll is not None and line.epoll_ratio_min is not None:
            figures, held = _held_against(epoll, ring, line.epoll_ratio_min)
            out.append([line.name, *figures, held])
    return out


def ring_rows(lines: Sequence[Line], cells: Mapping[str, Mapping[str, Cell]]) -> list[list[str]]:
    """One row of RING_COLUMNS for each line that was measured on the floor on io_uring."""
    out = []
    for line in lines:
        row = cells[line.name]
        if RING not in row or line.ring_ratio_min is None:
            continue
        shardd, ring = row.get("shardd", Cell(error="not measured")), row[RING]
        figures, held = _held_against(shardd, ring, line.ring_ratio_min)
        between = _shown(ratio(ring, row["floor"], "requests_per_s"))
        out.append([line.name, *figures, _cpu(ring, shardd), between, held])
    return out


def text_table(columns: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Columns padded to the widest cell; numbers to the right, first and last column to the left."""
    widths = [max(len(row[i]) for row in [columns, *body]) for i in range(len(columns))]

    def padded(row: Sequence[str]) -> str:
        last = len(row) - 1
        cells = [
            cell.ljust(w) if i in (0, last) else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join([padded(columns), "  ".join("-" * width for width in widths), *map(padded, body)])


def markdown_table(columns: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """The same table for documents."""
    head = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join(head + ["| " + " | ".join(row) + " |" for row in body])


def _cpu_model() -> str:
    for text in Path("/proc/cpuinfo").read_text().splitlines():
        if text.startswith("model name"):
            return text.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    root = Path(__file__).parents[1]
    git = ["git", "-C", str(root)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=False)
    return (head.stdout.strip() or "unknown") + (" with local changes" if changed.stdout.strip() else "")


def file_system(directory: Path) -> str:
    """Type of the file system that holds `directory`."""
    best = ("", "unknown")
    for mount in psutil.disk_partitions(all=True):
        if directory.resolve().is_relative_to(mount.mountpoint) and len(mount.mountpoint) >= len(best[0]):
            best = (mount.mountpoint, mount.fstype)
    return best[1]


def machine(directory: Path) -> dict[str, str]:
    """What the figures depend on besides the code."""
    return {
        "machine": f"{platform.machine()}, {psutil.virtual_memory().total / 2**30:.0f} GiB memory",
        "cpu": f"{_cpu_model()}, {len(os.sched_getaffinity(0))} CPUs usable",
        "kernel": platform.release(),
        "file system": file_system(directory),
        "commit": _commit(),
    }
