"""A device that stands still, a worker without a CPU: nobody is replaced who would only wait again. One that stopped,
sleeps or loops is replaced within seconds.

The device is ext4 in a loop device that is frozen. Workers are made to loop and to sleep by a signal handler that a
`sitecustomize` in PYTHONPATH brings into the real process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardd.cli.top_view import compare, shards_table
from tests.power import disk as forgetful
from tests.support import wire
from tests.support.frozen_disk import FrozenDisk, mounted_disk
from tests.support.server import Server
from tests.support.stalls import (
    PARTITIONS,
    PATIENT_S,
    TWO_SHARDS,
    Load,
    connection_on,
    figures_of,
    metrics,
    partitions_of,
    serving,
    settled,
    starved,
    wait_until,
)

TASK_TIMEOUT = 12001
KILLED = "gives no sign of life"
HOOKS = """
import signal, time
def loop(*_):
    while True: pass
signal.signal(signal.SIGUSR1, loop)
signal.signal(signal.SIGUSR2, lambda *_: time.sleep(600))
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FrozenDisk]:
    with mounted_disk(tmp_path / "data") as mounted:
        yield mounted


@pytest.mark.parametrize(
    "frozen_s",
    [
        pytest.param(2.6, id="short"),
        pytest.param(9.0, id="long", marks=[pytest.mark.slow, pytest.mark.io_engine]),
    ],
)
def test_a_device_that_stands_still_kills_no_worker_and_closes_no_connection(disk: FrozenDisk, frozen_s: float) -> None:
    with serving(disk) as server, wire.connect(server.address, timeout_s=PATIENT_S) as idle:
        workers = server.worker_pids()
        with Load(server, list(range(PARTITIONS))) as producers:
            with disk.frozen():
                time.sleep(frozen_s)
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
        assert sum(each["stalls.device_ms"] for each in figures) >= frozen_s * 1000 - 1000
        assert all(each["stalls.device_now_ms"] == 0 for each in figures)
        assert server.stop() == 0


def test_the_watchdog_of_the_service_manager_hears_through_a_stall(disk: FrozenDisk, tmp_path: Path) -> None:
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENT_S)

        def listen() -> None:
            while heard[-1:] != [b"STOPPING=1"]:
                heard.append(manager.recv(64))

        listener = threading.Thread(target=listen)
        listener.start()
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
        with serving(disk, env) as server, Load(server, list(range(PARTITIONS))):
            with disk.frozen():
                wait_until(lambda: "stands still: it waits for the device" in server.log(), "a line about the stall")
                before = len(heard)
                wait_until(lambda: len(heard) >= before + 3, "messages during the stall")
            assert KILLED not in server.log()
        listener.join(PATIENT_S)
    assert set(heard) == {b"READY=1", b"WATCHDOG=1", b"STOPPING=1"}


@pytest.mark.slow
@pytest.mark.io_engine
def test_what_a_client_is_owed_begins_anew_after_a_stall(disk: FrozenDisk) -> None:
    """Half a frame, whose rest was allowed 3 s; an idle connection, which was allowed 4 s."""
    env = {"SHARDD_SERVER_PARTIAL_FRAME_TIMEOUT": "3 s", "SHARDD_SERVER_IDLE_TIMEOUT": "4 s"}
    batch = wire.frame(
        wire.SEND_MESSAGES, wire.batch(0, 0, wire.to_partition(partitions_of(1)[0]), [wire.message(b"x")])
    )
    with serving(disk, env) as server:
        with (
            Load(server, partitions_of(1)) as producers,
            connection_on(server, 1) as half,
            connection_on(server, 1) as idle,
        ):
            half.send_bytes(batch[:-10])
            with disk.frozen():
                time.sleep(7)
            half.send_bytes(batch[-10:])
            idle.ping()
            assert half.reply()[0] == 0
        assert not producers.errors
        assert KILLED not in server.log()


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
            assert "shard 1: device stalls since" in str(shards_table(view, "here").caption)
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
    with serving(disk, {"SHARDD_SERVER_REQUEST_TIMEOUT": "2 s"}) as server:
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
