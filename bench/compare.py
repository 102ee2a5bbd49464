"""Two builds of shardd in one run, interleaved: what a change has cost or won.

    python -m bench.compare --before COMMAND [--after COMMAND] [--rounds N] [--lines PATTERN ...]

COMMAND starts a shardd ("COMMAND serve ..."), such as `.venv/bin/shardd` of a clone at an older commit. Prints for each
line the requests a second of both and their ratio, round by round: median [smallest..largest]. Ends with 1 when the
median of a line is below `--ratio-min`.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
from pathlib import Path

from bench import report
from bench.lines import Line, select
from bench.measure import FULL, Cell, run_rounds
from bench.native_build import build
from bench.targets import Shardd, Target

RATIO_MIN = 0.97


def compare(options: argparse.Namespace, lines: list[Line], base: Path) -> dict[str, dict[str, Cell]]:
    """Cells by line and build: "before" and "after"."""
    cpus = sorted(os.sched_getaffinity(0))[: options.shards]
    effort = dataclasses.replace(FULL, rounds=options.rounds, duration_ms=options.duration_ms)
    cells: dict[str, dict[str, Cell]] = {}
    for durable in (False, True):
        # the ratio to another line is not asked for here: every line stands for itself
        chosen = [dataclasses.replace(line, epoll_ratio_min=None) for line in lines if line.durable is durable]
        if not chosen:
            continue
        settings = {"SHARDD_SYSTEM_PARTITION_ACK": "durable"} if durable else {}
        targets: list[Target] = []
        try:
            for name, command in (("before", options.before), ("after", options.after)):
                targets.append(Shardd(base / f"{name}-{durable}", cpus, command, settings, name))
            cells |= run_rounds(targets, chosen, effort, lambda text: print(text, file=sys.stderr, flush=True))
        finally:
            for target in targets:
                target.stop()
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__.splitlines()[0])
    parser.add_argument("--before", required=True, metavar="COMMAND")
    parser.add_argument("--after", metavar="COMMAND", help="default: the shardd beside this interpreter")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--duration-ms", type=int, default=1500)
    parser.add_argument("--lines", nargs="+", default=["*"], metavar="PATTERN")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--ratio-min", type=float, default=RATIO_MIN)
    options = parser.parse_args()
    lines = select(options.lines)
    build("load")
    with tempfile.TemporaryDirectory(prefix="shardd-compare-", dir=options.directory.resolve()) as base:
        for key, value in report.machine(Path(base)).items():
            print(f"{key}: {value}")
        cells = compare(options, lines, Path(base))
    lost = []
    print(f"{'line':28} {'before':>10} {'after':>10}  ratio (req/s)")
    for line in lines:
        row = cells[line.name]
        rate = report.ratio(row["after"], row["before"], "requests_per_s")
        error = row["before"].error or row["after"].error
        before, after = (report.median(row[name], "requests_per_s") or 0 for name in ("before", "after"))
        print(f"{line.name:28} {before:10,.0f} {after:10,.0f}  {rate if error is None else error}")
        if rate is None or error is not None or rate.median < options.ratio_min:
            lost.append(line.name)
    print(f"below {options.ratio_min}: {', '.join(lost) or 'none'}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
