"""Polls and commits of group members inside the engine (docs/adr/0010-native-group-requests.md): what stays native,
what ends it, and what an owner refuses to a member that lost the partition."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator

import pytest

from shardd.engine import twin
from shardd.protocol.codes import Code
from shardd.protocol.namespaces import namespace
from shardd.protocol.primitives import ConsumerKind
from tests.support import wire
from tests.unit.groups_harness import (
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
from tests.unit.services_harness import Workers

NEVER = 1 << 62  # a generation that no assignment reaches
REQUESTS = 3 * PARTITIONS


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("data"), shards=2) as running:
        yield running


@pytest.fixture
def topic(workers: Workers, request: pytest.FixtureRequest) -> Iterator[str]:
    with topic_with_group(workers, request.node.name) as name:
        yield name


async def advance_fence(context: object, place: tuple[int, int], offsets_id: int) -> int:
    """As a later member of the group would: asks with a generation that no assignment reaches. The status is 4100."""
    engine = context.engine  # type: ignore[attr-defined]
    status: int = engine.offset_store(*place, ConsumerKind.GROUP, offsets_id, 10**6, NEVER)
    return status


def events(workers: Workers) -> int:
    return sum(int(workers.context(shard).engine.counters()["python_events"]) for shard in (0, 1))


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("commit", [True, False])
def test_warm_polls_and_commits_do_not_reach_python(workers: Workers, topic: str, shard: int, commit: bool) -> None:
    connection = member(workers, shard, topic)
    polls = [poll(connection, topic, count=1, commit=commit).partition]
    before = events(workers)
    for _ in range(REQUESTS):
        polled = poll(connection, topic, count=1, commit=commit)
        polls.append(polled.partition)
        if not commit:
            assert store(connection, topic, polled.partition, polled.messages[0].offset) == 0
            assert store(connection, topic, None, polled.messages[0].offset) == 0
    assert events(workers) == before
    assert polls == [number % PARTITIONS for number in range(REQUESTS + 1)]
    assert [stored(connection, topic, partition) for partition in range(1, PARTITIONS)] == [2] * (PARTITIONS - 1)


def test_a_member_without_partitions_is_answered_natively(workers: Workers, topic: str) -> None:
    members = [member(workers, number % 2, topic) for number in range(PARTITIONS + 1)]
    assert poll(members[-1], topic).messages == ()
    before = events(workers)
    for _ in range(REQUESTS):
        polled = poll(members[-1], topic)
        assert (polled.partition, polled.current_offset, polled.messages) == (0, 0, ())
    assert events(workers) == before


@pytest.mark.parametrize("commit", [True, False])
def test_native_polls_and_commits_count_in_a_rebalance(workers: Workers, topic: str, commit: bool) -> None:
    old = member(workers, 0, topic)
    for _ in range(2 * PARTITIONS):
        poll(old, topic, count=2, commit=commit)
    assert store(old, topic, 4, 3) == 0  # all that was polled: no harm
    new = member(workers, 1, topic)
    if commit:
        assert details(new, topic) == {0: [0, 1, 2], 1: [3, 4, 5]}
    else:
        assert details(new, topic) == {0: [0, 1, 2, 3, 5], 1: [4]}
        assert [poll(old, topic, commit=False).partition for _ in range(4)] == [0, 1, 2, 0]


def test_partitions_added_under_concurrent_polls_lose_and_repeat_nothing(workers: Workers, topic: str) -> None:
    """Four members on both shards poll all the time while the topic grows twice and fills."""
    members, over = [member(workers, number % 2, topic) for number in range(4)], threading.Event()
    found: list[list[tuple[int, int]]] = [[] for _ in members]

    def read(number: int) -> None:
        while not over.is_set():
            polled = poll(members[number], topic)
            found[number] += [(polled.partition, message.offset) for message in polled.messages]

    threads = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(len(members))]
    for thread in threads:
        thread.start()
    root, partitions = workers.connect(), PARTITIONS
    for _ in range(2):
        root.request(Code.CREATE_PARTITIONS, place(topic) + struct.pack("<I", 3))
        for partition in range(partitions, partitions + 3):
            root.send(topic, topic, wire.to_partition(partition), [wire.message(b"%d" % n) for n in range(10)])
        partitions += 3
    try:
        within(10, lambda: sum(map(len, found)) >= partitions * 10)
    finally:
        over.set()
        for thread in threads:
            thread.join(10)
    everything = sorted(each for reader in found for each in reader)
    assert everything == [(partition, offset) for partition in range(partitions) for offset in range(10)]


def test_the_rotation_goes_on_after_a_rebalance(workers: Workers, topic: str) -> None:
    connection = member(workers, 0, topic)
    assert [poll(connection, topic).partition for _ in range(4)] == [0, 1, 2, 3]
    other = member(workers, 1, topic)
    assert details(connection, topic) == {0: [0, 1, 2], 1: [3, 4, 5]}
    assert [poll(connection, topic).partition for _ in range(3)] == [1, 2, 0]  # place 4 of six is place 1 of three
    other.close()


def test_a_renamed_stream_ends_the_old_name(workers: Workers, topic: str) -> None:
    connection = member(workers, 0, topic)
    how = wire.optional_partition(None) + struct.pack("<BQIB", 5, 0, 3, True)
    request = wire.group("cg") + place(topic) + how
    for _ in range(3):
        assert poll(connection, topic).messages
    connection.request(Code.UPDATE_STREAM, wire.identifier(topic) + wire.str8(topic + "new"))
    assert connection.status(Code.POLL_MESSAGES, request) == 1009
    connection.request(Code.UPDATE_STREAM, wire.identifier(topic + "new") + wire.str8(topic))
    assert poll(connection, topic).partition == 3


def test_a_group_of_the_same_name_is_another_group(workers: Workers, topic: str) -> None:
    connection, root = member(workers, 0, topic), workers.connect(1)
    assert poll(connection, topic).messages
    root.request(Code.DELETE_CONSUMER_GROUP, group(topic))
    root.request(Code.CREATE_CONSUMER_GROUP, place(topic) + wire.str8("cg"))
    how = wire.optional_partition(None) + struct.pack("<BQIB", 5, 0, 3, True)
    assert connection.status(Code.POLL_MESSAGES, wire.group("cg") + place(topic) + how) == 5006
    assert store(connection, topic, 0, 1) == 5006
    connection.request(Code.JOIN_CONSUMER_GROUP, group(topic))
    assert poll(connection, topic).messages[0].offset == 0, "and the fences of the old one do not hold it back"


def test_names_and_numbers_are_the_same_membership(workers: Workers, topic: str) -> None:
    connection = member(workers, 0, topic)
    group_id = int.from_bytes(connection.request(Code.GET_CONSUMER_GROUP, group(topic))[:4], "little")
    how = wire.optional_partition(None) + struct.pack("<BQIB", 5, 0, 1, True)
    found = []
    for number in range(PARTITIONS):
        who = wire.identifier("cg" if number % 2 else group_id)
        found.append(wire.parse_polled(connection.request(Code.POLL_MESSAGES, b"\x02" + who + place(topic) + how)))
    assert [polled.partition for polled in found] == list(range(PARTITIONS))


def test_more_memberships_than_seats_work_as_well(workers: Workers, topic: str) -> None:
    connection = workers.connect(0)
    names = [f"g{number}" for number in range(20)]
    how = wire.optional_partition(None) + struct.pack("<BQIB", 5, 0, 1, True)
    for name in names:
        connection.request(Code.CREATE_CONSUMER_GROUP, place(topic) + wire.str8(name))
        connection.request(Code.JOIN_CONSUMER_GROUP, place(topic) + wire.identifier(name))
    for turn in range(3):
        for name in names:
            request = wire.group(name) + place(topic) + how
            assert wire.parse_polled(connection.request(Code.POLL_MESSAGES, request)).partition == turn


@pytest.mark.parametrize("shard", [0, 1])
def test_who_lost_the_partition_cannot_move_its_offset(workers: Workers, topic: str, shard: int) -> None:
    """The owner has heard of a later assignment; the member's shard has not."""
    connection = member(workers, shard, topic)
    for partition in range(PARTITIONS):
        assert poll(connection, topic, partition).messages[-1].offset == 2
    stream_id = connection.streams()[topic]
    group_id = int.from_bytes(connection.request(Code.GET_CONSUMER_GROUP, group(topic))[:4], "little")
    state = workers.context().metadata.state
    of_topic = state.streams[stream_id].topics[0]
    offsets_id = of_topic.groups[group_id].offsets_id
    for partition in range(PARTITIONS):
        packed = namespace(stream_id, 0, partition)
        owner, here = twin.owner(packed, 2), (packed, of_topic.partitions[partition].incarnation)
        assert workers.call(advance_fence(workers.context(owner), here, offsets_id), owner) == 4100
        for commit in (True, False):
            polled = poll(connection, topic, partition, commit=commit)
            assert (polled.partition, polled.current_offset, polled.messages) == (0, 0, ())
        assert store(connection, topic, partition, 5) == 3022
        who = wire.group("cg") + place(topic) + wire.optional_partition(partition)
        assert connection.status(Code.DELETE_CONSUMER_OFFSET, who) == 3022
        assert stored(connection, topic, partition) == 2
