"""A full disk: a typed status, reads go on, sends resume when there is room, nothing acknowledged is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash import faults
from tests.support import load, wire
from tests.support.checker import History, make_payload
from tests.support.server import Server

DISK_SIZE = "24m"
BALLAST_BYTES = 6 * 2**20
PAYLOAD_BYTES = 10_000
BATCH = 10
PARTITIONS = 3
DISK_STATUS = 10006  # cannot write to file (iggy-protocol 4)
REQUESTS_MAX = 1000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


class Sender:
    """One connection that writes numbered batches to all partitions in turn and keeps the history."""

    def __init__(self, connection: wire.Wire, history: History) -> None:
        self.connection = connection
        self.history = history
        self.sequence = 0

    def send(self) -> int:
        """The status of one more batch."""
        partition = self.sequence // BATCH % PARTITIONS
        identities = [(partition, self.sequence + n) for n in range(BATCH)]
        payloads = [make_payload(*identity, size=PAYLOAD_BYTES) for identity in identities]
        for identity, payload in zip(identities, payloads, strict=True):
            self.history.attempt(identity, payload, partition)
        messages = [wire.message(payload) for payload in payloads]
        batch = wire.batch(0, 0, wire.to_partition(partition), messages)
        status = self.connection.status(wire.SEND_MESSAGES, batch)
        if status == 0:
            self.history.acknowledge(identities)
        self.sequence += BATCH
        return status

    def fill(self) -> list[int]:
        """Sends until each partition was refused some times; the refusals."""
        refusals: list[int] = []
        for _ in range(REQUESTS_MAX):
            status = self.send()
            if status != 0:
                refusals.append(status)
            if len(refusals) >= 4 * PARTITIONS:
                return refusals
        raise AssertionError(f"the disk is not full after {REQUESTS_MAX} requests")


def judge(server: Server, history: History) -> None:
    target = load.Target(server.address, 0, 0)
    report = history.judge(load.read_partitions(target, range(PARTITIONS)))
    report.require_clean()
    assert report.unacknowledged == 0, "a refused batch is in the log"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("level", ["written", "durable"])
def test_full_disk_refuses_sends_serves_reads_and_loses_nothing(small_disk: Path, level: str) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(BALLAST_BYTES))
    history = History()
    server = Server(small_disk, {"SHARDD_SYSTEM_PARTITION_ACK": level})
    server.start()
    try:
        with wire.connect(server.address) as connection:
            connection.create_topic(connection.create_stream("full"), "t", PARTITIONS)
            sender = Sender(connection, history)
            assert sender.send() == 0
            workers = list(server.worker_pids())
            assert set(sender.fill()) == {DISK_STATUS}
            judge(server, history)
            connection.ping()
            refused_stream = connection.status(wire.CREATE_STREAM, wire.str8("no room"))
            ballast.unlink()
            for _ in range(2 * PARTITIONS):
                assert sender.send() == 0
            assert connection.status(wire.CREATE_STREAM, wire.str8("room")) == 0
            assert ("no room" in connection.streams()) == (refused_stream == 0)
            assert list(server.worker_pids()) == workers
        judge(server, history)
        server.kill_supervisor()
        server.stop()
        server = Server(small_disk, {"SHARDD_SYSTEM_PARTITION_ACK": level})
        server.start()
        faults.wait_until_served(server.address, 0, 0, range(PARTITIONS))
        judge(server, history)
        with wire.connect(server.address) as connection:
            assert ("no room" in connection.streams()) == (refused_stream == 0)
            sender.connection = connection
            assert sender.send() == 0
        judge(server, history)
    finally:
        server.stop()
