"""What each level promises when processes are killed, and what `memory` does not (docs/guarantees.md)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.crash import faults
from tests.support import wire
from tests.support.server import ONE_SHARD, Server

MESSAGES = 20
CONSUMER = 7
SAVER_OFF = {"SHARDD_MESSAGE_SAVER_ENABLED": "false"}


def server_at(data: Path, level: str, settings: Mapping[str, str] | None = None) -> Server:
    server = Server(data, {"SHARDD_SYSTEM_PARTITION_ACK": level, **ONE_SHARD, **(settings or {})})
    server.start()
    assert f"ack {level}," in server.log().splitlines()[-1]
    return server


def fill(server: Server, counts: tuple[int, ...] = (MESSAGES,)) -> None:
    """One message a request, all acknowledged; so many in each partition."""
    with wire.connect(server.address) as client:
        client.create_topic(client.create_stream("s"), "t", len(counts))
        for partition, count in enumerate(counts):
            for number in range(count):
                client.send("s", "t", wire.to_partition(partition), [wire.message(b"%d" % number)])


def payloads(server: Server, partition: int = 0) -> list[bytes]:
    faults.wait_until_served(server.address, "s", "t", [partition])
    with wire.connect(server.address) as client:
        return [message.payload for message in client.poll("s", "t", partition, count=1000).messages]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def flush(client: wire.Wire, partition: int, *, fsync: bool) -> int:
    names = wire.identifier("s") + wire.identifier("t")
    return client.status(wire.FLUSH_UNSAVED_BUFFER, names + struct.pack("<IB", partition, fsync))


@pytest.mark.parametrize("level", ["written", "durable"])
def test_acknowledged_messages_and_offsets_survive_the_death_of_all(tmp_path: Path, level: str) -> None:
    server = server_at(tmp_path, level)
    fill(server)
    with wire.connect(server.address) as client:
        client.store_offset("s", "t", 0, 11, CONSUMER)
    faults.kill_all(server)
    server = server_at(tmp_path, level)
    try:
        assert payloads(server) == numbers(MESSAGES)
        with wire.connect(server.address) as client:
            assert client.get_offset("s", "t", 0, CONSUMER) == 11
            client.send("s", "t", wire.to_partition(0), [wire.message(b"next")])
            assert client.poll("s", "t", 0, count=1000).messages[-1].offset == MESSAGES
        assert "torn" not in server.log()
    finally:
        server.stop()
    log = faults.log_path(tmp_path, 0, 0, 0)
    records = [wire.message(payload) for payload in [*numbers(MESSAGES), b"next"]]
    assert log.stat().st_size == sum(map(len, records))  # nothing beyond its data
    assert not list(log.parent.glob("*.torn"))


def test_memory_keeps_what_was_saved_and_nothing_else(tmp_path: Path) -> None:
    """Partition 0 is the canary: the kill really hits what the other levels protect."""
    settings = SAVER_OFF | {"SHARDD_SYSTEM_PARTITION_MESSAGES_REQUIRED_TO_SAVE": str(2 * MESSAGES)}
    server = server_at(tmp_path, "memory", settings)
    fill(server, (MESSAGES, MESSAGES, MESSAGES, MESSAGES, 2 * MESSAGES))
    with wire.connect(server.address) as client:
        assert len(client.poll("s", "t", 1, count=1000).messages) == MESSAGES
        assert flush(client, 2, fsync=False) == 0
        assert flush(client, 3, fsync=True) == 0
    faults.kill_all(server)
    server = server_at(tmp_path, "memory", settings)
    try:
        assert payloads(server, 0) == []
        for partition in (1, 2, 3):
            assert payloads(server, partition) == numbers(MESSAGES)
        assert payloads(server, 4) == numbers(2 * MESSAGES)
    finally:
        server.stop()


def test_the_message_saver_and_an_orderly_stop_save(tmp_path: Path) -> None:
    server = server_at(tmp_path, "memory", {"SHARDD_MESSAGE_SAVER_INTERVAL": "10 ms"})
    fill(server)
    log = faults.log_path(tmp_path, 0, 0, 0)
    expected = sum(len(wire.message(payload)) for payload in numbers(MESSAGES))
    faults.wait_until(lambda: log.exists() and log.stat().st_size == expected, "the saver has written all")
    faults.kill_all(server)
    server = server_at(tmp_path, "memory", SAVER_OFF)
    faults.wait_until_served(server.address, "s", "t", [0])
    with wire.connect(server.address) as client:
        client.send("s", "t", wire.to_partition(0), [wire.message(b"%d" % MESSAGES)])
    assert log.stat().st_size == expected
    assert server.stop() == 0
    server = server_at(tmp_path, "written")
    try:
        assert payloads(server) == numbers(MESSAGES + 1)
    finally:
        server.stop()
