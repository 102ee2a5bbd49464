"""Opening a partition for reading needs no byte of room: what was acknowledged before a kill is served by a server that
starts on a disk without a free byte, and sends are taken by themselves when there is room."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.faults import kill_all, wait_until
from tests.crash.test_disk_full import DISK_STATUS, fill_to_the_last_byte, small_disk
from tests.server.test_idempotent_producers import init, once
from tests.server.test_message_deduplication import identified, stored
from tests.server.test_retention import create_topic
from tests.support import wire
from tests.support.ports import free_port
from tests.support.server import ONE_SHARD, Server

__all__ = ["small_disk"]  # a fixture
MESSAGES, BATCH = 1030, 10  # the entries of the last 250 wait in memory, and need one more page of the index
SETTINGS = ONE_SHARD | {"SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "1 h"}  # the index is behind the log at the kill


@pytest.mark.parametrize("level", ["written", "durable"])
def test_all_messages_are_served_after_a_kill_on_a_disk_without_a_free_byte(small_disk: Path, level: str) -> None:
    address = f"127.0.0.1:{free_port()}"  # the file that tells it finds no room either
    settings = SETTINGS | {"SHARDD_SYSTEM_PARTITION_ACK": level, "SHARDD_TCP_ADDRESS": address}
    server = Server(small_disk / "data", settings)
    server.start()
    try:
        with wire.connect(server.address) as root:
            root.create_stream("s")
            create_topic(root)
            for first in range(0, MESSAGES, BATCH):
                numbers = range(first, first + BATCH)
                root.send("s", "t", wire.to_partition(0), [identified(number) for number in numbers])
            root.store_offset("s", "t", 0, 7)
        kill_all(server)
        other = fill_the_reserve_too(server, small_disk)
        for _ in range(2):  # killed once more
            server.spawn()
            with wire.connect(address) as root:
                assert stored(root) == list(range(MESSAGES))
                assert root.poll("s", "t", 0, strategy=wire.POLL_NEXT, count=1).messages[0].offset == 8
                plain = wire.batch("s", "t", wire.to_partition(0), [identified(MESSAGES)])
                assert root.status(wire.SEND_MESSAGES, plain) == DISK_STATUS
            kill_all(server)
        assert "read only" not in server.log()
        server.spawn()
        with wire.connect(address) as root:
            other.unlink()
            wait_until(lambda: root.status(wire.SEND_MESSAGES, plain) == 0, "sends are refused although there is room")
            assert stored(root) == list(range(MESSAGES + 1))
        kill_all(server)
        server.start()
        with wire.connect(address) as root:
            assert stored(root) == list(range(MESSAGES + 1))
    finally:
        server.stop()


def fill_the_reserve_too(server: Server, disk: Path) -> Path:
    server.runtime_config.unlink(missing_ok=True)  # the next start would, which leaves a page
    (disk / "data" / "state.reserve").unlink(missing_ok=True)
    return fill_to_the_last_byte(disk)


def test_a_batch_that_was_not_stored_whole_costs_no_message_on_a_full_disk(small_disk: Path) -> None:
    """The worker dies between the place of a batch and its records: its file of producers is to be written anew."""
    address = f"127.0.0.1:{free_port()}"
    server = Server(small_disk / "data", SETTINGS | {"SHARDD_TCP_ADDRESS": address})
    server.start()
    try:
        with wire.connect(server.address) as root:
            root.create_stream("s")
            create_topic(root)
            who = init(root)
            for sequence in range(4):
                once(root, who, sequence, list(range(sequence * 5, sequence * 5 + 5)))
        kill_all(server)
        [log] = (small_disk / "data").glob("streams/0/topics/0/partitions/0/*.log")
        size = log.stat().st_size
        with log.open("r+b") as file:
            file.truncate(size // 4 * 3)  # the records of the last batch never came
        other = fill_the_reserve_too(server, small_disk)
        server.spawn()
        with wire.connect(address) as root:
            assert stored(root) == list(range(15))
            other.unlink()
            plain = wire.batch("s", "t", wire.to_partition(0), [identified(15)])
            wait_until(lambda: root.status(wire.SEND_MESSAGES, plain) == 0, "sends are refused although there is room")
            assert stored(root) == list(range(16))
    finally:
        server.stop()
