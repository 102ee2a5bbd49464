"""The background sync reaches every dirty partition, however many there are (docs/guarantees.md)."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support import wire
from tests.unit.services_harness import Workers

PARTITIONS = 300  # several times the syncs that run at once
DEADLINE_S = 30.0


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
            waiting = {slot for slot in waiting if engine.stats(slot)[5] == 0}
        assert not waiting
