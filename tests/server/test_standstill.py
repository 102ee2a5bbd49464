"""A device that stands still, a worker without a CPU: nobody is replaced who would only wait again. One that stopped,
sleeps or loops is replaced within seconds.

The device is ext4 in a loop device that is frozen. Workers are made to loop and to sleep by a signal handler that a
`sitecustomize` in PYTHONPATH brings into the real process.
"""

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

from shardd.cli.top_view import compare, table
from shardd.protocol.extensions import ExtensionCode, Metrics
from shardd.protocol.primitives import Reader
from tests.power import disk as forgetful
from tests.support import load, wire
from tests.support.checker import History
from tests.support.frozen_disk import FrozenDisk, mounted_disk
from tests.support.server import Server

PARTITIONS = 8
TWO_SHARDS = {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}
PATIENT_S = 40.0  # no client of these tests gives up before the server does
TASK_TIMEOUT = 12001
KILLED = "gives no sign of life"
HOOKS = """
import signal, time
def loop(*_):
    while True: pass
signal.signal(signal.SIGUSR1, loop)
signal.signal(signal.SIGUSR2, lambda *_: time.sleep(600))
"""


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FrozenDisk]:
    with mounted_disk(tmp_path / "data") as mounted:
        yield mounted


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
            load.Producer(self.target, self.history, number, number, pause_s=0.002) for number in partitions
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
    return Metrics.read(Reader(connection.request(ExtensionCode.GET_METRICS)))


def figures_of(answer: Metrics) -> list[dict[str, int]]:
    """By name, of each shard."""
    names = [name for _, name in answer.names]
    return [dict(zip(names, shard.values, strict=True)) for shard in answer.shards]


def settled(server: Server) -> None:
    """Nothing is left that a worker would write by itself."""
    with wire.connect(server.address) as root:
        wait_until(
            lambda: all(each["engine.partitions_dirty"] == 0 for each in figures_of(metrics(root))),
            "all is on the device",
        )


@pytest.mark.io_engine
@pytest.mark.parametrize(
    "frozen_s", [pytest.param(1.8, id="short"), pytest.param(8.0, id="long", marks=pytest.mark.slow)]
)
def test_a_device_that_stands_still_kills_no_worker_and_closes_no_connection(disk: FrozenDisk, frozen_s: float) -> None:
    with serving(disk) as server, wire.connect(server.address, timeout_s=PATIENT_S) as idle:
        workers = server.worker_pids()
        with Load(server, list(range(PARTITIONS))) as producers:
            with disk.frozen():
                time.sleep(1.2 + frozen_s)
            producers.progress()
            idle.ping()
            wait_until(lambda: "the device answers again" in server.log(), "a line about its end")
        assert not producers.errors
        assert server.worker_pids() == workers
        assert KILLED not in server.log()
        assert "stands still: it waits for the device" in server.log()
        producers.judge()
        with wire.connect(server.address) as root:
            wait_until(lambda: sum(each["stalls.device"] for each in figures_of(metrics(root))) > 0, "the figures")
            figures = figures_of(metrics(root))
        assert sum(each["stalls.device_ms"] for each in figures) >= frozen_s * 1000
        assert all(each["stalls.device_now_ms"] == 0 for each in figures)
        assert server.stop() == 0


@pytest.mark.slow
@pytest.mark.io_engine
def test_a_file_system_in_user_space_that_stands_still_kills_no_worker(tmp_path: Path) -> None:
    """Its callers do not sleep in state D, but where the kernel waits for FUSE."""
    reason = forgetful.why_not()
    if reason is not None:
        pytest.skip(reason)
    with forgetful.Disk(tmp_path / "source", tmp_path / "data") as disk, Server(disk.mount, TWO_SHARDS) as server:
        with wire.connect(server.address) as root:
            root.create_topic(root.create_stream("s"), "t", PARTITIONS)
        workers = server.worker_pids()
        with Load(server, list(range(PARTITIONS))) as producers:
            with disk.stand_still():
                wait_until(lambda: "it waits for the device" in server.log(), "a line about the stall")
                time.sleep(5)
            producers.progress()
        assert not producers.errors
        assert server.worker_pids() == workers
        assert KILLED not in server.log()
        producers.judge()
        assert server.stop() == 0


@pytest.mark.slow
@pytest.mark.io_engine
def test_a_shard_that_writes_nothing_goes_on_and_tells_who_stands_still(disk: FrozenDisk) -> None:
    with serving(disk) as server:
        with wire.connect(server.address) as root:
            for partition in range(PARTITIONS):
                root.send(0, 0, wire.to_partition(partition), [wire.message(b"cached")])
        settled(server)
        with connection_on(server, 0) as connection, Load(server, partitions_of(1)) as producers:
            before = metrics(connection)
            with disk.frozen():
                wait_until(lambda: "shard 1 stands still" in server.log(), "a line about the stall")
                slowest_s = 0.0
                for _ in range(100):
                    began = time.monotonic()
                    connection.ping()
                    polled = connection.poll(0, 0, partitions_of(0)[0], count=1)
                    assert [message.payload for message in polled.messages] == [b"cached"]
                    slowest_s = max(slowest_s, time.monotonic() - began)
                    time.sleep(0.02)
                view = compare(before, metrics(connection))
            assert slowest_s < 1.0
            assert "shard 1: device stalls since" in str(table(view, "here").caption)
            assert view.down == []
            assert view.shards[1].figures["stalls.device_now_ms"] >= 1500
            producers.progress()
        assert not producers.errors
        assert "shard 0 stands still" not in server.log()


@pytest.mark.slow
@pytest.mark.io_engine
def test_peers_of_a_shard_that_stands_still_wait_for_it(disk: FrozenDisk) -> None:
    """Longer than any timeout of the bus: a change of the metadata, what all shards are asked, a stored offset."""
    with serving(disk) as server:
        with wire.connect(server.address) as root:
            for partition in range(PARTITIONS):
                root.send(0, 0, wire.to_partition(partition), [wire.message(b"x")])
        settled(server)
        askers = [connection_on(server, 1) for _ in range(3)]
        offset = wire.consumer() + wire.identifier(0) * 2 + wire.optional_partition(partitions_of(0)[0])
        requests = [
            (wire.CREATE_STREAM, wire.str8("later")),
            (wire.GET_CLIENTS, b""),
            (wire.GET_OFFSET, offset),
        ]
        with Load(server, partitions_of(0)) as producers:
            with disk.frozen():
                wait_until(lambda: "shard 0 stands still" in server.log(), "a line about the stall")
                for asker, (code, payload) in zip(askers, requests, strict=True):
                    asker.send_bytes(wire.frame(code, payload))
                time.sleep(7)
            assert [asker.reply()[0] for asker in askers] == [0] * len(askers)
            producers.progress()
        assert not producers.errors
        assert KILLED not in server.log()
        for asker in askers:
            asker.close()


@pytest.mark.slow
@pytest.mark.io_engine
def test_what_waits_for_longer_than_the_request_timeout_gets_a_typed_status(disk: FrozenDisk) -> None:
    with serving(disk, {"SHARDD_TCP_REQUEST_TIMEOUT": "2 s"}) as server:
        with wire.connect(server.address) as root:
            for partition in range(PARTITIONS):
                root.send(0, 0, wire.to_partition(partition), [wire.message(b"x")])
        settled(server)
        with (
            connection_on(server, 0) as asker,
            connection_on(server, 0) as changer,
            Load(server, partitions_of(1)) as producers,
        ):
            with disk.frozen():
                wait_until(lambda: "shard 1 stands still" in server.log(), "a line about the stall")
                poll = wire.consumer() + wire.identifier(0) * 2 + wire.optional_partition(partitions_of(1)[0])
                asker.send_bytes(wire.frame(wire.POLL_MESSAGES, poll + bytes([1]) + bytes(8) + b"\x01\0\0\0\0"))
                changer.send_bytes(wire.frame(wire.CREATE_STREAM, wire.str8("later")))
                assert asker.reply()[0] == TASK_TIMEOUT
                assert changer.reply()[0] == TASK_TIMEOUT
            producers.progress()
        with wire.connect(server.address) as root:  # nobody knew: it was done when the device answered
            wait_until(lambda: "later" in root.streams(), "the change of the metadata")


@pytest.mark.slow
@pytest.mark.io_engine
def test_a_stop_during_a_stall_waits_for_the_device_and_ends_in_order(disk: FrozenDisk) -> None:
    with serving(disk) as server:
        with contextlib.ExitStack() as stack:
            producers = stack.enter_context(Load(server, list(range(PARTITIONS))))
            with disk.frozen():
                wait_until(lambda: "stands still" in server.log(), "a line about the stall")
                for producer in producers.producers:
                    producer.stopping.set()
                os.kill(server.pid, signal.SIGTERM)
                time.sleep(11)  # longer than a stop may take otherwise
                assert server.supervised
        assert server.wait() == 0
        assert "is killed" not in server.log()
        server.start()
        producers.target.address = server.address
        producers.judge()


@pytest.mark.slow
def test_a_start_during_a_stall_says_so_and_goes_on_with_the_device(disk: FrozenDisk) -> None:
    with serving(disk) as server:
        assert server.stop() == 0
        with disk.frozen():
            server.spawn()
            wait_until(lambda: "waits for the device" in server.log(), "a line about the stall")
            time.sleep(2)
            assert server.supervised
        server.wait_ready()
        with wire.connect(server.address) as root:
            root.send(0, 0, wire.to_partition(0), [wire.message(b"after")])


@pytest.mark.slow
@pytest.mark.io_engine
def test_with_a_limit_of_0_a_worker_on_a_device_that_stands_still_is_replaced(disk: FrozenDisk) -> None:
    env = {"SHARDD_SYSTEM_WATCHDOG_DEVICE_STALL_LIMIT": "0 s"}
    with serving(disk, env) as server, Load(server, list(range(PARTITIONS))), disk.frozen():
        wait_until(lambda: KILLED in server.log(), "a worker is killed")


@pytest.mark.slow
@pytest.mark.io_engine
def test_a_worker_that_loops_or_sleeps_or_is_stopped_is_replaced_within_seconds(tmp_path: Path) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(HOOKS)
    with Server(tmp_path / "data", TWO_SHARDS | {"PYTHONPATH": str(hooks)}) as server:
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGSTOP):
            victim = server.worker_pids()[1]
            lines = server.log().count("shard 1 is back")
            os.kill(victim, number)
            began = time.monotonic()
            wait_until(lambda: server.log().count("shard 1 is back") > lines, f"a new worker after {number.name}")  # noqa: B023
            assert time.monotonic() - began < 10
            assert f"shard 1 (process {victim}) {KILLED}" in server.log()


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


@pytest.mark.slow
@pytest.mark.io_engine
def test_a_worker_that_gets_no_cpu_is_not_replaced(tmp_path: Path) -> None:
    with Server(tmp_path / "data", TWO_SHARDS) as server:
        workers = server.worker_pids()
        with wire.connect(server.address) as root:
            root.create_topic(root.create_stream("s"), "t", PARTITIONS)
        with Load(server, list(range(PARTITIONS))) as producers:
            with starved(workers[1]):
                wait_until(lambda: "shard 1 stands still: it gets no CPU" in server.log(), "a line about the CPU")
                time.sleep(5)
            producers.progress()
            wait_until(lambda: "it gets its CPU again" in server.log(), "a line about its end")
        assert not producers.errors
        assert server.worker_pids() == workers
        assert KILLED not in server.log()
        producers.judge()


@pytest.mark.slow
def test_beyond_the_limit_a_worker_without_a_cpu_is_replaced(tmp_path: Path) -> None:
    env = TWO_SHARDS | {"SHARDD_SYSTEM_WATCHDOG_STARVATION_LIMIT": "3 s"}
    with Server(tmp_path / "data", env) as server, starved(server.worker_pids()[1]):
        wait_until(lambda: f"{KILLED}" in server.log(), "it is replaced")
