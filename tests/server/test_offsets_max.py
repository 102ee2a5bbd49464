"""A partition takes so many stored offsets and no more: who is one too many gets a typed status, the others go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import wire
from tests.support.server import Server

SETTINGS = {"SHARDD_SYSTEM_PARTITION_CONSUMER_OFFSETS_MAX": "3", "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "1"}
REFUSED = "3023"
MANY = 3000


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
        root.store_offset(0, 0, 0, 6, 2)
        root.store_offset(0, 0, 1, 5, 4)  # each partition has a bound of its own
        assert len(root.poll(0, 0, 0, count=10).messages) == 10
    fewer = SETTINGS | {"SHARDD_SYSTEM_PARTITION_CONSUMER_OFFSETS_MAX": "1"}
    with Server(tmp_path, fewer) as server, wire.connect(server.address) as root:
        assert [root.get_offset(0, 0, 0, consumer) for consumer in range(1, 5)] == [5, 6, 5, None]
        root.store_offset(0, 0, 0, 7, 1)
        with pytest.raises(wire.StatusError, match=REFUSED):
            root.store_offset(0, 0, 0, 5, 4)


def test_many_consumers_take_one_file(tmp_path: Path) -> None:
    with Server(tmp_path) as server, wire.connect(server.address) as root:
        root.create_topic(root.create_stream("s"), "t", 1)
        root.send(0, 0, wire.to_partition(0), [wire.message(b"%d" % n) for n in range(10)])
        before = sum(1 for _ in tmp_path.rglob("*"))
        for consumer in range(1, MANY + 1):
            root.store_offset(0, 0, 0, consumer % 10, consumer)
        assert sum(1 for _ in tmp_path.rglob("*")) <= before + 1
    with Server(tmp_path) as server, wire.connect(server.address) as root:
        assert all(root.get_offset(0, 0, 0, consumer) == consumer % 10 for consumer in range(1, MANY + 1))
