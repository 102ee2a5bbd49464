"""One user cannot take every stored offset of a partition, and what a deleted account has stored makes room for others,
never before they need it (docs/adr/0130-shares-of-stored-things.md)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardd.protocol.permissions import Permissions
from tests.server.test_revocation import create_user
from tests.server.test_supervisor import wait_until
from tests.support import wire
from tests.support.server import Server

MAX = 32
SETTINGS = {
    "SHARDD_SYSTEM_PARTITION_CONSUMER_OFFSETS_MAX": str(MAX),
    "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2",  # some requests go to the owner on the other shard
}
FULL, DELETE_USER = 3023, 34
READER = Permissions(read_topics=True, poll_messages=True)  # no right to change anything, or to send
PARTITIONS = 2
Way = Callable[[wire.Wire, int, int], None]


def begin(server: Server, root: wire.Wire, name: str) -> wire.Wire:
    create_user(root, name, READER)
    return login(server, name)


def login(server: Server, name: str) -> wire.Wire:
    client = wire.Wire(server.address)
    client.login(name, "secret")
    return client


def prepare(root: wire.Wire) -> None:
    root.create_topic(root.create_stream("s"), "t", PARTITIONS)
    for partition in range(PARTITIONS):
        root.send(0, 0, wire.to_partition(partition), [wire.message(b"%d" % n) for n in range(10)])


def store(client: wire.Wire, partition: int, consumer: int) -> None:
    client.store_offset(0, 0, partition, 3, consumer)


def commit(client: wire.Wire, partition: int, consumer: int) -> None:
    client.poll(0, 0, partition, count=4, auto_commit=True, who=consumer)


def fill(client: wire.Wire, partition: int, first: int, way: Way = store) -> int:
    """As many new consumers as are let in."""
    for count in range(MAX + 1):
        try:
            way(client, partition, first + count)
        except wire.StatusError as refused:
            assert str(FULL) in str(refused)
            return count
    raise AssertionError("more than the bound are stored")


@pytest.mark.parametrize("way", [store, commit])
def test_one_user_cannot_take_every_stored_offset_of_a_partition(tmp_path: Path, way: Way) -> None:
    with Server(tmp_path, SETTINGS) as server, wire.connect(server.address) as root:
        prepare(root)
        with begin(server, root, "greedy") as greedy, begin(server, root, "other") as other:
            for partition in range(PARTITIONS):
                assert fill(greedy, partition, 1000, way) == MAX // 2
                way(greedy, partition, 1000)  # those that have one go on
                way(other, partition, 1)
                way(root, partition, 2)
    with (  # shares outlive a restart
        Server(tmp_path, SETTINGS) as server,
        wire.connect(server.address) as root,
        login(server, "greedy") as greedy,
    ):
        for partition in range(PARTITIONS):
            assert fill(greedy, partition, 5000, way) == 0
            way(root, partition, 3)


def test_a_stored_offset_counts_for_the_user_of_the_last_store(tmp_path: Path) -> None:
    with Server(tmp_path, SETTINGS) as server, wire.connect(server.address) as root:
        prepare(root)
        with begin(server, root, "greedy") as greedy:
            assert fill(greedy, 0, 1000) == MAX // 2
            for consumer in range(1000, 1004):
                store(root, 0, consumer)
            assert fill(greedy, 0, 2000) == 2  # four fewer of its own, and as many as are free


def test_what_a_deleted_account_has_stored_goes_on_until_a_share_needs_the_place(tmp_path: Path) -> None:
    with Server(tmp_path, SETTINGS) as server, wire.connect(server.address) as root:
        prepare(root)
        with begin(server, root, "greedy") as greedy:
            had = fill(greedy, 0, 1000)
            store(greedy, 0, 1000)  # the first one has been used last
        root.request(DELETE_USER, wire.identifier("greedy"))
        with begin(server, root, "greedy") as again:  # with the same id: another user
            assert [again.get_offset(0, 0, 0, 1000 + n) for n in range(had)] == [3] * had
            store(again, 0, 1001)  # the job goes on where it was
    with (
        Server(tmp_path, SETTINGS) as server,
        wire.connect(server.address) as root,
        login(server, "greedy") as again,
    ):
        added = fill(again, 0, 2000)
        assert added == MAX // 2 - 1  # entries without an owner count for no user
        for consumer in range(MAX - had - added):
            store(root, 0, 3000 + consumer)
        store(root, 0, 4000)  # no place is free any more: the entry that was not used for longest goes
        assert root.get_offset(0, 0, 0, 1002) is None
        assert [root.get_offset(0, 0, 0, 1000 + n) for n in range(3, had)] == [3] * (had - 3)
        assert root.get_offset(0, 0, 0, 1000) == root.get_offset(0, 0, 0, 1001) == 3
        for consumer in range(had - 3):
            store(root, 0, 5000 + consumer)
        assert root.get_offset(0, 0, 0, 1000) == 3
        store(root, 0, 6000)
        assert root.get_offset(0, 0, 0, 1000) is None
        assert root.get_offset(0, 0, 0, 1001) == 3
        with pytest.raises(wire.StatusError, match=str(FULL)):
            store(root, 0, 7000)
        wait_until(lambda: f"{had - 1} stored offsets of deleted users" in server.log(), "the log tells")
