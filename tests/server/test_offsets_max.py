"""A partition takes so many stored offsets and no more: who is one too many gets a typed status, the others go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardd.client import SyncClient
from shardd.client.errors import StorageError
from shardd.log import layout
from tests.support import wire
from tests.support.server import Server

SETTINGS = {"SHARDD_SYSTEM_PARTITION_CONSUMER_OFFSETS_MAX": "3", "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "1"}
REFUSED = "3023"
MANY = 3000
PLACE = wire.identifier(0) + wire.identifier(0) + wire.optional_partition(0)


def test_one_consumer_too_many_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    with Server(tmp_path, SETTINGS) as server, wire.connect(server.address) as root:
        root.create_topic(root.create_stream("s"), "t", 2)
        for partition in range(2):
            root.send(0, 0, wire.to_partition(partition), [wire.message(b"%d" % n) for n in range(10)])
        for consumer in range(1, 4):
            root.store_offset(0, 0, 0, 5, consumer)
        with pytest.raises(wire.StatusError, match=REFUSED):
            root.store_offset(0, 0, 0, 5, 4)
        assert root.get_offset(0, 0, 0, 4) is None
        with SyncClient(f"shardd://iggy:iggy@{server.address}") as client, pytest.raises(StorageError) as raised:
            client.store_offset(4, 0, 0, 0, 5)
        assert REFUSED in str(raised.value) and "`shardd offset list STREAM TOPIC --unused 30d`" in str(raised.value)
        root.store_offset(0, 0, 0, 6, 2)
        root.store_offset(0, 0, 1, 5, 4)  # each partition has a bound of its own
        assert len(root.poll(0, 0, 0, count=10).messages) == 10
    fewer = SETTINGS | {"SHARDD_SYSTEM_PARTITION_CONSUMER_OFFSETS_MAX": "1"}
    with Server(tmp_path, fewer) as server, wire.connect(server.address) as root:
        assert [root.get_offset(0, 0, 0, consumer) for consumer in range(1, 5)] == [5, 6, 5, None]
        root.store_offset(0, 0, 0, 7, 1)
        with pytest.raises(wire.StatusError, match=REFUSED):
            root.store_offset(0, 0, 0, 5, 4)


LARGE = 64  # messages of this topic, in more windows than one


@pytest.mark.parametrize("level", ["written", "durable"])
def test_a_poll_with_auto_commit_at_a_full_table_is_refused_and_loses_nothing(tmp_path: Path, level: str) -> None:
    """Whoever polls is told 3023 on a connection that goes on, however large the answer would have been; when there is
    a place again, the same poll gives the same messages. Sends and other consumers do not notice."""
    settings = SETTINGS | {"SHARDD_SYSTEM_PARTITION_ACK": level}
    with Server(tmp_path, settings) as server, wire.connect(server.address) as root:
        poller = wire.connect(server.address)
        root.create_topic(root.create_stream("s"), "t", 1)
        for number in range(LARGE):
            root.send(0, 0, wire.to_partition(0), [wire.message(b"%d" % number + bytes(100_000))])
        for consumer in range(1, 4):
            root.store_offset(0, 0, 0, 5, consumer)
        for count in (1, LARGE):
            for who in (4, b"\x01" + wire.identifier("reader")):
                with pytest.raises(wire.StatusError, match=REFUSED):
                    poller.poll(0, 0, 0, strategy=wire.POLL_NEXT, count=count, auto_commit=True, who=who)
                assert root.get_offset(0, 0, 0, who) is None
                found = poller.poll(0, 0, 0, strategy=wire.POLL_NEXT, count=count, who=who)
                assert [each.offset for each in found.messages] == list(range(count))
            root.send(0, 0, wire.to_partition(0), [wire.message(b"meanwhile")])
            found = poller.poll(0, 0, 0, strategy=wire.POLL_NEXT, count=1, auto_commit=True, who=2)
            assert len(found.messages) == 1 and root.get_offset(0, 0, 0, 2) == found.messages[0].offset
        assert poller.status(wire.DELETE_OFFSET, wire.consumer(3) + PLACE) == 0
        found = poller.poll(0, 0, 0, strategy=wire.POLL_NEXT, count=LARGE, auto_commit=True, who=4)
        assert [each.offset for each in found.messages] == list(range(LARGE))
        assert root.get_offset(0, 0, 0, 4) == LARGE - 1
        poller.close()


def test_many_consumers_take_one_file(tmp_path: Path) -> None:
    with Server(tmp_path) as server, wire.connect(server.address) as root:
        root.create_topic(root.create_stream("s"), "t", 1)
        root.send(0, 0, wire.to_partition(0), [wire.message(b"%d" % n) for n in range(10)])
        directory = layout.partition_directory(tmp_path, 0, 0, 0)
        before = sum(1 for _ in directory.rglob("*"))
        for consumer in range(1, MANY + 1):
            root.store_offset(0, 0, 0, consumer % 10, consumer)
        assert sum(1 for _ in directory.rglob("*")) <= before + 1
    with Server(tmp_path) as server, wire.connect(server.address) as root:
        assert all(root.get_offset(0, 0, 0, consumer) == consumer % 10 for consumer in range(1, MANY + 1))
