"""The background sync reaches every dirty partition, however many there are (docs/guarantees.md)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support import wire
from tests.unit.services_harness import Workers

PARTITIONS = 300  # several times the syncs that run at once
DEADLINE_S = 30.0


@pytest.mark.parametrize(("level", "synced"), [("written", True), ("memory", True), ("memory", False)])
def test_the_message_saver_bounds_the_background_sync(tmp_path: Path, level: str, synced: bool) -> None:
    settings = {
        "system.partition.ack": level,
        "system.partition.sync_interval": "1 h",
        "message_saver.interval": "20 ms",
        "message_saver.enforce_fsync": str(synced).lower(),
    }
    with Workers(tmp_path, settings=settings) as workers, workers.connect() as client:
        client.create_stream("st")
        client.create_topic("st", "tp", 1)
        client.send("st", "tp", wire.to_partition(0), [wire.message(b"x")])
        log = tmp_path / "streams/0/topics/0/partitions/0/00000000000000000000.log"
        deadline = time.monotonic() + DEADLINE_S
        while not (log.exists() and log.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert log.stat().st_size == len(wire.message(b"x"))
        while synced and not durable_end(workers) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert durable_end(workers) == int(synced)


def durable_end(workers: Workers) -> int:
    [topic] = workers.context().metadata.state.streams[0].topics.values()
    return int(workers.context().engine.stats(topic.partitions[0].slot).durable_offset)


def test_the_durable_end_reaches_every_partition_while_sends_go_on(tmp_path: Path) -> None:
    with Workers(tmp_path) as workers, workers.connect() as client:
        client.create_stream("st")
        client.create_topic("st", "tp", PARTITIONS)
        [topic] = workers.context().metadata.state.streams[0].topics.values()
        waiting = {partition.slot for partition in topic.partitions}
        deadline = time.monotonic() + DEADLINE_S
        while waiting and time.monotonic() < deadline:
            for _ in range(PARTITIONS):
                client.send("st", "tp", wire.balanced(), [wire.message(b"x")])
            engine = workers.context().engine
            waiting = {slot for slot in waiting if engine.stats(slot).durable_offset == 0}
        assert not waiting
