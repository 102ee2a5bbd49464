"""Consumer groups over both shards of a server: joins, polls and commits from each shard on partitions of each shard,
disconnects, moved sockets, deleted groups (docs/protocol/groups.md)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from shardd.engine import owner, twin
from shardd.protocol.codes import Code
from shardd.protocol.namespaces import namespace
from shardd.protocol.primitives import ConsumerKind
from shardd.service import groups
from tests.support import wire
from tests.support.wire import Wire
from tests.unit.groups_harness import (
    FIRST,
    PARTITIONS,
    details,
    group,
    member,
    place,
    poll,
    store,
    stored,
    topic_with_group,
    within,
)
from tests.unit.services_harness import Workers, moving

__all__ = ["moving"]  # a fixture
CLIENT_GONE_S = 0.5


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("data"), shards=2) as running:
        yield running


@pytest.fixture
def topic(workers: Workers, request: pytest.FixtureRequest) -> Iterator[str]:
    with topic_with_group(workers, request.node.name) as name:
        yield name


def memberships(connection: Wire) -> int:
    reply = connection.request(Code.GET_ME)
    address_bytes = struct.unpack_from("<I", reply, 9)[0]
    return int(struct.unpack_from("<I", reply, 13 + address_bytes)[0])


def test_partitions_are_on_both_shards() -> None:
    assert {twin.owner(namespace(0, 0, partition), 2) for partition in range(PARTITIONS)} == {0, 1}


def test_members_of_both_shards_share_and_read_everything_once(workers: Workers, topic: str) -> None:
    members = [member(workers, shard, topic) for shard in (0, 1, 0, 1)]
    assert sorted(map(len, details(members[0], topic).values())) == [1, 1, 2, 2]
    assert details(members[1], topic) == details(members[0], topic)
    read: list[tuple[int, int]] = []
    for _ in range(10):
        for connection in members:
            polled = poll(connection, topic)
            read += [(polled.partition, message.offset) for message in polled.messages]
    assert sorted(read) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(10)]
    assert [stored(members[0], topic, partition) for partition in range(PARTITIONS)] == [9] * PARTITIONS


def test_a_poll_of_a_partition_of_somebody_else_is_empty_and_its_commit_refused(workers: Workers, topic: str) -> None:
    first, second = member(workers, 0, topic), member(workers, 1, topic)
    assert details(first, topic) == {0: [0, 1, 2], 1: [3, 4, 5]}
    for connection, own, other in ((first, 0, 5), (second, 5, 0)):
        polled = poll(connection, topic, other)
        assert (polled.partition, polled.current_offset, polled.messages) == (0, 0, ())
        assert store(connection, topic, other, 1) == 3022
        assert store(connection, topic, own, 1) == 0
        assert store(connection, topic, own, 10) == 4100
        assert poll(connection, topic, own).messages[0].offset == 2
    stranger = workers.connect(1)
    assert store(stranger, topic, 0, 1) == 5006
    assert stranger.status(Code.LEAVE_CONSUMER_GROUP, group(topic)) == 5006


@pytest.mark.parametrize("shard", [0, 1])
def test_uncommitted_partitions_move_at_the_commit(workers: Workers, topic: str, shard: int) -> None:
    old = member(workers, shard, topic)
    assert [poll(old, topic, commit=False).partition for _ in range(PARTITIONS)] == list(range(PARTITIONS))
    new = member(workers, 1 - shard, topic)
    assert details(old, topic) == {0: [0, 1, 2, 3, 4, 5], 1: []}
    assert poll(new, topic).messages == ()
    assert [poll(old, topic, commit=False).partition for _ in range(4)] == [0, 1, 2, 0]
    assert store(old, topic, 5, 2) == 0
    assert details(new, topic) == {0: [0, 1, 2, 3, 4], 1: [5]}
    assert poll(old, topic, 4).partition == 4  # with auto-commit
    within(2, lambda: details(new, topic) == {0: [0, 1, 2, 3], 1: [5, 4]})
    assert poll(new, topic, 5).messages[0].offset == 3


@pytest.mark.parametrize("shard", [0, 1])
def test_a_closed_connection_is_gone_within_half_a_second(workers: Workers, topic: str, shard: int) -> None:
    root = workers.connect()
    stays, goes = member(workers, 1 - shard, topic), member(workers, shard, topic)
    assert memberships(goes) == 1
    goes.close()
    within(CLIENT_GONE_S, lambda: details(root, topic) == {0: list(range(PARTITIONS))})
    within(CLIENT_GONE_S, lambda: poll(stays, topic, 5).partition == 5)  # nobody's command waits until it knows


def test_a_moved_connection_keeps_its_memberships_and_leaves_when_it_closes(moving: Workers) -> None:
    with topic_with_group(moving, "moved") as topic:
        check_moved_members(moving, topic)


def check_moved_members(workers: Workers, topic: str) -> None:
    root = workers.connect(1)  # there is one on shard 0: both have as many, so a new one stays where it comes in
    for shard in (0, 1):
        connection = member(workers, shard, topic)
        moved_before = workers.context(1 - shard).engine.counters()["moved_in"]
        stream_id = root.streams()[topic]
        remote = next(p for p in range(PARTITIONS) if twin.owner(namespace(stream_id, 0, p), 2) != shard)
        for _ in range(40):
            assert poll(connection, topic, remote, kind=FIRST).partition == remote
        assert workers.context(1 - shard).engine.counters()["moved_in"] > moved_before
        assert memberships(connection) == 1
        assert len(details(root, topic)) == 1
        second = member(workers, shard, topic)
        within(1, lambda: sorted(map(len, details(root, topic).values())) == [3, 3])
        connection.close()
        second.close()
        within(CLIENT_GONE_S, lambda: details(root, topic) == {})


def test_more_and_fewer_partitions_are_shared_before_the_answer(workers: Workers, topic: str) -> None:
    first, second = member(workers, 0, topic), member(workers, 1, topic)
    first.request(Code.CREATE_PARTITIONS, place(topic) + struct.pack("<I", 2))
    assert sorted(map(len, details(second, topic).values())) == [4, 4]
    own = {poll(first, topic).partition for _ in range(4)} | {poll(second, topic).partition for _ in range(4)}
    assert own == set(range(8))
    second.request(Code.DELETE_PARTITIONS, place(topic) + struct.pack("<I", 8))
    assert list(details(first, topic).values()) == [[], []]
    assert poll(first, topic).messages == ()


def test_a_deleted_group_ends_memberships_and_offsets(workers: Workers, topic: str) -> None:
    first, second = member(workers, 0, topic), member(workers, 1, topic)
    for connection in (first, second):
        for _ in range(3):
            poll(connection, topic)
    second.request(Code.DELETE_CONSUMER_GROUP, group(topic))
    assert (memberships(first), memberships(second)) == (0, 0)
    second.request(Code.CREATE_CONSUMER_GROUP, place(topic) + wire.str8("cg"))
    assert [stored(first, topic, partition) for partition in range(PARTITIONS)] == [None] * PARTITIONS
    again = member(workers, 0, topic)
    assert details(again, topic) == {0: list(range(PARTITIONS))}


def test_many_members_that_come_and_go_at_once_leave_a_fair_group(workers: Workers, topic: str) -> None:
    connections = [workers.connect(number % 2) for number in range(12)]
    frame = wire.frame(Code.JOIN_CONSUMER_GROUP, group(topic))
    for connection in connections:  # all at once
        connection.send_bytes(frame)
    assert [connection.reply()[0] for connection in connections] == [0] * 12
    assert sorted(map(len, details(connections[0], topic).values())) == [0] * 6 + [1] * 6
    for connection in connections[4:]:
        connection.close()
    within(CLIENT_GONE_S, lambda: sorted(map(len, details(connections[0], topic).values())) == [1, 1, 2, 2])
    owned = sorted(each for partitions in details(connections[0], topic).values() for each in partitions)
    assert owned == list(range(PARTITIONS))


def test_groups_are_listed_in_pieces(workers: Workers, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_GROUPS_AT_ONCE", 2)
    one = member(workers, 1, topic)
    for number in range(5):
        one.request(Code.CREATE_CONSUMER_GROUP, place(topic) + wire.str8(f"more{number}"))
    for shard in (0, 1):
        listed = workers.connect(shard).request(Code.GET_CONSUMER_GROUPS, place(topic))
        names = [listed.index(wire.str8(f"more{number}")) for number in range(5)]
        assert names == sorted(names)
        counts = {struct.unpack_from("<III", listed, at - 12)[2] for at in names}
        assert counts == {0}, "nobody is in them"
        assert struct.unpack_from("<III", listed)[2] == 1


def test_offsets_of_a_deleted_group_are_gone_at_the_answer(workers: Workers, topic: str) -> None:
    """They are deleted in slices, on every shard, before."""
    one = member(workers, 0, topic)
    partitions = range(len(details(one, topic)[0]))
    for partition in partitions:
        one.send(topic, topic, wire.to_partition(partition), [wire.message(b"x")])
        assert store(one, topic, partition, 0) == 0
    state = workers.context().metadata.state
    stream = state.streams[state.stream_ids[topic]]
    of_topic = stream.topics[stream.topic_ids[topic]]
    offsets_id = of_topic.groups[of_topic.group_ids["cg"]].offsets_id
    one.request(Code.DELETE_CONSUMER_GROUP, group(topic))

    async def left(shard: int, packed: int) -> int | None:
        found: int | None = workers.context(shard).engine.offset_get(packed, ConsumerKind.GROUP, offsets_id)
        return found

    for partition in partitions:
        packed = namespace(stream.id, of_topic.id, partition)
        shard = owner(packed, 2)
        assert workers.call(left(shard, packed), shard) is None
