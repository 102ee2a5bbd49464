"""`discard=refuse` and `message_size_max` on a real server: what does not fit is refused with a status of its own by
every door, nothing of it is stored, and sends resume by themselves when there is room."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Final

import pytest

from shardd.engine import owner
from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.namespaces import namespace
from shardd.protocol.topic_settings import SetTopicSettings
from tests.doors.door_server import DoorServer
from tests.doors.test_json_door import sending, status_of
from tests.golden.test_legacy_frames import answer_to, exchanges
from tests.server.test_iggy09_frames import CREATE_TOPIC, SEND
from tests.server.test_retention import (
    ENV,
    RECORD_BYTES,
    SECOND_US,
    SEGMENT_BYTES,
    create_topic,
    offsets,
    root,
    send,
    total_bytes,
    until,
    update_topic,
)
from tests.support import wire
from tests.support.iggy09 import Connection, bytes_of
from tests.support.server import Server
from tests.support.serving import Serving
from tests.support.top import shard_figures
from tests.support.wire import Wire

__all__ = ["root"]  # a fixture
TOPIC_FULL, TOO_LARGE = 3009, 4022
LIMIT = 5 * SEGMENT_BYTES
PARTITIONS = 12
SERVER: Final = Serving(env=ENV)


def settings(root: Wire, stream: str | int = "s", topic: str | int = "t", **values: str) -> None:
    request = SetTopicSettings(stream, topic, tuple(values.items()))
    root.request(ExtensionCode.SET_TOPIC_SETTINGS, request.encode())


def send_status(root: Wire, count: int = 1, partition: int = 0, size: int = 936) -> int:
    messages = [wire.message(b"x" * size)] * count
    return root.status(Code.SEND_MESSAGES, wire.batch("s", "t", wire.to_partition(partition), messages))


def fill(root: Wire, partitions: int = 1) -> int:
    """Messages that were taken before one was refused."""
    for number in range(10_000):
        status = send_status(root, partition=number % partitions)
        if status:
            assert status == TOPIC_FULL
            return number
    raise AssertionError("nothing was refused")


def test_a_topic_that_has_its_size_refuses_and_keeps_what_it_has(server: Server, root: Wire) -> None:
    create_topic(root, size_bytes=LIMIT)
    settings(root, discard="refuse")
    before = sum(row["engine.refused_by_topic"] for row in shard_figures(server.address))
    taken = fill(root)
    assert taken == LIMIT // RECORD_BYTES
    assert offsets(root) == list(range(taken))
    assert send_status(root, count=2) == TOPIC_FULL
    assert send_status(root, size=LIMIT - taken * RECORD_BYTES - 64) == 0, "what still fits is taken"
    assert total_bytes(root) == LIMIT
    assert sum(row["engine.refused_by_topic"] for row in shard_figures(server.address)) == before + 2


def test_the_size_is_that_of_all_partitions_on_all_shards(server: Server, root: Wire) -> None:
    create_topic(root, partitions=PARTITIONS, size_bytes=LIMIT)
    settings(root, discard="refuse")
    stream = root.streams()["s"]
    assert {owner(namespace(stream, 0, each), 2) for each in range(PARTITIONS)} == {0, 1}
    assert fill(root, PARTITIONS) == LIMIT // RECORD_BYTES
    assert [send_status(root, partition=each) for each in range(PARTITIONS)] == [TOPIC_FULL] * PARTITIONS


def test_sends_resume_after_a_purge_a_larger_size_and_another_setting(root: Wire) -> None:
    create_topic(root, size_bytes=LIMIT)
    settings(root, discard="refuse")
    first = fill(root)
    root.purge_topic("s", "t")
    assert fill(root) == first
    update_topic(root, expiry_us=0, size_bytes=2 * LIMIT)
    assert fill(root) == pytest.approx(first, abs=1)
    settings(root, discard="")
    assert send_status(root) == 0


def test_sends_resume_when_messages_expire(server: Server, root: Wire) -> None:
    create_topic(root, size_bytes=LIMIT, expiry_us=SECOND_US)
    settings(root, discard="refuse")
    fill(root)
    until(lambda: send_status(root) == 0, server)


def test_sends_resume_when_segments_are_deleted(server: Server, root: Wire) -> None:
    create_topic(root, size_bytes=LIMIT)
    settings(root, discard="refuse")
    taken = fill(root)
    root.store_offset("s", "t", 0, taken - 1)
    place = wire.identifier("s") + wire.identifier("t")
    root.request(Code.DELETE_SEGMENTS, place + struct.pack("<II", 0, 1))
    assert send_status(root) == 0


def test_messages_of_each_partition_are_counted_for_themselves(root: Wire) -> None:
    create_topic(root, partitions=2)
    settings(root, discard="refuse", partition_messages_max="10")
    send(root, 10)
    assert send_status(root) == TOPIC_FULL
    assert send_status(root, count=11, partition=1) == TOPIC_FULL
    assert send_status(root, count=10, partition=1) == 0
    settings(root, partition_messages_max="11")
    assert send_status(root) == 0
    assert offsets(root) == list(range(11))


def test_a_larger_message_than_the_topic_takes_is_refused_with_its_whole_send(root: Wire) -> None:
    create_topic(root)
    settings(root, message_size_max="100 B")
    assert send_status(root, size=101) == TOO_LARGE
    two = [wire.message(b"x"), wire.message(b"x" * 90, headers=b"h" * 11)]
    place = ("s", "t", wire.to_partition(0))
    assert root.status(Code.SEND_MESSAGES, wire.batch(*place, two)) == TOO_LARGE
    assert send_status(root, count=3, size=100) == 0
    assert offsets(root) == [0, 1, 2]
    settings(root, message_size_max="")
    assert send_status(root, size=101) == 0


def test_sends_of_one_pass_are_judged_one_by_one(root: Wire) -> None:
    """A small one behind a large one is taken, and its answer is its own."""
    create_topic(root)
    settings(root, message_size_max="100 B")
    sizes = (10, 200, 20, 300, 30)
    place = ("s", "t", wire.to_partition(0))
    batches = [wire.batch(*place, [wire.message(b"x" * size)]) for size in sizes]
    root.send_bytes(b"".join(wire.frame(Code.SEND_MESSAGES, each) for each in batches))
    assert [root.reply()[0] for _ in sizes] == [0, TOO_LARGE, 0, TOO_LARGE, 0]
    assert [len(each.payload) for each in root.poll("s", "t", 0, count=9).messages] == [10, 20, 30]


def test_a_restart_of_one_shard_or_of_all_lets_no_topic_outgrow_its_size(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", env=ENV)
    server.start()
    try:
        with wire.connect(server.address) as root:
            root.create_stream("s")
            create_topic(root, partitions=PARTITIONS, size_bytes=LIMIT)
            settings(root, discard="refuse")
            taken = fill(root, PARTITIONS)
        for end in (server.kill_supervisor, server.stop):
            end()
            server.start()
            with wire.connect(server.address) as root:
                assert [send_status(root, partition=each) for each in range(PARTITIONS)] == [TOPIC_FULL] * PARTITIONS
                assert sum(len(offsets(root, each)) for each in range(PARTITIONS)) == taken
    finally:
        server.stop()


def test_every_door_tells_the_same(tmp_path: Path) -> None:
    """The classic wire, 0.9, a client of before the classic one, and a service that was called from Python."""
    with DoorServer(tmp_path / "data") as server, wire.connect(server.address) as root:
        connection = socket.create_connection(server.endpoint, timeout=20)
        recorded = exchanges("PyPI 0.1.0")
        login, stream, _, topic, earlier = (each.request for each in recorded[:5])
        for request in (login, stream, topic):
            assert answer_to(connection, request)[:4] == bytes(4)
        with Connection(server.address) as newer, server.root() as door:
            assert newer.login().status == 0
            assert newer.change(128, bytes_of("066f7264657273")).status == 0
            assert newer.change(132, bytes_of(CREATE_TOPIC)).status == 0
            for values, status in (
                ({"message_size_max": "1 B"}, TOO_LARGE),
                ({"message_size_max": "", "discard": "refuse", "partition_messages_max": "1"}, TOPIC_FULL),
            ):
                settings(root, 0, 0, **values)
                settings(root, "orders", "events", **values)
                told = answer_to(connection, earlier)
                assert struct.unpack_from("<I", told)[0] == status
                assert newer.change(160, bytes_of(SEND)).status == status
                assert status_of(door, "send", {**sending("orders", 0, [b"hello", b"hi"]), "topic": "events"}) == status
                two = wire.batch("orders", "events", wire.to_partition(0), [wire.message(b"hello")] * 2)
                assert root.status(Code.SEND_MESSAGES, two) == status
            settings(root, "orders", "events", partition_messages_max="0")
            assert newer.change(160, bytes_of(SEND)).status == 0
        connection.close()
