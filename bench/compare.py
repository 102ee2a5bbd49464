"""Two builds of shardd in one run, interleaved: what a change has cost or won.

    python -m bench.compare --before COMMAND [--after COMMAND] [--rounds N] [--lines PATTERN ...]

COMMAND starts a shardd ("COMMAND serve ..."), such as `.venv/bin/shardd` of a clone at an older commit. The older build
runs twice, as two servers: what differs between these two (the A/A pair) is the noise of the machine. Prints for each
line the requests a second, their ratio formed inside rounds, the same ratio of the A/A pair, and the CPU time of a
request. A line is lost when the median of its ratio is below 1 and below everything that the A/A pair shows. Lines of
1 MB and more are printed and not judged: fresh pages are their noise. Ends with 1 when a line is lost.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench import report
from bench.lines import Line, Setup, select
from bench.measure import FULL, Cell, run_rounds
from bench.native_build import build
from bench.targets import Shardd, Target

ROUNDS = 10
JUDGED_BYTES_MAX = 1_000_000
DISK_WAIT_S = 1.0  # a segment that was open when it was deleted goes at the next look of the trash, 15 s later
COLUMNS = ("line", "before", "after", "ratio (req/s)", "A/A pair", "CPU us", "CPU ratio", "A/A pair", "verdict")


def compare(options: argparse.Namespace, lines: list[Line], base: Path) -> dict[str, dict[str, Cell]]:
    """Cells by line and build: "before", "again" (the same build once more) and "after"."""
    cpus = sorted(os.sched_getaffinity(0))[: options.shards]
    effort = dataclasses.replace(FULL, rounds=options.rounds, duration_ms=options.duration_ms, disk_wait_s=DISK_WAIT_S)
    commands = {"before": options.before, "after": options.after, "again": options.before}
    cells: dict[str, dict[str, Cell]] = {}
    for setup in Setup:
        # the ratio to another line is not asked for here: every line stands for itself
        chosen = [line for line in lines if line.setup is setup]
        if not chosen:
            continue
        targets: list[Target] = []
        try:
            for name, command in commands.items():
                targets.append(Shardd(base / f"{name}-{setup.name}", cpus, command, setup.settings, name))
            cells |= run_rounds(targets, chosen, effort, lambda text: print(text, file=sys.stderr, flush=True))
        finally:
            for target in targets:
                target.stop()
    return cells


def verdict(line: Line, rate: report.Summary | None, noise: report.Summary | None) -> str:
    """`lost`: worse by the median, and by more than the same build differs from itself."""
    if line.batch * line.payload_bytes >= JUDGED_BYTES_MAX:
        return "not judged"
    if rate is None or noise is None:
        return "lost"
    return "lost" if rate.median < min(1.0, noise.least) else "held"


def row_of(line: Line, row: Mapping[str, Cell]) -> list[str]:
    """One row of COLUMNS; a build that failed shows its error instead of a verdict."""
    before, again, after = row["before"], row["again"], row["after"]
    rate = report.ratio(after, before, "requests_per_s")
    noise = report.ratio(again, before, "requests_per_s")
    error = before.error or again.error or after.error
    rates = [f"{report.median(cell, 'requests_per_s') or 0:,.0f}" for cell in (before, after)]
    cpu = [f"{report.median(cell, 'cpu_us_per_request') or 0:,.1f}" for cell in (before, after)]
    ratios = [report.ratio(cell, before, "cpu_us_per_request") for cell in (after, again)]
    shown = verdict(line, rate, noise) if error is None else f"lost: {error.splitlines()[0]}"
    return [line.name, *rates, str(rate), str(noise), " -> ".join(cpu), *map(str, ratios), shown]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__.splitlines()[0])
    parser.add_argument("--before", required=True, metavar="COMMAND")
    parser.add_argument("--after", metavar="COMMAND", help="default: the shardd beside this interpreter")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--duration-ms", type=int, default=1500)
    parser.add_argument("--lines", nargs="+", default=["*"], metavar="PATTERN")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"))
    options = parser.parse_args()
    lines = select(options.lines)
    build("load")
    with tempfile.TemporaryDirectory(prefix="shardd-compare-", dir=options.directory.resolve()) as base:
        for key, value in report.machine(Path(base)).items():
            print(f"{key}: {value}")
        cells = compare(options, lines, Path(base))
    body = [row_of(line, cells[line.name]) for line in lines]
    print(report.text_table(COLUMNS, body))
    lost = [row[0] for row in body if row[-1].startswith("lost")]
    print(f"lost: {', '.join(lost) or 'none'}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
