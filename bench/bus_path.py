"""`python -m bench.bus_path`: what it costs that the bus proves who is who.

Round trips over the real bus between two pinned processes, with its own sockets and with open ones: an address in the
abstract namespace, no key, no proof of the sender. The two alternate; the ratios are of neighbouring rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Final

import msgspec
import zmq
import zmq.asyncio

from bench import report
from shardd.runtime.bus import Bus, Senders
from shardd.runtime.bus_sockets import BusSockets, TrustedSockets
from shardd.runtime.trust import Trust, TrustInheritance
from shardd.server.introductions import Introductions, make_private_listeners

COLUMNS = ("sockets", "in flight", "payload bytes", "us per request", "CPU us per request", "ratio of time", "of CPU")
CASES: Final = ((1, 128), (16, 128), (1, 100_000))
WARM_UP: Final = 200


class BusEnd(msgspec.Struct):
    """What one of the two processes is told. `address`: of the open sockets, empty: the bus's own."""

    shard: int
    address: str
    trust: TrustInheritance
    cpu: int


class OpenSockets:
    """As the bus would be without trust."""

    refused_count = 0

    def __init__(self, address: str, shard: int) -> None:
        self._address = address
        self._shard = shard
        self._context = zmq.asyncio.Context()

    def listen(self) -> zmq.asyncio.Socket:
        router = self._context.socket(zmq.ROUTER)
        router.bind(f"{self._address}-{self._shard}")
        return router

    def dial(self, shard: int) -> zmq.asyncio.Socket:
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"{self._address}-{shard}")
        return dealer

    async def receive(self, router: zmq.asyncio.Socket) -> tuple[int, list[bytes]]:
        return 1 - self._shard, await router.recv_multipart()

    def close(self) -> None:
        self._context.term()


def make_bus(place: BusEnd) -> Bus:
    sockets: BusSockets = OpenSockets(place.address, place.shard)
    if not place.address:
        sockets = TrustedSockets(place.trust, Trust(place.trust), 2, hear=lambda: None)
    os.sched_setaffinity(0, {place.cpu})
    return Bus(place.shard, 2, sockets)


async def serve(place: BusEnd) -> None:
    """Until the standard input ends; the CPU time used goes to the standard output."""
    bus = make_bus(place)

    async def echo(sender: int, payload: bytes) -> bytes:
        return payload

    bus.serve("echo", Senders.ANY_SHARD, echo)
    await bus.start()
    before = _cpu_us()
    await asyncio.to_thread(sys.stdin.read)
    print(_cpu_us() - before, flush=True)
    await bus.close()


async def ask(place: BusEnd, requests: int, depth: int, payload: bytes) -> tuple[float, float]:
    """Microseconds, and CPU microseconds here, of a request."""
    bus = make_bus(place)
    await bus.start()

    async def client(count: int) -> None:
        for _ in range(count):
            await bus.request(1, "echo", payload)

    await client(WARM_UP)
    before, started = _cpu_us(), time.perf_counter()
    await asyncio.gather(*(client(requests // depth) for _ in range(depth)))
    elapsed_us, cpu_us = (time.perf_counter() - started) * 1e6, _cpu_us() - before
    await bus.close()
    return elapsed_us / requests, cpu_us / requests


def _cpu_us() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e6


def measure_round(trusted: bool, requests: int, depth: int, payload_bytes: int) -> tuple[float, float]:
    """(microseconds, CPU microseconds of both processes) of a request."""
    home = sorted(os.sched_getaffinity(0))
    address = "" if trusted else f"ipc://@shardd-bench-{uuid.uuid4()}"
    with tempfile.TemporaryDirectory() as directory:
        introductions = Introductions(make_private_listeners(Path(directory), 2))
    places = [BusEnd(shard, address, introductions.inheritance(shard), home[-shard]) for shard in (0, 1)]
    command = [sys.executable, "-m", "bench.bus_path", "--serve", msgspec.json.encode(places[1]).decode()]
    inherited = places[1].trust.descriptors()
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=inherited, text=True) as peer:
        try:
            us, cpu_us = asyncio.run(ask(places[0], requests, depth, bytes(payload_bytes)))
            peer_us = float(peer.communicate(timeout=30)[0])
        finally:
            os.sched_setaffinity(0, home)
            peer.kill()
            introductions.close()
    return us, cpu_us + peer_us / (requests + WARM_UP)


def measure(rounds: int, requests: int) -> list[list[str]]:
    """Rows of COLUMNS, medians over the rounds."""
    out = []
    for depth, size in CASES:
        found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for _ in range(rounds):
            for trusted in (False, True):
                found[trusted].append(measure_round(trusted, requests, depth, size))
        for trusted, name in ((False, "open"), (True, "trusted")):
            row = [name, str(depth), str(size)]
            row += [f"{statistics.median(each[i] for each in found[trusted]):.1f}" for i in (0, 1)]
            pairs = list(zip(found[trusted], found[False], strict=True))
            row += [f"{statistics.median(a[i] / b[i] for a, b in pairs):.2f}" for i in (0, 1)]
            out.append(row)
    return out


def main(words: list[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.bus_path", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=8_000, help="of a round")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.serve:
        asyncio.run(serve(msgspec.json.decode(options.serve, type=BusEnd)))
        return 0
    print("\n".join(f"{key}: {value}" for key, value in report.machine(Path.cwd()).items()) + "\n")
    table = report.markdown_table if options.markdown else report.text_table
    print(table(COLUMNS, measure(options.rounds, options.requests)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
