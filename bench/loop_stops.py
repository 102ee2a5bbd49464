"""How long a worker's loop stops while a huge stream is created, purged and deleted: `python -m bench.loop_stops`.

Beside the change one connection on each shard sends a PING every millisecond (answered by the engine) and another one
GET_ME (answered by Python). Their longest and 99th percentile answer times are the stops that clients see.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.crash import faults
from tests.support import wire
from tests.support.server import Server

PING, GET_ME, PURGE_STREAM = 1, 20, 205
PAUSE_S = 0.001
REQUEST_TIMEOUT_S = 300.0
TOPIC_PARTITIONS = 1_000


class Prober(threading.Thread):
    """Asks one shard the same thing again and again; `times_s` are the answer times."""

    def __init__(self, connection: wire.Wire, code: int) -> None:
        super().__init__(daemon=True)
        self.connection = connection
        self.code = code
        self.times_s: list[float] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            began = time.perf_counter()
            self.connection.request(self.code)
            self.times_s.append(time.perf_counter() - began)
            time.sleep(PAUSE_S)


@contextmanager
def probed(server: Server, what: str) -> Iterator[None]:
    """Prints the answer times beside the work in the block."""
    shards = len(server.worker_pids())
    probers = {
        (shard, name): Prober(faults.connection_on(server, shard), code)
        for shard in range(shards)
        for name, code in (("PING", PING), ("GET_ME", GET_ME))
    }
    for prober in probers.values():
        prober.start()
    began = time.perf_counter()
    yield
    seconds = time.perf_counter() - began
    for prober in probers.values():
        prober.stopping.set()
        prober.join(REQUEST_TIMEOUT_S)
        prober.connection.close()
    for (shard, name), prober in sorted(probers.items()):
        times = sorted(prober.times_s)
        p99_ms, max_ms = times[len(times) * 99 // 100] * 1000, times[-1] * 1000
        print(f"{what:<34} {seconds:6.2f} s  shard {shard} {name:<6} p99 {p99_ms:8.2f} ms  max {max_ms:8.2f} ms")


def make(connection: wire.Wire, name: str, partitions: int) -> int:
    stream = connection.create_stream(name)
    for number in range(partitions // TOPIC_PARTITIONS):
        connection.create_topic(stream, f"t{number}", TOPIC_PARTITIONS)
    return stream


def fill(connection: wire.Wire, stream: int, partitions: int) -> None:
    """One message in each partition, so that it has its files."""
    for number in range(partitions):
        place = wire.to_partition(number % TOPIC_PARTITIONS)
        connection.send(stream, number // TOPIC_PARTITIONS, place, [wire.message(b"x" * 100)])


def measure(server: Server, partitions: int, about: str, filled: bool) -> None:
    with wire.connect(server.address, timeout_s=REQUEST_TIMEOUT_S) as connection:
        stream = make(connection, about, partitions)
        steps: list[tuple[str, Callable[[], object]]] = [
            ("purge", lambda: connection.request(PURGE_STREAM, wire.identifier(stream))),
            ("delete", lambda: connection.delete_stream(stream)),
        ]
        for name, step in steps:
            if filled:
                fill(connection, stream, partitions)
            with probed(server, f"{name} {partitions} {about}"):
                step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--empty", type=int, default=100_000, help="partitions without files")
    parser.add_argument("--filled", type=int, default=5_000, help="partitions with files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, Server(Path(directory) / "data") as server:
        with probed(server, "nothing, for 2 s"):
            time.sleep(2)
        measure(server, arguments.empty, "empty partitions", filled=False)
        measure(server, arguments.filled, "partitions with files", filled=True)


if __name__ == "__main__":
    main()
