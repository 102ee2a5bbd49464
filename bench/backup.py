"""`python -m bench.backup`: what a backup costs producers.

A producer for each shard, in a process of its own, sends a batch every 2 ms. Rounds: so many seconds without a backup,
then as many in which one full backup follows the other; linked ones beside the data, then copies into memory
(`--copies DIR`: another file system), which read every byte. Printed for each round, and the ratio of the median p99s.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from bench import lines
from bench.targets import Shardd
from bench.wire import Wire, send_request
from shardd.config.schema import ACK_LEVELS
from shardd.protocol.codes import Code

INTERVAL_S: Final = 0.002
BATCH_COUNT: Final = 10
PAYLOAD_BYTES: Final = 1000
PREFILL_COUNT: Final = 1000  # messages of a request
RATIO_MAX: Final = 1.5
TIMEOUT_S: Final = 120.0


@dataclass(frozen=True)
class Round:
    """Figures of the sends without and with backups; how many these were, and their median time."""

    quiet: dict[str, float]
    backup: dict[str, float]
    backups: int
    backup_s: float


def produce(port: int, stream: int, control: Connection) -> None:
    """In a process of its own: sends at a fixed pace; answers each word with the milliseconds of the sends since the
    last one, until the word is empty."""
    request = send_request(stream, os.urandom(PAYLOAD_BYTES), BATCH_COUNT)
    taken: list[float] = []
    with Wire(port) as wire:
        due = time.monotonic()
        while True:
            if control.poll():
                if not control.recv():
                    return
                control.send(taken)
                taken = []
            started = time.monotonic()
            wire.request(Code.SEND_MESSAGES, request)
            taken.append((time.monotonic() - started) * 1000)
            due = max(due + INTERVAL_S, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))


def figures(taken: list[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(taken)
    return {
        "sends": len(ordered),
        "median_ms": round(ordered[len(ordered) // 2], 3),
        "p99_ms": round(ordered[len(ordered) * 99 // 100], 3),
        "longest_ms": round(ordered[-1], 3),
    }


def back_up(data: Path, directory: Path, rate: str) -> float:
    """One full backup by the command; seconds."""
    command = [sys.executable, "-m", "shardd", "backup", "create", str(directory), "--full"]
    started = time.monotonic()
    command += ["--data", str(data), "--rate-bytes-per-second", rate]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)
    return time.monotonic() - started


def fill(server: Shardd, prefill_bytes: int) -> list[int]:
    """A stream for each shard whose partition it owns, with so many bytes in all."""
    streams: dict[int, int] = {}
    with Wire(server.port) as admin:
        for number in range(64):
            stream = admin.create_stream(f"backup-{number}")
            streams.setdefault(lines.owner(stream, server.shards), stream)
            if len(streams) == server.shards:
                break
        for stream in streams.values():
            admin.create_topic(stream, "backup", 1)
            request = send_request(stream, os.urandom(PAYLOAD_BYTES), PREFILL_COUNT)
            for _ in range(prefill_bytes // len(request) // len(streams)):
                admin.request(Code.SEND_MESSAGES, request)
    return list(streams.values())


class Producers:
    """One for each stream."""

    def __init__(self, port: int, streams: list[int]) -> None:
        context = multiprocessing.get_context("spawn")
        self._ends: list[Connection] = []
        for stream in streams:
            ours, theirs = context.Pipe()
            context.Process(target=produce, args=(port, stream, theirs), daemon=True).start()
            self._ends.append(ours)

    def during(self, work: Callable[[], object]) -> list[float]:
        """Milliseconds of the sends while `work` runs."""
        for end in self._ends:
            end.send("begin")
            end.recv()
        work()
        for end in self._ends:
            end.send("end")
        return [each for end in self._ends for each in end.recv()]

    def stop(self) -> None:
        for end in self._ends:
            end.send("")


def run_round(producers: Producers, data: Path, kind: str, directory: Path, options: argparse.Namespace) -> Round:
    """A window without backups and one with them."""
    taken_s: list[float] = []

    def backups() -> None:
        until = time.monotonic() + options.seconds
        while time.monotonic() < until:
            taken_s.append(back_up(data, directory, options.rate))
            if kind == "copied":  # its room is needed again
                shutil.rmtree(directory)

    quiet = producers.during(lambda: time.sleep(options.seconds))
    busy = producers.during(backups)
    return Round(figures(quiet), figures(busy), len(taken_s), round(statistics.median(taken_s), 2))


def measure(server: Shardd, targets: dict[str, Path], options: argparse.Namespace) -> dict[str, list[Round]]:
    """Rounds by the kind of backup."""
    producers = Producers(server.port, fill(server, options.prefill_mib << 20))
    found: dict[str, list[Round]] = {kind: [] for kind in targets}
    producers.during(lambda: time.sleep(2 * options.seconds))  # the device has what was sent before
    for _ in range(options.rounds):
        for kind, directory in targets.items():
            found[kind].append(run_round(producers, server.directory, kind, directory, options))
            print(json.dumps({"kind": kind, **asdict(found[kind][-1])}), flush=True)
    producers.stop()
    return found


def ratio(rounds: list[Round]) -> float:
    """Median of the p99s with a backup over that without."""
    busy = statistics.median(each.backup["p99_ms"] for each in rounds)
    return busy / statistics.median(each.quiet["p99_ms"] for each in rounds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--prefill-mib", type=int, default=512)
    parser.add_argument("--rate", default="0", help="--rate-bytes-per-second of the backups")
    parser.add_argument("--level", default="written", choices=ACK_LEVELS)
    parser.add_argument("--copies", type=Path, default=Path("/dev/shm"), help="a directory on another file system")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shardd-bench-") as base:
        targets = {"linked": Path(base) / "backups"}
        if options.copies.is_dir() and options.copies.stat().st_dev != Path(base).stat().st_dev:
            targets["copied"] = Path(tempfile.mkdtemp(prefix="shardd-bench-", dir=options.copies))
        settings = {"SHARDD_SYSTEM_SEGMENT_SIZE": "64 MiB", "SHARDD_SYSTEM_PARTITION_ACK": options.level}
        server = Shardd(Path(base) / "shardd", sorted(os.sched_getaffinity(0)), None, settings)
        try:
            found = measure(server, targets, options)
        finally:
            server.stop()
            if "copied" in targets:
                shutil.rmtree(targets["copied"], ignore_errors=True)
    ratios = {kind: round(ratio(rounds), 2) for kind, rounds in found.items()}
    for kind, value in ratios.items():
        verdict = "held" if value <= RATIO_MAX else "missed"
        print(f"p99 of producers with {kind} backups over without: {value} (at most {RATIO_MAX}: {verdict})")
    return 0 if max(ratios.values()) <= RATIO_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
