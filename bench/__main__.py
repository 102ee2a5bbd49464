"""`python -m bench`: shardd against the bare-C floor server, interleaved, with ratios and targets; some lines also on
the engine that runs where io_uring is refused, and against a floor on io_uring. At the end how soon the server starts,
and its memory."""

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
from typing import NamedTuple

from bench import rebalance, report, start
from bench.lines import NAMES, REBALANCES, STARTS, Line, Setup, chosen, select
from bench.measure import FULL, QUICK, Cell, Effort, run_rounds
from bench.native_build import build
from bench.targets import EPOLL, RING, Floor, Shardd, Target

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
    parser.add_argument("--floor-only", action="store_true", help="measure the floors alone")
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


def settings_of(setup: Setup, pairs: Sequence[str]) -> dict[str, str]:
    """Of shardd: `KEY=VALUE` of --set, and above them what the lines are about. ValueError."""
    for pair in pairs:
        if "=" not in pair:
            raise ValueError(f"--set is SHARDD_KEY=VALUE, not {pair!r}")
    return dict(pair.split("=", 1) for pair in pairs) | setup.settings


class Measured(NamedTuple):
    """All of a run. `starts`: values of each round (bench/start.py)."""

    header: dict[str, str]
    cells: dict[str, dict[str, Cell]]
    moved: list[rebalance.Result]
    starts: list[list[float]]


def _measure(options: argparse.Namespace, lines: list[Line], effort: Effort) -> Measured:
    cpus = sorted(os.sched_getaffinity(0))[: options.shards]
    if options.shards < 1 or len(cpus) < options.shards:
        raise ValueError(f"--shards must be in 1..{len(os.sched_getaffinity(0))}")
    settings = settings_of(Setup.WRITTEN, options.set)
    build("load")
    with tempfile.TemporaryDirectory(prefix="shardd-bench-", dir=options.directory.resolve()) as base:
        header = report.machine(Path(base))
        found = Measured(header, {}, [], [])
        for setup in Setup:
            of_setup = [line for line in lines if line.setup is setup]
            asked = [] if options.floor_only or setup is not Setup.WRITTEN else chosen(REBALANCES, options.lines)
            if not of_setup and not asked:
                continue
            with _servers(options, setup, of_setup, Path(base) / setup.name, cpus, header) as targets:
                found.cells.update(run_rounds(targets, of_setup, effort, _progress))
                for name in asked:
                    shardd = next(each for each in targets if isinstance(each, Shardd))
                    found.moved.append(rebalance.measure(shardd, name, effort.rounds))
        if not options.floor_only and chosen(STARTS, options.lines):
            command = {"shardd": options.shardd or start.own_command()}
            rounds = start.run_rounds(command, Path(base), effort.rounds, len(cpus), effort.idle_s, settings)
            found.starts.extend(rounds["shardd"])
    _describe(header, effort, cpus)
    return found


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _describe(header: dict[str, str], effort: Effort, cpus: list[int]) -> None:
    header["floor"] = f"epoll, {len(cpus)} threads on CPUs {','.join(map(str, cpus))}"
    header["page state"] = (
        f"recycled: before each send line {effort.touch_bytes >> 20} MiB touched and freed, after its first round twice"
        " what it writes"
    )
    header["method"] = (
        f"{effort.rounds} rounds, servers alternating, {effort.duration_ms} ms a line after warm-up"
        f" (sends at most {effort.send_bytes_max >> 20} MiB), closed loop, load client: 1 thread, with t2: 2, same CPUs"
        " (lines with 1 connection: pinned to another CPU than the one that serves it)"
    )


@contextlib.contextmanager
def _servers(
    options: argparse.Namespace,
    setup: Setup,
    lines: Sequence[Line],
    base: Path,
    cpus: list[int],
    header: dict[str, str],
) -> Iterator[list[Target]]:
    """The servers of one setup; adds to the header what is known of them."""
    settings = settings_of(setup, options.set)
    with contextlib.ExitStack() as end:
        targets: list[Target] = []

        def add(target: Target) -> None:
            end.callback(target.stop)
            targets.append(target)

        add(Floor(base / "floor", cpus, sync=setup is Setup.DURABLE))
        if any(line.ring_ratio_min is not None for line in lines):
            try:
                ring = Floor(base / RING, cpus, ring=True)
            except RuntimeError as error:
                header[RING] = f"not measured: {error}"
            else:
                add(ring)
                header[RING] = f"io_uring with {' '.join(ring.features) or 'provided buffers alone'}"
        if not options.floor_only:
            shardd = Shardd(base / "shardd", cpus, options.shardd, settings)
            add(shardd)
            header.setdefault("shardd", shardd.start_line())
            if settings or setup is Setup.WRITTEN:
                words = " ".join(f"{key}={value}" for key, value in shardd.configuration.items())
                header[f"{setup.value} configuration".strip()] = words
            if any(line.epoll_ratio_min is not None for line in lines):
                epoll = Shardd(
                    base / EPOLL, cpus, options.shardd, settings | {"SHARDD_SYSTEM_IO_ENGINE": "epoll"}, EPOLL
                )
                add(epoll)
                header[EPOLL] = epoll.start_line()
            header["durability"] = (
                "written (background fdatasync), the floor never syncs;"
                " durable lines: level durable, the floor with an fdatasync for each request"
            )
        yield targets


def _write_raw(directory: Path, found: Measured) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    raw = {
        name: {target: dataclasses.asdict(cell) for target, cell in row.items()} for name, row in found.cells.items()
    }
    starts = {what: [values[at] for values in found.starts] for at, (_, what, _, _) in enumerate(start.FIGURES)}
    path.write_text(json.dumps({"header": found.header, "lines": raw, "starts": starts}, indent=1) + "\n")
    return path


def main(words: list[str] | None = None) -> int:
    """0 when every line was measured, whether its target is met or not; 1 when a server failed one; 2 for bad usage."""
    options = _arguments(words)
    if options.list:
        print("\n".join(NAMES))
        return 0
    try:
        lines, effort = select(options.lines), _effort(options)
        found = _measure(options, lines, effort)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    tables = [
        (report.COLUMNS, report.rows(lines, found.cells)),
        (report.EPOLL_COLUMNS, report.epoll_rows(lines, found.cells)),
        (report.RING_COLUMNS, report.ring_rows(lines, found.cells)),
        (start.COLUMNS, start.rows({"shardd": found.starts}, chosen(STARTS, options.lines), options.shards)),
    ]
    tables = [table for table in tables if table[1]]
    print("\n".join(f"{key + ':':15} {value}" for key, value in found.header.items()))
    for columns, body in tables:
        print("\n" + report.text_table(columns, body))
    for result in found.moved:
        print(f"\n{result}")
    print(f"\nraw figures: {_write_raw(options.results, found)}")
    if options.markdown:
        head = "\n".join(f"- {key}: {value}" for key, value in found.header.items())
        options.markdown.write_text("\n\n".join([head, *(report.markdown_table(*table) for table in tables)]) + "\n")
    return 1 if any(cell.error for row in found.cells.values() for cell in row.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
