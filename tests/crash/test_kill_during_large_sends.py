"""Kills while batches of 20 MB are written in parts: nothing acknowledged is lost, nobody sees a batch before its end.
`CRASH_KILLS` makes it longer."""

from __future__ import annotations

import os
import random
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.crash import faults
from tests.support import load, wire
from tests.support.checker import History, identity_of, make_payload
from tests.support.server import Server

KILLS = int(os.environ.get("CRASH_KILLS", "3"))
KILLS_OF_A_DIRECTORY = 15  # what is read at its end stays small
WORKER_KILLS_MAX = 4  # under one supervisor, which waits longer before each further restart of a young worker
BATCH_COUNT = 200
PAYLOAD_BYTES = 100_000
BATCH_BYTES = BATCH_COUNT * (wire.HEADER_SIZE + PAYLOAD_BYTES)
SMALL, FIRST_LARGE = 1, 2  # numbers of producers
SEGMENT_SIZES = ("32 MiB", "1 GiB")
# Kills when the logs have grown by this much. A process of its own, so that it runs beside the load.
KILLER = """
import os, sys, time
directory, growth, pids = sys.argv[1], int(sys.argv[2]), [int(pid) for pid in sys.argv[3:]]
def size():
    return sum(entry.stat().st_size for entry in os.scandir(directory) if entry.name.endswith(".log"))
start, deadline = size(), time.monotonic() + 30
print(flush=True)
while time.monotonic() < deadline:
    if size() - start >= growth:
        for pid in pids:
            os.kill(pid, 9)
        sys.exit(0)
sys.exit(1)
"""


class Watcher(load.LoadThread):
    """Looks at the last message of a partition, and notes those that are not the last one of a large batch."""

    def __init__(self, target: load.Target) -> None:
        super().__init__(target, "watcher")
        self.seen: dict[int, tuple[int, int]] = {}  # offset -> identity

    def step(self, connection: wire.Wire) -> None:
        polled = connection.poll(self.target.stream, self.target.topic, 0, strategy=wire.POLL_LAST, count=1)
        for message in polled.messages:
            identity = identity_of(message.payload)
            if identity is not None and identity[0] >= FIRST_LARGE and (identity[1] + 1) % BATCH_COUNT != 0:
                self.seen[message.offset] = identity


def seen_in_part(seen: Mapping[int, tuple[int, int]], contents: Sequence[wire.Message]) -> list[int]:
    """Offsets that somebody saw as the last ones, and whose batch went on behind them. What a kill has left of a batch
    does not go on: its producer sends all of it again."""
    there = {message.offset: identity_of(message.payload) for message in contents}
    return [offset for offset, (producer, n) in seen.items() if there.get(offset + 1) == (producer, n + 1)]


class Rounds:
    """A server with one partition for everybody, and the large producer of each round."""

    def __init__(self, data: Path, level: str, generator: random.Random) -> None:
        settings = {
            "SHARDD_SYSTEM_PARTITION_ACK": level,
            "SHARDD_SYSTEM_SEGMENT_SIZE": generator.choice(SEGMENT_SIZES),
        }
        self.data, self.generator, self.history = data, generator, History()
        self.server = Server(data, settings)
        self.server.start()
        with wire.connect(self.server.address) as connection:
            connection.create_topic(connection.create_stream("s"), "t", 1)
            token = connection.create_token("load")
            self.history.attempt((0, 0), make_payload(0, 0), 0)
            connection.send(0, 0, wire.to_partition(0), [wire.message(make_payload(0, 0))])
            self.history.acknowledge([(0, 0)])
        address = self.server.address
        self.large = load.Target(address, 0, 0, BATCH_COUNT, PAYLOAD_BYTES, answer_timeout_s=20.0, token=token)
        self.small = load.Target(address, 0, 0, 1, 100, answer_timeout_s=20.0, token=token)
        self.watcher = Watcher(self.small)
        self.beside = [load.PipelinedProducer(self.small, self.history, SMALL, [0], 4, pause_s=0.01), self.watcher]
        self.worker_kills = 0

    def victims(self) -> list[int]:
        workers = self.server.worker_pids()
        if self.worker_kills < WORKER_KILLS_MAX and self.generator.random() < 0.7:
            self.worker_kills += 1
            return [workers[load.owner_of(0, 0, 0, len(workers))]]
        self.worker_kills = 0
        return [self.server.pid, *workers]

    def kill_within_a_batch(self, number: int) -> None:
        producer = load.Producer(self.large, self.history, number, 0)
        growth = self.generator.randrange(1 << 20, BATCH_BYTES - (2 << 20))
        directory, victims = faults.log_path(self.data, 0, 0, 0).parent, self.victims()
        arguments = [str(directory), str(growth), *map(str, victims)]
        killer = subprocess.Popen([sys.executable, "-I", "-S", "-c", KILLER, *arguments], stdout=subprocess.PIPE)
        try:
            assert killer.stdout is not None
            killer.stdout.readline()
            producer.start()
            assert killer.wait(40) == 0, "no write was seen"
        finally:
            killer.kill()
            killer.communicate()
        if self.server.pid in victims:
            self.server.wait()
            self.server.start()
            self.large.address = self.small.address = self.server.address
        acknowledged = producer.acknowledged_batches
        faults.wait_until(lambda: producer.acknowledged_batches > acknowledged, "the producer goes on")
        producer.finish()

    def run(self, kills: int) -> None:
        for thread in self.beside:
            thread.start()
        for number in range(kills):
            self.kill_within_a_batch(FIRST_LARGE + number)
        for thread in self.beside:
            thread.finish()


def run_directory(data: Path, level: str, kills: int, generator: random.Random) -> tuple[int, int]:
    """Messages that stayed of cut batches, and torn tails."""
    rounds = Rounds(data, level, generator)
    try:
        rounds.run(kills)
        contents = load.read_partitions(rounds.large, [0], deadline_s=60.0)
        report = rounds.history.judge(contents)
        cut = rounds.server.log().count("torn tail")
    finally:
        for thread in rounds.beside:
            thread.stopping.set()
        rounds.server.stop()
    print(
        f"{level}, {kills} kills: {report.acknowledged} acknowledged, {report.stored} stored, "
        f"{report.repeats} repeats, {cut} torn tails, {len(rounds.watcher.seen)} seen"
    )
    report.require_clean()
    assert not seen_in_part(rounds.watcher.seen, contents[0])
    assert report.acknowledged >= kills * BATCH_COUNT
    return report.repeats, cut


@pytest.mark.parametrize("level", ["written", "durable"])
def test_acked_messages_survive_kills_between_the_parts_of_a_batch(tmp_path: Path, level: str) -> None:
    seed = int(os.environ.get("CRASH_SEED", secrets.randbelow(2**32)))
    print(f"CRASH_SEED={seed}")
    generator = random.Random(seed)
    left, hits = KILLS, 0
    while left > 0:
        kills = min(left, KILLS_OF_A_DIRECTORY)
        hits += sum(run_directory(tmp_path / f"data-{left}", level, kills, generator))
        left -= kills
    assert hits > 0, "no kill fell into a batch"


def _message(offset: int, identity: tuple[int, int]) -> wire.Message:
    return wire.Message(offset, 0, 0, b"", 0, 0, make_payload(*identity), b"", b"")


def test_canary_a_batch_that_was_seen_in_part_is_noticed() -> None:
    whole = [_message(offset, (2, offset)) for offset in range(BATCH_COUNT)]
    assert seen_in_part({7: (2, 7)}, whole) == [7]
    assert not seen_in_part({BATCH_COUNT - 1: (2, BATCH_COUNT - 1)}, whole)
    cut_by_a_kill = [*whole[:8], *(_message(8 + n, (2, n)) for n in range(BATCH_COUNT))]
    assert not seen_in_part({7: (2, 7)}, cut_by_a_kill)
