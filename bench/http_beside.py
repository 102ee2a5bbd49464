"""`python -m bench.http_beside`: what a TCP producer notices of HTTP. One producer sends 100 bytes at a time and waits
for each answer: alone, beside batches of 100 messages of 1 KB over HTTP, which come at half the rate that the door can
take, whether it has answered or not, and beside as many of the same batches over TCP. All take turns in one run."""

from __future__ import annotations

import argparse
import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

import psutil

from bench.http import CONNECTIONS, MESSAGES, PAYLOAD_BYTES, Wire, post, timed
from shardd.protocol.send_request import NewMessage, Partitioning, PartitioningKind, SendMessages
from tests.doors.http_server import HttpServer
from tests.support import wire

ROUNDS, CAPACITY_REQUESTS = 8, 4000
SETTLE_S = 1.5  # what was sent before is on the device then
Step = Callable[[], None]


def post_in_turns(address: tuple[str, int], request: bytes) -> Step:
    wires = [Wire(address) for _ in range(CONNECTIONS)]
    pending = [0] * len(wires)
    sent = 0

    def step() -> None:
        nonlocal sent
        number = sent % len(wires)
        if pending[number]:
            wires[number].receive()
            pending[number] -= 1
        wires[number].send(request)
        pending[number] += 1
        sent += 1

    return step


def send_over_tcp(address: str) -> Step:
    producer, messages = wire.connect(address), [wire.message(bytes(PAYLOAD_BYTES))] * MESSAGES
    return lambda: producer.send("s", "http", wire.to_partition(0), messages)


def drive(open_: Callable[[], Step], rate: float, stop: Event, ready: Event) -> None:
    """So many batches a second, by the clock: those that wait for their answer make none later."""
    os.nice(5)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # not bound as the producer is
    step = open_()
    began, sent = time.monotonic(), 0
    ready.set()
    while not stop.is_set():
        due = int((time.monotonic() - began) * rate)
        while sent < due:
            step()
            sent += 1
        time.sleep(0.001)


@contextmanager
def load(open_: Callable[[], Step], rate: float) -> Iterator[None]:
    context = get_context("fork")
    stop, ready = context.Event(), context.Event()
    process = context.Process(target=drive, args=(open_, rate, stop, ready), daemon=True)
    process.start()
    assert ready.wait(60)
    try:
        yield
    finally:
        stop.set()
        process.join(10)
        process.kill()


def others_than_the_owner(supervisor: int) -> set[int]:
    """CPUs for the producer: on that of the shard that it talks to, it would be three times as fast now and then."""
    workers = [each for each in psutil.Process(supervisor).children() if "shard " in each.cmdline()[0]]
    owner = max(workers, key=lambda worker: sum(worker.cpu_times()[:2]))
    return set(os.sched_getaffinity(0)) - set(owner.cpu_affinity() or ())


def p99_us(producer: wire.Wire, sends: int) -> float:
    times = []
    for _ in range(sends):
        began = time.perf_counter()
        producer.send("s", "t", wire.to_partition(0), [wire.message(bytes(100))])
        times.append(time.perf_counter() - began)
    return statistics.quantiles(times, n=100)[98] * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sends", type=int, default=3000, help="of the producer, in a round")
    sends = parser.parse_args().sends
    with tempfile.TemporaryDirectory() as directory, HttpServer(Path(directory) / "data") as server:
        root = server.root()
        root.done("POST", "/streams", {"name": "s"})
        root.done("POST", "/streams/s/topics", {"name": "t", "partitions_count": 1})
        root.done("POST", "/streams/s/topics", {"name": "http", "partitions_count": 1})
        batch = SendMessages.of(
            0, 0, Partitioning(PartitioningKind.PARTITION), [NewMessage(bytes(PAYLOAD_BYTES))] * MESSAGES
        )
        body = Partitioning(PartitioningKind.PARTITION, 0).encode() + struct.pack("<I", batch.count) + batch.batch
        request = post("/streams/s/topics/http/messages", root.token, body)
        wires = [Wire(server.http_address) for _ in range(CONNECTIONS)]
        capacity, _ = timed(wires, request, CAPACITY_REQUESTS, server.door())
        del wires
        rate = capacity / 2
        alone, http, tcp = [], [], []
        with wire.connect(server.address) as producer:
            p99_us(producer, sends)
            os.sched_setaffinity(0, others_than_the_owner(server.pid))
            for _ in range(ROUNDS):
                time.sleep(SETTLE_S)
                alone.append(p99_us(producer, sends))
                with load(lambda: post_in_turns(server.http_address, request), rate):
                    http.append(p99_us(producer, sends))
                time.sleep(SETTLE_S)
                with load(lambda: send_over_tcp(server.address), rate):
                    tcp.append(p99_us(producer, sends))
    print(f"p99 of a TCP producer, {rate:.0f} batches a second beside it: {statistics.median(alone):.0f} us alone")
    for name, beside in (("HTTP", http), ("TCP", tcp)):
        ratios = sorted(found / before for before, found in zip(alone, beside, strict=True))
        print(
            f"beside {name}: {statistics.median(beside):.0f} us, {statistics.median(ratios):.2f} times "
            f"[{ratios[0]:.2f}..{ratios[-1]:.2f}]"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
