"""Random processes of a server under load are killed; nothing that was acknowledged may be missing or changed."""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.crash import faults
from tests.support import load, wire
from tests.support.checker import History, Place, Report
from tests.support.server import Server

PARTITIONS = 6
PLACES: tuple[Place, ...] = (0, 1, 2, 3, b"first key", b"second key")
PROGRESS_TIMEOUT_S = 20.0
WORKER_KILLS_MAX = 5  # under one supervisor, which waits longer before each further restart
PAUSE_S = 0.001  # leaves the machine some room, and the judge less to read


class Cluster:
    """A server, the load on it, and the ways to hurt it."""

    def __init__(self, data: Path, level: str) -> None:
        self.data = data
        self.level = level
        self._start()
        with wire.connect(self.server.address) as connection:
            connection.create_topic(connection.create_stream("load"), "load", PARTITIONS)
        self.target = load.Target(self.server.address, "load", "load", batch_count=3)
        self.history = History()
        self.producers = [
            load.Producer(self.target, self.history, n, place, pause_s=PAUSE_S) for n, place in enumerate(PLACES)
        ]
        self.readers = [load.Reader(self.target, self.history, partition) for partition in (0, 3)]

    def kill_worker(self, shard: int) -> None:
        faults.kill9(self.server.worker_pids()[shard])

    def kill_supervisor(self) -> None:
        self.server.kill_supervisor()
        self._restart()

    def kill_all(self) -> None:
        workers = self.server.worker_pids()
        self.server.kill_supervisor()
        for pid in workers:
            if faults.is_running(pid):
                faults.kill9(pid)
        self._restart()

    def _start(self) -> None:
        self.server = Server(self.data, {"SHARDD_SYSTEM_PARTITION_ACK": self.level})
        self.server.start()

    def _restart(self) -> None:
        self._start()
        self.target.address = self.server.address

    def wait_for_progress(self) -> float:
        """Seconds until each producer got at least one more answer."""
        before = [producer.acknowledged_batches for producer in self.producers]
        return faults.wait_until(
            lambda: all(
                p.acknowledged_batches > old or p.failure is not None
                for p, old in zip(self.producers, before, strict=True)
            ),
            "every producer is answered again",
            PROGRESS_TIMEOUT_S,
        )

    def judge(self) -> Report:
        for thread in [*self.producers, *self.readers]:
            thread.finish()
        return self.history.judge(load.read_partitions(self.target, range(PARTITIONS)))


@contextmanager
def running_cluster(data: Path, level: str) -> Iterator[Cluster]:
    cluster = Cluster(data, level)
    try:
        for thread in [*cluster.producers, *cluster.readers]:
            thread.start()
        yield cluster
    finally:
        for thread in [*cluster.producers, *cluster.readers]:
            thread.stopping.set()
        cluster.server.stop()


def kill_randomly(cluster: Cluster, generator: random.Random, kills: int) -> None:
    worker_kills = 0
    for _ in range(kills):
        print(f"all producers were answered after {cluster.wait_for_progress() * 1000:.0f} ms")
        time.sleep(generator.uniform(0.0, 0.3))
        shards = len(cluster.server.worker_pids())
        victim = generator.choice(["worker"] * 6 + ["shard 0"] * 3 + ["supervisor", "all"])
        if worker_kills == WORKER_KILLS_MAX:
            victim = "all"
        worker_kills = 0 if victim in ("supervisor", "all") else worker_kills + 1
        print(f"kill -9 of {victim}")
        if victim == "worker":
            cluster.kill_worker(generator.randrange(shards))
        elif victim == "shard 0":
            cluster.kill_worker(0)
        elif victim == "supervisor":
            cluster.kill_supervisor()
        else:
            cluster.kill_all()
    cluster.wait_for_progress()


def battery(data: Path, kills: int, level: str = "written") -> None:
    seed = int(os.environ.get("CRASH_SEED", secrets.randbelow(2**32)))
    print(f"CRASH_SEED={seed}")
    with running_cluster(data, level) as cluster:
        kill_randomly(cluster, random.Random(seed), kills)
        report = cluster.judge()
        report.require_clean()
        assert report.acknowledged > (100 if level == "written" else 20) * kills
        assert sum(producer.errors for producer in cluster.producers) >= kills, "the kills did not hit the load"
        print(f"{kills} kills: {report.acknowledged} acknowledged, {report.stored} stored, {report.repeats} repeats")


@pytest.mark.timeout(240)
def test_acked_messages_survive_20_kills_of_random_processes(tmp_path: Path) -> None:
    battery(tmp_path, 20)


@pytest.mark.timeout(240)
def test_acked_messages_survive_kills_of_random_processes_at_durable(tmp_path: Path) -> None:
    battery(tmp_path, 4, "durable")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_acked_messages_survive_200_kills_of_random_processes(tmp_path: Path) -> None:
    battery(tmp_path, 200)
