"""Descriptors of the log while its segments are made, compressed, read and removed again: those of removed segments are
closed, those of the others are as many as the log may have open, and nothing else grows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from shardd.log import layout
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.topic_settings import SetTopicSettings
from tests.soak.sampler import descriptors
from tests.support import wire
from tests.support.server import ONE_SHARD, Server
from tests.support.top import shard_figures

PARTITIONS = 4
ROUNDS = 4
SEGMENTS = 80  # of a partition in a round: more than may be open
OPEN_MAX = 64  # SEGMENT_FILES_PER_PARTITION of native/src/log/segment.h, each with its index
SYNCING = 4  # copies for a sync that is under way
MESSAGES = 3 * SEGMENTS  # each a little more than a third of one
TIMEOUT_S = 120.0
ENV = ONE_SHARD | {
    "SHARDD_SYSTEM_SEGMENT_SIZE": "2 KiB",
    "SHARDD_DATA_MAINTENANCE_MESSAGES_INTERVAL": "100 ms",
    "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "50 ms",
}


def until(server: Server, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.05)


def keep(root: wire.Wire, count: int) -> None:
    settings = SetTopicSettings("s", "t", (("partition_messages_max", str(count)),))
    root.request(ExtensionCode.SET_TOPIC_SETTINGS, settings.encode())


def logs(server: Server) -> list[Path]:
    return [
        path
        for partition in range(PARTITIONS)
        for path in layout.partition_directory(server.data_dir, 0, 0, partition).glob("*.log")
    ]


def test_descriptors_stay_within_their_bound_and_those_of_removed_segments_are_closed(tmp_path: Path) -> None:
    with Server(tmp_path / "data", ENV) as server, wire.connect(server.address) as root:
        root.create_topic(root.create_stream("s"), "t", PARTITIONS)
        [pid] = server.worker_pids()
        others: list[int] = []
        for _ in range(ROUNDS):
            keep(root, 1_000_000)
            for _ in range(MESSAGES):
                for partition in range(PARTITIONS):
                    root.send("s", "t", wire.to_partition(partition), [wire.message(b"x" * 1000)])
            for partition in range(PARTITIONS):
                assert len(root.read_all("s", "t", partition)) >= MESSAGES
            assert len(logs(server)) >= PARTITIONS * SEGMENTS
            until(server, lambda: descriptors(pid)[0] <= PARTITIONS * OPEN_MAX * 2 + SYNCING)
            keep(root, 1)
            until(server, lambda: len(logs(server)) <= 2 * PARTITIONS)
            until(server, lambda: descriptors(pid)[0] <= 2 * 2 * PARTITIONS + SYNCING)
            until(server, lambda: sum(row["sealing.waiting"] for row in shard_figures(server.address)) == 0)
            until(server, lambda: not others or descriptors(pid)[1] <= others[0])
            others.append(descriptors(pid)[1])
        assert others[-1] <= others[0]
