"""`python -m bench`: shardd against the bare-C floor server, interleaved, with ratios and targets."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from bench import rebalance, report
from bench.lines import LINES, REBALANCE, Line, select, with_rebalance
from bench.measure import FULL, QUICK, Cell, Effort, run_rounds
from bench.native_build import build
from bench.targets import Floor, Shardd, Target

RESULTS = Path(__file__).parent / "results"


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: shows that all works, not how fast")
    parser.add_argument("--rounds", type=int, help="rounds (5)")
    parser.add_argument("--duration-ms", type=int, help="of each measurement (1500)")
    parser.add_argument("--lines", nargs="+", default=["*"], metavar="PATTERN", help="such as 'send-*' or '*-c8-even'")
    parser.add_argument("--list", action="store_true", help="print the names of the lines and end")
    parser.add_argument("--shards", type=int, default=2, help="workers of shardd and threads of the floor (2)")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="where both servers keep their data")
    parser.add_argument("--shardd", metavar="COMMAND", help="another shardd to start ('COMMAND serve ...')")
    parser.add_argument("--set", action="append", default=[], metavar="SHARDD_KEY=VALUE", help="setting for shardd")
    parser.add_argument("--floor-only", action="store_true", help="measure the floor alone")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write header and table there, too")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the raw figures (bench/results)")
    return parser.parse_args(words)


def _effort(options: argparse.Namespace) -> Effort:
    effort = QUICK if options.quick else FULL
    if options.rounds is not None:
        effort = dataclasses.replace(effort, rounds=options.rounds)
    if options.duration_ms is not None:
        effort = dataclasses.replace(effort, duration_ms=options.duration_ms)
    if effort.rounds < 1 or effort.duration_ms < 1:
        raise ValueError("--rounds and --duration-ms must be at least 1")
    return effort


def _measure(
    options: argparse.Namespace, lines: list[Line], effort: Effort
) -> tuple[dict[str, dict[str, Cell]], dict[str, str], rebalance.Result | None]:
    settings = dict(pair.split("=", 1) for pair in options.set)
    cpus = sorted(os.sched_getaffinity(0))[: options.shards]
    if options.shards < 1 or len(cpus) < options.shards:
        raise ValueError(f"--shards must be in 1..{len(os.sched_getaffinity(0))}")
    build("load")
    with (
        tempfile.TemporaryDirectory(prefix="shardd-bench-", dir=options.directory.resolve()) as base,
        contextlib.ExitStack() as end,
    ):
        targets: list[Target] = [Floor(Path(base) / "floor", cpus)]
        end.callback(targets[0].stop)
        header = report.machine(Path(base))
        if not options.floor_only:
            shardd = Shardd(Path(base) / "shardd", cpus, options.shardd, settings)
            end.callback(shardd.stop)
            targets.append(shardd)
            header["shardd"] = shardd.start_line()
            header["configuration"] = " ".join(f"{key}={value}" for key, value in shardd.configuration.items())
            header["durability"] = "written (background fdatasync); the floor never syncs"
        header["floor"] = f"epoll, {len(cpus)} threads on CPUs {','.join(map(str, cpus))}"
        header["page state"] = f"recycled: {effort.touch_bytes >> 20} MiB touched and freed before each send line"
        header["method"] = (
            f"{effort.rounds} rounds, servers alternating, {effort.duration_ms} ms a line after warm-up"
            f" (sends at most {effort.send_bytes_max >> 20} MiB), closed loop, load client: 1 thread, same CPUs"
            " (lines with 1 connection: pinned to another CPU than the one that serves it)"
        )
        cells = run_rounds(targets, lines, effort, lambda text: print(text, file=sys.stderr, flush=True))
        moved = None
        if with_rebalance(options.lines) and not options.floor_only:
            moved = rebalance.measure(shardd, effort.rounds)
    return cells, header, moved


def _write_raw(directory: Path, header: dict[str, str], cells: dict[str, dict[str, Cell]]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    raw = {name: {target: dataclasses.asdict(cell) for target, cell in row.items()} for name, row in cells.items()}
    path.write_text(json.dumps({"header": header, "lines": raw}, indent=1) + "\n")
    return path


def main(words: list[str] | None = None) -> int:
    """0 when every line was measured, whether its target is met or not; 1 when a server failed one; 2 for bad usage."""
    options = _arguments(words)
    if options.list:
        print("\n".join([*(line.name for line in LINES), REBALANCE]))
        return 0
    try:
        lines, effort = select(options.lines), _effort(options)
        cells, header, moved = _measure(options, lines, effort)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    body = report.rows(lines, cells)
    print("\n".join(f"{key + ':':15} {value}" for key, value in header.items()) + "\n")
    print(report.text_table(report.COLUMNS, body))
    if moved is not None:
        print(f"\n{moved}")
    print(f"\nraw figures: {_write_raw(options.results, header, cells)}")
    if options.markdown:
        head = "\n".join(f"- {key}: {value}" for key, value in header.items())
        options.markdown.write_text(f"{head}\n\n{report.markdown_table(report.COLUMNS, body)}\n")
    return 1 if any(cell.error for row in cells.values() for cell in row.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
