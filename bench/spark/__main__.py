"""`python -m bench.spark`: the source and the archive pipeline against Spark's own Parquet: interleaved, ratios."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench.measure import touch_memory
from bench.report import machine, markdown_table, text_table
from bench.spark import report
from bench.spark.data import HEADER_BYTES, Rows, fill
from bench.spark.lines import FIRST_ROW, FULL, LINES, MEMORY, ONE_ROW, QUICK, Effort, Line, names, select
from bench.spark.report import Cell
from bench.spark.works import Works
from bench.targets import Shardd
from shardd.spark import session

SETTINGS: Final = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "2g"}
CHILD_TIMEOUT_S: Final = 900.0
MEMORY_PAYLOAD_BYTES: Final = 8
ROOT: Final = Path(__file__).parents[2]


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: shows that all works, not how fast")
    parser.add_argument("--rounds", type=int, help="rounds (5)")
    parser.add_argument("--lines", nargs="+", default=["*"], metavar="PATTERN", help="such as 'all-*'")
    parser.add_argument("--list", action="store_true", help="print the names of the lines and end")
    parser.add_argument("--memory-rows", type=int, help="of the big topic of driver-memory (100 M: 9 GB of disk)")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="where all data is kept")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write header and table there, too")
    return parser.parse_args(words)


def _effort(options: argparse.Namespace) -> Effort:
    effort = QUICK if options.quick else FULL
    if options.rounds is not None:
        effort = dataclasses.replace(effort, rounds=options.rounds)
    if options.memory_rows is not None:
        effort = dataclasses.replace(effort, big_rows=options.memory_rows)
    if effort.rounds < 1 or effort.big_rows <= effort.small_rows:
        raise ValueError(f"--rounds must be at least 1 and --memory-rows more than {effort.small_rows}")
    return effort


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def interleave(lines: Sequence[Line], rounds: int, run: Callable[[Line, str], float]) -> dict[str, list[list[float]]]:
    """Seconds [ours, reference] of each round after one that does not count; the order of the two alternates."""
    found: dict[str, list[list[float]]] = {line.name: [[], []] for line in lines}
    for number in range(rounds + 1):
        for line in lines:
            works = [(0, line.ours), (1, line.reference)]
            for side, work in works if number % 2 else reversed(works):
                seconds = run(line, work)
                if number:
                    found[line.name][side].append(seconds)
        log(f"round {number} of {rounds}" if number else "warm-up done")
    return found


def _timed(works: dict[int, Works], touch_bytes: int) -> Callable[[Line, str], float]:
    def run(line: Line, work: str) -> float:
        mine = works[line.payload_bytes]
        mine.clean()
        touch_memory(touch_bytes)
        began = time.perf_counter()
        mine.run(work)
        return time.perf_counter() - began

    return run


def _measure_lines(server: Shardd, lines: list[Line], effort: Effort, base: Path) -> dict[str, Cell]:
    topics: dict[int, Rows] = {}
    for size in sorted({line.payload_bytes for line in lines}):
        topics[size] = fill(
            server.port, server.directory, f"bench-{size}", effort.log_bytes // (HEADER_BYTES + size), size
        )
        log(f"payloads of {size} bytes: {topics[size].count:,} sealed rows, {topics[size].log_bytes / 1e6:,.0f} MB")
    spark = session.session("local[2]", name="bench", settings=SETTINGS)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        works = {size: Works(spark, rows, base) for size, rows in topics.items()}
        for each in works.values():
            each.prepare()
        found = interleave(lines, effort.rounds, _timed(works, effort.touch_bytes))
    finally:
        spark.stop()
    return {
        line.name: Cell(topics[line.payload_bytes].log_bytes, found[line.name][0], found[line.name][1])
        for line in lines
    }


def _child(what: str, options: dict[str, str]) -> tuple[str, float]:
    """The first line that a child prints, and when it came."""
    command = [sys.executable, "-m", "bench.spark.child", what, json.dumps(options)]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - began
        _, errors = process.communicate(timeout=CHILD_TIMEOUT_S)
    if process.returncode != 0 or not line:
        raise RuntimeError(f"{what}: {errors.strip()[-2000:]}")
    return line, seconds


def _measure_starts(rows: Rows, starts: int) -> list[str]:
    """Both in each round, the order alternates; a first round, which brings Java and PySpark into memory, is not
    counted."""
    taken: dict[str, list[float]] = {FIRST_ROW: [], ONE_ROW: []}
    for number in range(starts + 1):
        for what in (FIRST_ROW, ONE_ROW) if number % 2 else (ONE_ROW, FIRST_ROW):
            seconds = _child(what, rows.options(columns="offset"))[1]
            if number:
                taken[what].append(seconds)
    return report.first_row(taken[FIRST_ROW], taken[ONE_ROW])


def _measure_memory(server: Shardd, effort: Effort) -> list[str]:
    found = []
    for count in (effort.small_rows, effort.big_rows):
        rows = fill(server.port, server.directory, f"memory-{count}", count, MEMORY_PAYLOAD_BYTES, sealed=False)
        log(f"{count:,} messages written")
        options = rows.place() | {"path": str(rows.data), "columns": "offset"}
        answer = json.loads(_child("memory", options)[0])
        if answer["rows"] != count:
            raise RuntimeError(f"{answer['rows']} rows instead of {count}")
        found.append(answer)
    return report.memory(*found)


def _measure(options: argparse.Namespace, effort: Effort, chosen: set[str]) -> tuple[dict[str, str], list[list[str]]]:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    with (
        tempfile.TemporaryDirectory(prefix="shardd-bench-spark-", dir=options.directory.resolve()) as name,
        contextlib.ExitStack() as end,
    ):
        base = Path(name)
        segment = f"{effort.segment_bytes >> 20} MiB"
        server = Shardd(base / "shardd", cpus, None, {"SHARDD_SYSTEM_SEGMENT_SIZE": segment})
        end.callback(server.stop)
        header = machine(base)
        header["shardd"] = server.start_line()
        header["configuration"] = " ".join(f"{key}={value}" for key, value in server.configuration.items())
        header["spark"] = "local[2], " + " ".join(f"{key}={value}" for key, value in SETTINGS.items())
        header["data"] = (
            f"{effort.log_bytes >> 20} MiB of segments for each payload size, 4 partitions, random text of 64 signs,"
            " every line reads the sealed segments; MB/s are bytes of segments"
        )
        header["method"] = (
            f"{effort.rounds} rounds after a warm-up, ours and the reference alternate; page cache warm,"
            f" {effort.touch_bytes >> 20} MiB of memory touched and freed before each measurement; the idle server"
            " shares the CPUs"
        )
        lines = [line for line in LINES if line.name in chosen]
        try:
            body = report.rows(lines, _measure_lines(server, lines, effort, base)) if lines else []
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{server.log_tail()}") from error
        if FIRST_ROW in chosen:
            some = fill(server.port, server.directory, "first", 100_000, 1000, sealed=False)
            body.append(_measure_starts(some, effort.starts))
        if MEMORY in chosen:
            body.append(_measure_memory(server, effort))
    return header, body


def main(words: Sequence[str] | None = None) -> int:
    """0 when every line was measured, whether its target is met or not; 1 when one failed; 2 for bad usage."""
    options = _arguments(words)
    if options.list:
        print("\n".join(names()))
        return 0
    try:
        chosen, effort = select(options.lines), _effort(options)
    except ValueError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    try:
        header, body = _measure(options, effort, chosen)
    except (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print("\n".join(f"{key + ':':15} {value}" for key, value in header.items()) + "\n")
    print(text_table(report.COLUMNS, body))
    if options.markdown:
        head = "\n".join(f"- {key}: {value}" for key, value in header.items())
        options.markdown.write_text(f"{head}\n\n{markdown_table(report.COLUMNS, body)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
