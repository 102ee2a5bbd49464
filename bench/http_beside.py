"""`python -m bench.http_beside`: what a TCP producer notices of HTTP. One producer sends 100 bytes at a time and waits
for each answer, alone and beside batches of 100 messages of 1 KB over HTTP, which come at half the rate that the door
can take, whether it has answered or not. Both ways take turns in one run."""

from __future__ import annotations

import argparse
import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

from bench.http import CONNECTIONS, MESSAGES, PAYLOAD_BYTES, Wire, post, timed
from shardd.protocol.send_request import NewMessage, Partitioning, PartitioningKind, SendMessages
from tests.doors.http_server import HttpServer
from tests.support import wire

ROUNDS, CAPACITY_REQUESTS = 5, 800


def drive(address: tuple[str, int], request: bytes, rate: float, stop: Event, ready: Event) -> None:
    """So many requests a second, by the clock: a connection that waits for its answer makes none later."""
    os.nice(5)
    wires = [Wire(address) for _ in range(CONNECTIONS)]
    pending = [0] * len(wires)
    began, sent = time.monotonic(), 0
    ready.set()
    while not stop.is_set():
        due = int((time.monotonic() - began) * rate)
        while sent < due:
            number = sent % len(wires)
            if pending[number]:
                wires[number].receive()
                pending[number] -= 1
            wires[number].send(request)
            pending[number] += 1
            sent += 1
        time.sleep(0.001)


@contextmanager
def http_load(address: tuple[str, int], request: bytes, rate: float) -> Iterator[None]:
    context = get_context("fork")
    stop, ready = context.Event(), context.Event()
    process = context.Process(target=drive, args=(address, request, rate, stop, ready), daemon=True)
    process.start()
    assert ready.wait(60)
    try:
        yield
    finally:
        stop.set()
        process.join(10)
        process.kill()


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
        alone, beside = [], []
        with wire.connect(server.address) as producer:
            p99_us(producer, sends)
            for _ in range(ROUNDS):
                alone.append(p99_us(producer, sends))
                with http_load(server.http_address, request, capacity / 2):
                    beside.append(p99_us(producer, sends))
    ratio = statistics.median(found / before for before, found in zip(alone, beside, strict=True))
    print(
        f"p99 of a TCP producer: {statistics.median(alone):.0f} us alone, {statistics.median(beside):.0f} us beside "
        f"{capacity / 2:.0f} batches a second over HTTP, {ratio:.2f} times"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
