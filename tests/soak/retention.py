"""`make soak-retention`: an hour in which everything that is sent is removed again, by age and by size, of segments
that are compressed meanwhile, beside a consumer that has stopped: disk, memory and p99 stay flat.

    python -m tests.soak.retention [--minutes M] [--producers N] [--sample-every S] [--csv FILE] [--leak]

Two topics on one server: `aged` (expiry of a minute, zstd; a consumer has stored an offset in each partition once and
never again, which holds messages back for another minute) and `sized` (a limit of its size, lz4). Every producer has a
partition. A follower reads all of them in time and checks every message (truth.py). Each series is judged (series.py),
the p99 as a multiple of a control's (control.py), also once more with a planted leak, which must be found. With
`--leak` retention is off: the run must find that the directory grows. Exit status 1 when something was lost or grows.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path

from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.topic_settings import SetTopicSettings
from tests.soak.control import Control
from tests.soak.load import Latencies, Producer, Verifier
from tests.soak.run import Result, leak_of
from tests.soak.sampler import WARM_UP_S, Sampler
from tests.soak.series import judge
from tests.soak.truth import PartitionTruth
from tests.support import wire
from tests.support.load import Target
from tests.support.offset_history import OffsetHistory
from tests.support.server import Server
from tests.support.top import shard_figures

STREAM = "soak"
EXPIRY_S = 60
HELD_S = EXPIRY_S  # for the stopped consumer: the expiry once more
BYTES_OF_A_PRODUCER = 2 << 20  # of the limit of `sized`: what it sends in more than a minute
SETTINGS = {
    "SHARDD_SYSTEM_SEGMENT_SIZE": "256 KiB",
    "SHARDD_SYSTEM_MEMORY_POOL_SIZE": "64 MiB",  # touched whole soon: RSS has a top
    "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2",
    "IGGY_DATA_MAINTENANCE_MESSAGES_INTERVAL": "1 s",
}
FIRST = 3  # polling strategy
STOPPED = "stopped"


class Follower(Verifier):
    """Reads and checks; what is behind it is removed by others."""

    def step(self, connection: wire.Wire) -> None:
        for truth in self.truths:
            self.read(connection, truth)
        self.rounds += 1
        time.sleep(0.2)


class TopicLoad:
    """Producers and their follower of one topic; `start` once."""

    def __init__(self, address: str, topic: str, producers: int, seed: int, *, aged: bool, leak: bool) -> None:
        self.target = Target(address, STREAM, topic)
        self.aged = aged
        self.latencies = Latencies()
        self.truths = [PartitionTruth(partition) for partition in range(producers)]
        self.follower = Follower(self.target, self.truths, OffsetHistory())
        self.producers = [Producer(self.target, truth, self.latencies, seed + truth.partition) for truth in self.truths]
        self.threads = [*self.producers, self.follower]
        expiry_us = EXPIRY_S * 1_000_000 if aged else 0
        size = 0 if aged else producers * BYTES_OF_A_PRODUCER
        with wire.connect(address) as root:
            fixed = struct.pack("<IBQQB", producers, 1, expiry_us, size, 0)
            root.request(Code.CREATE_TOPIC, wire.identifier(STREAM) + fixed + wire.str8(topic))
            settings = (("compression", "zstd" if aged else "lz4"),) + ((("retention", "off"),) if leak else ())
            root.request(ExtensionCode.SET_TOPIC_SETTINGS, SetTopicSettings(STREAM, topic, settings).encode())

    def stop_a_consumer(self) -> None:
        """It has processed the first message of each partition, and is never seen again."""
        with wire.connect(self.target.address) as root:
            for truth in self.truths:
                while not root.poll(STREAM, self.target.topic, truth.partition, strategy=FIRST).messages:
                    time.sleep(0.1)
                root.store_offset(STREAM, self.target.topic, truth.partition, 0, STOPPED)

    def judge(self) -> list[str]:
        """Ends the load, reads what is left and compares."""
        for thread in self.threads:
            thread.finish()
        found: list[str] = []
        with wire.connect(self.target.address) as root:
            for truth in self.truths:
                self.follower.read(root, truth)
                truth.finish()
                [first] = root.poll(STREAM, self.target.topic, truth.partition, strategy=FIRST, count=1).messages
                age_s = time.time() - first.timestamp_us / 1e6
                if self.aged and age_s > 2 * (EXPIRY_S + HELD_S):
                    found.append(f"partition {truth.partition} still begins with a message {age_s:.0f} s old")
        return found + [str(each) for truth in self.truths for each in truth.findings]


class RetentionSoak:
    def __init__(self, root: Path, producers: int, seed: int, *, leak: bool, warm_up_s: float = WARM_UP_S) -> None:
        self.server = Server(root / "data", SETTINGS)
        self.loads: list[TopicLoad] = []
        self.control = Control(seed)
        self.sampler = Sampler(warm_up_s)
        try:
            self.server.start()
            with wire.connect(self.server.address) as connection:
                connection.create_stream(STREAM)
            for number, topic in enumerate(("aged", "sized")):
                self.loads.append(
                    TopicLoad(
                        self.server.address, topic, producers // 2, seed + 1000 * number, aged=number == 0, leak=leak
                    )
                )
        except BaseException:
            self.stop()
            raise

    def run(self, duration_s: float, sample_every_s: float) -> None:
        for thread in (thread for load in self.loads for thread in load.threads):
            thread.start()
        self.control.start()
        self.loads[0].stop_a_consumer()
        end = time.monotonic() + duration_s
        while time.monotonic() < end and not self.failures():
            time.sleep(sample_every_s)
            answers = [seconds for load in self.loads for seconds in load.latencies.take()]
            control = self.control.latencies.take()
            self.sampler.sample("retention", self.server, answers, disturbed=False, control_s=control)

    def failures(self) -> list[str]:
        threads = [thread for load in self.loads for thread in load.threads]
        return [f"{thread.name}: {thread.failure!r}" for thread in threads if thread.failure is not None]

    def finish(self) -> Result:
        """Ends the load, reads and judges everything; the server still runs."""
        result = Result([judge(series) for _, series in sorted(self.sampler.series.items())])
        result.problems += self.failures()
        if not result.problems:
            result.problems += [f"{load.target.topic}: {finding}" for load in self.loads for finding in load.judge()]
        result.problems += [f"it grows: {verdict.row()}" for verdict in result.verdicts if verdict.flat is False]
        judged = [verdict for verdict in result.verdicts if verdict.flat is not None]
        missed = [each for each in judged if judge(each.series.with_leak(leak_of(each))).flat]
        result.problems += [f"a planted leak is not found: {verdict.row()}" for verdict in missed]
        shards = shard_figures(self.server.address)
        sums = {name: sum(each[name] for each in shards) for name in shards[0] if name.startswith(("ret", "compr"))}
        result.figures = (
            f"{sum(truth.acknowledged for load in self.loads for truth in load.truths):,} messages acknowledged and "
            f"verified, {len(result.problems)} findings; "
            f"{sum(each.flat is True for each in judged)} of {len(judged)} series flat "
            f"({len(result.verdicts) - len(judged)} too short to say), "
            f"{len(judged) - len(missed)} planted leaks found; "
            + ", ".join(f"{name} {value:,}" for name, value in sums.items())
        )
        return result

    def stop(self) -> None:
        self.control.stop()
        for load in self.loads:
            for thread in load.threads:
                thread.stopping.set()
        if self.server.started:
            self.server.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description="An hour of retention and compression: nothing grows.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--producers", type=int, default=16, help="half of them in each topic")
    parser.add_argument("--sample-every", type=float, default=10.0, help="seconds")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--csv", type=Path, default=Path("soak-retention.csv"))
    parser.add_argument("--directory", type=Path, default=None, help="for the data; default: a temporary one")
    parser.add_argument("--leak", action="store_true", help="retention is off: it must be found that the disk fills")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else secrets.randbelow(2**32)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an end in order: the server ends, too
    root = Path(tempfile.mkdtemp(prefix="shardd-soak-", dir=given.directory))
    print(f"seed {seed}, data in {root}, {given.minutes:.1f} minutes", flush=True)
    soak = RetentionSoak(root, given.producers, seed, leak=given.leak)
    try:
        soak.run(given.minutes * 60, given.sample_every)
        result = soak.finish()
    finally:
        soak.stop()
    soak.sampler.write_csv(given.csv)
    print("\n".join(result.table()))
    for problem in result.problems[:20]:
        print(f"FINDING {problem}")
    print(f"soak-retention: {given.minutes:.0f} minutes, {result.figures}; seed {seed}; samples in {given.csv}")
    if not result.problems:
        shutil.rmtree(root)
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
