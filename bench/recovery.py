"""What a start costs before the partitions are served: `python -m bench.recovery`.

Two directories are filled through a server and stay in the page cache: many partitions with little behind their
checkpoints each, and few partitions with much. In each round the server is killed and started again; the figure is the
recovery phase of the slowest worker, as its own metrics have it. With a checkpoint of everything (an orderly stop
that had the time to sync) the same directory shows what is left.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import report
from tests.support import wire
from tests.support.server import Server
from tests.support.top import shard_figures

TARGET_S: Final = 1.0
PAYLOAD_BYTES: Final = 1000
RECORD_BYTES: Final = 64 + PAYLOAD_BYTES
TOPIC_PARTITIONS: Final = 1000
REQUEST_MESSAGES: Final = 900  # in one request, below a MiB
FEW: Final = 8
START_TIMEOUT_S: Final = 300.0
UNSYNCED: Final = {  # hence no checkpoint
    "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "1 h",
    "SHARDD_MESSAGE_SAVER_INTERVAL": "1 h",
}


@dataclass(frozen=True)
class Recovered:
    """One start: seconds of the slowest worker, CPU time of the busiest one, and what all of them found."""

    seconds: float
    cpu_seconds: float
    partitions: int
    scanned_bytes: int


def recovery_of(server: Server) -> Recovered:
    figures = shard_figures(server.address)
    return Recovered(
        max(each["recovery.phase_microseconds"] for each in figures) / 1e6,
        max(each["recovery.phase_cpu_microseconds"] for each in figures) / 1e6,
        sum(each["recovery.partitions"] for each in figures),
        sum(each["recovery.scanned_bytes"] for each in figures),
    )


def fill(server: Server, partitions: int, size_bytes: int) -> int:
    """Spreads that much over so many partitions; bytes of all logs."""
    message = wire.message(b"r" * PAYLOAD_BYTES)
    each = max(1, size_bytes // (partitions * RECORD_BYTES))
    with wire.connect(server.address, timeout_s=60.0) as connection:
        stream = connection.create_stream("recovery")
        for first in range(0, partitions, TOPIC_PARTITIONS):
            count = min(TOPIC_PARTITIONS, partitions - first)
            topic = connection.create_topic(stream, f"t{first}", count)
            for partition in range(count):
                for sent in range(0, each, REQUEST_MESSAGES):
                    batch = [message] * min(REQUEST_MESSAGES, each - sent)
                    connection.send(stream, topic, wire.to_partition(partition), batch)
    return partitions * each * RECORD_BYTES


def measure(name: str, base: Path, partitions: int, size_bytes: int, rounds: int) -> bool:
    """Prints one row; whether all starts found all."""
    server = Server(base / name, UNSYNCED)
    server.start()
    try:
        written = fill(server, partitions, size_bytes)
        found = []
        for _ in range(rounds):
            server.kill_supervisor()
            server.start(START_TIMEOUT_S)
            found.append(recovery_of(server))
        server.stop(60.0)
        server.start(START_TIMEOUT_S)
        orderly = recovery_of(server)
    finally:
        server.stop(60.0)
    times, cpu = [each.seconds for each in found], statistics.median(each.cpu_seconds for each in found)
    median, gib = statistics.median(times), written / (1 << 30)
    spread = f"{median:.2f} s [{min(times):.2f}..{max(times):.2f}] (CPU of the worker {cpu:.2f} s)"
    each = f"{median / gib:.2f} s/GiB, {median / partitions * 10_000:.2f} s/10,000 partitions"
    rest = f"after an orderly stop {orderly.seconds:.2f} s, {orderly.scanned_bytes} bytes scanned"
    print(f"{name:5} {partitions:6} partitions, {gib:.2f} GiB unverified: {spread}, {each}; {rest}", flush=True)
    if name == "many":
        print(f"      target <= {TARGET_S:.0f} s: {'met' if median <= TARGET_S else 'NOT met'}")
    whole = all((each.partitions, each.scanned_bytes) == (partitions, written) for each in found)
    if not whole or orderly.partitions != partitions:
        print(f"      NOT what was written: {found} {orderly}")
        return False
    return True


def main(words: list[str] | None = None) -> int:
    """0 when every start found all that was written."""
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--mib", type=int, default=1024, help="unverified, in all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"))
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="shardd-recovery-", dir=options.directory.resolve()) as base:
        for key, value in report.machine(Path(base)).items():
            print(f"{key + ':':15} {value}")
        size_bytes = options.mib << 20
        good = measure("many", Path(base), options.partitions, size_bytes, options.rounds)
        good &= measure("few", Path(base), min(FEW, options.partitions), size_bytes, options.rounds)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
