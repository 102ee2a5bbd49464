"""`python -m bench`: shardd against the bare-C floor server, interleaved, with ratios and targets; some lines also on
the engine that runs where io_uring is refused."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import rebalance, report
from bench.lines import LINES, REBALANCES, Line, chosen_rebalances, select
from bench.measure import FULL, QUICK, Cell, Effort, run_rounds
from bench.native_build import build
from bench.targets import EPOLL, Floor, Shardd, Target

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
) -> tuple[dict[str, dict[str, Cell]], dict[str, str], list[rebalance.Result]]:
    cpus = sorted(os.sched_getaffinity(0))[: options.shards]
    if options.shards < 1 or len(cpus) < options.shards:
        raise ValueError(f"--shards must be in 1..{len(os.sched_getaffinity(0))}")
    build("load")
    cells: dict[str, dict[str, Cell]] = {}
    moved: list[rebalance.Result] = []
    with tempfile.TemporaryDirectory(prefix="shardd-bench-", dir=options.directory.resolve()) as base:
        header = report.machine(Path(base))
        for durable in (False, True):
            chosen = [line for line in lines if line.durable is durable]
            rebalances = [] if durable or options.floor_only else chosen_rebalances(options.lines)
            if not chosen and not rebalances:
                continue
            with _servers(options, durable, chosen, Path(base) / str(durable), cpus, header) as targets:
                cells |= run_rounds(targets, chosen, effort, lambda text: print(text, file=sys.stderr, flush=True))
                for name in rebalances:
                    shardd = next(each for each in targets if isinstance(each, Shardd))
                    moved.append(rebalance.measure(shardd, name, effort.rounds))
    header["floor"] = f"epoll, {len(cpus)} threads on CPUs {','.join(map(str, cpus))}"
    header["page state"] = f"recycled: {effort.touch_bytes >> 20} MiB touched and freed before each send line"
    header["method"] = (
        f"{effort.rounds} rounds, servers alternating, {effort.duration_ms} ms a line after warm-up"
        f" (sends at most {effort.send_bytes_max >> 20} MiB), closed loop, load client: 1 thread, with t2: 2, same CPUs"
        " (lines with 1 connection: pinned to another CPU than the one that serves it)"
    )
    return cells, header, moved


@contextlib.contextmanager
def _servers(
    options: argparse.Namespace,
    durable: bool,
    lines: Sequence[Line],
    base: Path,
    cpus: list[int],
    header: dict[str, str],
) -> Iterator[list[Target]]:
    """Both servers of one level; adds to the header what is known of them."""
    settings = dict(pair.split("=", 1) for pair in options.set)
    settings |= {"SHARDD_SYSTEM_PARTITION_ACK": "durable"} if durable else {}
    with contextlib.ExitStack() as end:
        targets: list[Target] = [Floor(base / "floor", cpus, sync=durable)]
        end.callback(targets[0].stop)
        if not options.floor_only:
            shardd = Shardd(base / "shardd", cpus, options.shardd, settings)
            end.callback(shardd.stop)
            targets.append(shardd)
            header["shardd"] = shardd.start_line()
            header["configuration"] = " ".join(f"{key}={value}" for key, value in shardd.configuration.items())
            if not durable and any(line.epoll_ratio_min is not None for line in lines):
                forced = settings | {"SHARDD_SYSTEM_IO_ENGINE": "epoll"}
                epoll = Shardd(base / EPOLL, cpus, options.shardd, forced, EPOLL)
                end.callback(epoll.stop)
                targets.append(epoll)
                header[EPOLL] = epoll.start_line()
            header["durability"] = (
                "written (background fdatasync), the floor never syncs;"
                " durable lines: level durable, the floor with an fdatasync for each request"
            )
        yield targets


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
        print("\n".join([*(line.name for line in LINES), *REBALANCES]))
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
    for result in moved:
        print(f"\n{result}")
    on_epoll = report.epoll_rows(lines, cells)
    if on_epoll:
        print("\n" + report.text_table(report.EPOLL_COLUMNS, on_epoll))
    print(f"\nraw figures: {_write_raw(options.results, header, cells)}")
    if options.markdown:
        head = "\n".join(f"- {key}: {value}" for key, value in header.items())
        tables = [report.markdown_table(report.COLUMNS, body)]
        tables += [report.markdown_table(report.EPOLL_COLUMNS, on_epoll)] if on_epoll else []
        options.markdown.write_text("\n\n".join([head, *tables]) + "\n")
    return 1 if any(cell.error for row in cells.values() for cell in row.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
