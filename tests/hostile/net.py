"""`make test-net-engine`: what bad clients cost a healthy one, and what 10,000 idle connections cost the server.

    python -m tests.hostile.net [--rounds N] [--seconds S] [--only NAME]

A healthy client sends, polls and pings; its p99 alone and beside each kind of bad client is taken in turns, several
times. The table shows the medians. Fails when a ratio is above 2 (3 beside a crowd of one address, `crowds.py`), an
idle connection costs 12 KiB or more of the workers' memory, or a worker dies. Times are only judged here, never in a
unit test.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.hostile import bad, crowds
from tests.hostile.crowd import make_token
from tests.support import wire
from tests.support.server import Server

RATIO_MAX = 2.0
CROWD_RATIO_MAX = 3.0  # 1,500 connections of one address
IDLE_BYTES_MAX = 12 * 1024
HEALTHY = 4
PACE_S = 0.001
START_TIMEOUT_S = 60.0
CREATE_USER = 33
SCENARIOS: dict[str, bad.Bad] = {
    "half-open": bad.half_open,
    "slow reader": bad.slow_reader,
    "drip": bad.drip,
    "cut mid-frame": bad.cut,
    "reconnect storm": bad.reconnect_storm,
    "TLS handshakes": bad.handshakes,
    "10,000 idle": bad.idle,
    **crowds.CROWDS,
}


@dataclass(slots=True)
class Line:
    """Of one scenario; times in milliseconds."""

    name: str
    alone_ms: list[float] = field(default_factory=list)
    beside_ms: list[float] = field(default_factory=list)
    worker_bytes: list[int] = field(default_factory=list)  # more memory of the workers while the bad ones are there

    @property
    def ratio(self) -> float:
        """Of the pairs that were taken one after the other: a machine that is busy for a while is so for both."""
        return statistics.median(beside / alone for beside, alone in zip(self.beside_ms, self.alone_ms, strict=True))

    def __str__(self) -> str:
        alone, beside = statistics.median(self.alone_ms), statistics.median(self.beside_ms)
        grown = max(self.worker_bytes)
        return f"{self.name:16} {alone:9.3f} {beside:9.3f} {self.ratio:7.2f} {grown / 2**20:+9.1f}"


def percentile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


def measure_ms(connections: list[wire.Wire], seconds: float) -> float:
    """p99 of send, poll and ping over all connections, one request at a time."""
    times = []
    end = time.monotonic() + seconds
    message = [wire.message(bytes(100))]
    while time.monotonic() < end:
        for number, connection in enumerate(connections):
            partition = number % 2
            for step in range(3):
                began = time.perf_counter()
                if step == 0:
                    connection.send("net", "small", wire.to_partition(partition), message)
                elif step == 1:
                    connection.poll("net", "small", partition, strategy=wire.POLL_LAST, count=1)
                else:
                    connection.ping()
                times.append((time.perf_counter() - began) * 1000)
                time.sleep(PACE_S)
    return percentile(times, 0.99)


def worker_bytes(workers: list[int]) -> int:
    return sum(psutil.Process(worker).memory_info().rss for worker in workers)


def one_round(
    line: Line, scenario: bad.Bad, server: Server, target: bad.Target, healthy: list[wire.Wire], s: float
) -> None:
    workers = server.worker_pids()
    line.alone_ms.append(measure_ms(healthy, s))
    before = worker_bytes(workers)
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    process = context.Process(target=bad.run, args=(scenario, target, ready, stop), daemon=True)
    process.start()
    if not ready.wait(START_TIMEOUT_S):
        process.kill()
        raise TimeoutError(f"{line.name}: the bad clients do not come up")
    line.beside_ms.append(measure_ms(healthy, s))
    line.worker_bytes.append(worker_bytes(workers) - before)
    if not process.is_alive():
        raise RuntimeError(f"{line.name}: the bad client has failed")
    stop.set()
    process.join(30.0)
    if process.is_alive():
        process.kill()
    time.sleep(0.5)  # its connections are closed
    if server.worker_pids() != workers:
        raise RuntimeError(f"{line.name}: a worker died\n{server.log()[-4000:]}")


def first_on_the_cpu() -> None:
    """The healthy client runs when it is woken, the bad ones only when nobody else does (`bad.run`): as if each were on
    a machine of its own. Else, where workers have work and CPUs are few, it would measure its own turn."""
    with contextlib.suppress(PermissionError):  # the table shows more than the server's doing then
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def prepare(server: Server) -> bad.Target:
    """Topics, messages, a user without rights, and tokens, as logins by password would measure the hash."""
    with wire.connect(server.address) as control:
        stream = control.create_stream("net")
        control.create_topic(stream, "small", 2)
        control.create_topic(stream, "big", 1)
        for _ in range(30):
            control.send("net", "big", wire.to_partition(0), [wire.message(bytes(1_000_000))])
        control.request(CREATE_USER, wire.str8("outsider") + wire.str8("outsider") + b"\1\0")
        with wire.Wire(server.address) as outsider:
            outsider.login("outsider", "outsider")
            return bad.Target(server.address, make_token(control, "net"), make_token(outsider, "net"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one measurement")
    parser.add_argument("--only", choices=[*SCENARIOS], default=None)
    given = parser.parse_args()
    chosen = {name: bad_one for name, bad_one in SCENARIOS.items() if given.only in (None, name)}
    failures = []
    with tempfile.TemporaryDirectory(prefix="shardd-net-", ignore_cleanup_errors=True) as scratch:
        settings = {"SHARDD_SERVER_CONNECTIONS_MAX": "12000"}
        if bad.handshakes in chosen.values():  # at the same port; the healthy client speaks plain
            settings |= {"SHARDD_TCP_TLS_MODE": "both", "SHARDD_TCP_TLS_SELF_SIGNED": "true"}
        with Server(Path(scratch) / "data", env=settings) as server:
            target = prepare(server)
            first_on_the_cpu()
            healthy = [wire.connect(server.address) for _ in range(HEALTHY)]
            measure_ms(healthy, 1.0)
            print(f"{'p99 in ms':16} {'alone':>9} {'beside':>9} {'ratio':>7} {'MiB':>9}", flush=True)
            for name, scenario in chosen.items():
                line = Line(name)
                for _ in range(given.rounds):
                    one_round(line, scenario, server, target, healthy, given.seconds)
                print(line, flush=True)
                if line.ratio > (CROWD_RATIO_MAX if name in crowds.CROWDS else RATIO_MAX):
                    failures.append(f"{name}: p99 is {line.ratio:.2f} times that of the healthy client alone")
                if scenario is bad.idle:
                    each = line.worker_bytes[0] / bad.IDLE  # later rounds find the memory of the first
                    print(f"{'':16} {each / 1024:.2f} KiB of the workers for an idle connection")
                    if each >= IDLE_BYTES_MAX:
                        failures.append(f"an idle connection costs {each / 1024:.1f} KiB")
            for connection in healthy:
                connection.close()
    print("\n".join(failures) or "passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
