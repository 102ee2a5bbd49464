"""Single processes die or hang: they come back, the others serve on, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Final

import pytest

from tests.crash import faults
from tests.support import load, wire
from tests.support.server import TWO_SHARDS, Server
from tests.support.serving import Serving

PARTITIONS = 8


def fill(server: Server) -> None:
    with wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("deaths"), "t", PARTITIONS)
        for partition in range(PARTITIONS):
            connection.send(0, 0, wire.to_partition(partition), [wire.message(b"before")])


SERVER: Final = Serving(env=TWO_SHARDS, fill=fill)


def partitions_of(shard: int) -> list[int]:
    return [partition for partition in range(PARTITIONS) if load.owner_of(0, 0, partition, 2) == shard]


class Bystander(threading.Thread):
    """Sends to and polls a partition of a shard that must not notice anything; keeps its slowest answer."""

    def __init__(self, connection: wire.Wire, partition: int) -> None:
        super().__init__(daemon=True)
        self.connection = connection
        self.partition = partition
        self.stopping = threading.Event()
        self.answers = 0
        self.slowest_s = 0.0
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                began = time.monotonic()
                self.connection.send(0, 0, wire.to_partition(self.partition), [wire.message(b"meanwhile")])
                self.connection.poll(0, 0, self.partition, strategy=wire.POLL_LAST, count=1)
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                self.answers += 1
                time.sleep(0.02)
        except (OSError, wire.StatusError) as problem:
            self.failure = problem


@pytest.mark.parametrize("shard", [0, 1])
def test_killed_worker_is_back_while_the_other_serves(server: Server, shard: int) -> None:
    """How long it took is printed."""
    other = 1 - shard
    bystander = Bystander(faults.connection_on(server, other), partitions_of(other)[0])
    bystander.start()
    old = server.worker_pids()[shard]
    began = time.monotonic()
    faults.kill9(old)
    before = bystander.answers
    faults.wait_until(
        lambda: bystander.answers > before or bystander.failure is not None, "the other shard serves without it"
    )
    faults.wait_until_served(server.address, 0, 0, partitions_of(shard))
    took = time.monotonic() - began
    bystander.stopping.set()
    bystander.join(10)
    bystander.connection.close()
    assert bystander.failure is None, f"the other shard failed meanwhile: {bystander.failure}"
    assert server.worker_pids()[shard] != old
    print(
        f"shard {shard} back after {took * 1000:.0f} ms, slowest answer elsewhere {bystander.slowest_s * 1000:.0f} ms"
    )


@pytest.mark.parametrize("shard", [0, 1])
def test_stopped_worker_is_replaced(server: Server, shard: int) -> None:
    old = server.worker_pids()[shard]
    os.kill(old, signal.SIGSTOP)
    faults.wait_until(lambda: not faults.is_running(old), "the stopped worker is killed")
    faults.wait_until_served(server.address, 0, 0, partitions_of(shard))
    with wire.connect(server.address) as connection:
        for partition in partitions_of(shard):
            assert connection.poll(0, 0, partition, count=1).messages[0].payload == b"before"


@pytest.mark.io_engine
def test_writes_are_read_on_the_other_shard_right_after_the_answer(server: Server) -> None:
    with faults.connection_on(server, 0) as first, faults.connection_on(server, 1) as second:
        for number in range(20):
            writer, reader = (first, second) if number % 2 else (second, first)
            name = f"read your writes {number}"
            stream = writer.create_stream(name)
            assert reader.streams()[name] == stream
            topic = reader.create_topic(name, "t", 2)
            assert [item.id for item in writer.partitions(stream, topic)] == [0, 1]
            for partition in (0, 1):
                writer.send(name, "t", wire.to_partition(partition), [wire.message(name.encode())])
                (read,) = reader.poll(stream, topic, partition).messages
                assert read.payload == name.encode()
                assert reader.partitions(stream, topic)[partition].messages_count == 1
                reader.store_offset(stream, topic, partition, 0)
                assert writer.get_offset(stream, topic, partition) == 0
            reader.delete_stream(name)
            assert name not in writer.streams()


def test_supervisor_killed_leaves_no_worker(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.start()
    workers = server.worker_pids()
    server.kill_supervisor()
    try:
        faults.wait_until(lambda: not any(map(faults.is_running, workers)), "all workers are gone")
    finally:
        server.stop()


@pytest.mark.io_engine
def test_sigterm_tells_open_connections_and_ends_in_time(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.start()
    waiting = [wire.Wire(server.address) for _ in range(8)] + [wire.connect(server.address) for _ in range(4)]
    for connection in waiting:
        connection.ping()
    sender = waiting[-1]
    sender.create_topic(sender.create_stream("s"), "t", 1)
    sender.send(0, 0, wire.to_partition(0), [wire.message(b"kept")])
    began = time.monotonic()
    status = server.stop()
    took = time.monotonic() - began
    for connection in waiting:
        assert connection.reply() == (8, b"")
        assert connection.socket.recv(1) == b""
        connection.close()
    assert status == 0
    assert took < 10
    server = Server(tmp_path)
    server.start()
    try:
        with wire.connect(server.address) as reader:
            assert [item.payload for item in reader.read_all(0, 0, 0)] == [b"kept"]
    finally:
        server.stop()
