"""Servers on a device that stands still, and what loads and asks them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

from shardd.client import commands
from shardd.client.values import Metrics
from tests.support import load, wire
from tests.support.checker import History
from tests.support.frozen_disk import FrozenDisk
from tests.support.server import Server

PARTITIONS = 8
TWO_SHARDS = {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}
PATIENT_S = 40.0  # no client of these tests gives up before the server does


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def serving(disk: FrozenDisk, env: dict[str, str] | None = None) -> Iterator[Server]:
    """A server on the disk; its log is elsewhere."""
    with Server(disk.place, TWO_SHARDS | (env or {})) as server:
        with wire.connect(server.address) as root:
            root.create_topic(root.create_stream("s"), "t", PARTITIONS)
        yield server


class Load:
    """A producer for each of some partitions; every one of them keeps its connection."""

    def __init__(self, server: Server, partitions: list[int]) -> None:
        self.partitions = partitions
        self.target = load.Target(server.address, 0, 0, answer_timeout_s=PATIENT_S)
        self.history = History()
        self.producers = [
            load.Producer(self.target, self.history, number, number, pause_s=0.02) for number in partitions
        ]

    def __enter__(self) -> Self:
        for producer in self.producers:
            producer.start()
        self.progress()
        return self

    def __exit__(self, *_: object) -> None:
        for producer in self.producers:
            producer.finish(PATIENT_S + 10)

    @property
    def errors(self) -> list[str]:
        return [producer.last_error for producer in self.producers if producer.errors]

    def progress(self) -> None:
        """Every producer gets an answer to something that it sends from now on."""
        before = [producer.acknowledged_batches for producer in self.producers]
        wait_until(
            lambda: all(
                producer.acknowledged_batches >= count + 2
                for producer, count in zip(self.producers, before, strict=True)
            ),
            "sends go on",
        )

    def judge(self) -> None:
        report = self.history.judge(load.read_partitions(self.target, self.partitions))
        assert not report.findings, "\n".join(map(str, report.findings))


def partitions_of(shard: int) -> list[int]:
    return [partition for partition in range(PARTITIONS) if load.owner_of(0, 0, partition, 2) == shard]


def connection_on(server: Server, shard: int) -> wire.Wire:
    """A connection that has moved to the shard whose partitions it asks for."""
    connection = wire.connect(server.address, timeout_s=PATIENT_S)
    for _ in range(40):
        connection.poll(0, 0, partitions_of(shard)[0], strategy=wire.POLL_LAST, count=1)
    return connection


def metrics(connection: wire.Wire) -> Metrics:
    asked = commands.metrics()
    return asked.read(connection.request(asked.code))


def figures_of(answer: Metrics) -> list[dict[str, int]]:
    """By name, of each shard."""
    return [each.values for each in answer.shards]


def settled(server: Server) -> None:
    """Nothing is left that a worker would write by itself."""
    with wire.connect(server.address) as root:
        wait_until(
            lambda: all(each["engine.partitions_dirty"] == 0 for each in figures_of(metrics(root))),
            "all is on the device",
        )


@contextlib.contextmanager
def stopped(server: Server, worker: int) -> Iterator[None]:
    """A stopped worker; also its supervisor, which would replace it."""
    for pid in (server.pid, worker):
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in (worker, server.pid):
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def starved(pid: int) -> Iterator[None]:
    """The process shares a fiftieth of its CPU with one that goes first: a control group (version 1) with a quota keeps
    both from disturbing anybody else."""
    group = Path("/sys/fs/cgroup/cpu") / f"shardd-test-{pid}"
    try:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text("2000")
    except OSError as error:
        pytest.skip(f"no control group with a CPU quota can be made here: {error}")
    command = ["nice", "-n", "-20", sys.executable, "-S", "-c", "while True: pass"]
    spinner = subprocess.Popen(command, preexec_fn=lambda: os.sched_setaffinity(0, os.sched_getaffinity(pid)))
    try:
        for each in (spinner.pid, pid):
            (group / "cgroup.procs").write_text(str(each))
        schedule(pid, os.SCHED_IDLE)
        yield
    finally:
        spinner.kill()
        spinner.wait(20)
        (group / "cpu.cfs_quota_us").write_text("-1")
        with contextlib.suppress(OSError):  # it was killed
            (group.parent / "cgroup.procs").write_text(str(pid))
            schedule(pid, os.SCHED_OTHER)
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
        group.rmdir()


def schedule(pid: int, policy: int) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setscheduler(int(thread.name), policy, os.sched_param(0))
