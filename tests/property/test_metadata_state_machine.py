"""Random histories of valid commands: replaying in parts, purity, and what must hold in every state."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from immutables import Map

from shardd.metadata import commands
from shardd.metadata.apply import apply, created_id, replay
from shardd.metadata.commands import Command, Ref
from shardd.metadata.liftbridge import described, is_home
from shardd.metadata.liftbridge_groups import assigned
from shardd.metadata.liftbridge_state import NO_OWNER
from shardd.metadata.records import Record, decode_record, encode_record
from shardd.metadata.snapshot_image import decode_image, encode_image
from shardd.metadata.state import (
    ConsumerGroup,
    Partition,
    Permissions,
    State,
    Stream,
    StreamPermissions,
    Topic,
    TopicPermissions,
)
from shardd.metadata.validate import validate
from shardd.protocol.errors import Status
from tests.support.generated import examples

NAMES = [f"name-{number}" for number in range(6)]


def random_command(rng: random.Random, state: State) -> Command:
    """Any command, mostly about things that exist."""
    streams = list(state.streams.values()) or [Stream(0, "", 0, 0)]
    stream = rng.choice(sorted(streams, key=lambda each: each.id))
    topics = list(stream.topics.values()) or [Topic(0, "", 0, 0, 1, 0, 0, 1)]
    topic = rng.choice(sorted(topics, key=lambda each: each.id))
    stream_ref = Ref(stream.id, stream.incarnation)
    topic_ref = Ref(topic.id, topic.incarnation if rng.random() < 0.95 else topic.incarnation + 1)
    groups = list(topic.groups.values()) or [ConsumerGroup(0, "", 0, 0)]
    group = rng.choice(sorted(groups, key=lambda each: each.id))
    name = rng.choice(NAMES)
    makers: list[Callable[[], Command]] = [
        lambda: commands.CreateStream(name),
        lambda: commands.UpdateStream(stream_ref, name),
        lambda: commands.DeleteStream(stream_ref),
        lambda: commands.PurgeStream(stream_ref),
        lambda: commands.CreateTopic(stream_ref, name, rng.randint(0, 4), 1, 2**64 - 1, 2**64 - 1, 1),
        lambda: commands.UpdateTopic(stream_ref, topic_ref, name, 2, 5, 6, 7),
        lambda: commands.ChangeTopic(stream_ref, topic_ref, name),
        lambda: commands.ChangeTopic(stream_ref, topic_ref, None, 1, None, 8),
        lambda: commands.DeleteTopic(stream_ref, topic_ref),
        lambda: commands.PurgeTopic(stream_ref, topic_ref),
        lambda: commands.CreatePartitions(stream_ref, topic_ref, rng.randint(0, 3)),
        lambda: commands.DeletePartitions(stream_ref, topic_ref, rng.randint(0, 3)),
        lambda: commands.CreateUser(f"user-{rng.randint(0, 99)}", "$argon2id$", True, random_permissions(rng)),
    ]
    makers.append(lambda: commands.CreateConsumerGroup(stream_ref, topic_ref, name))
    makers.append(lambda: commands.DeleteConsumerGroup(stream_ref, topic_ref, Ref(group.id, group.incarnation)))
    ack = rng.choice(["", "memory", "written", "durable"])
    makers.append(lambda: commands.SetTopicSettings(stream_ref, topic_ref, (("ack", ack),)))
    makers += liftbridge_commands(rng, state, (stream_ref, topic_ref), name)
    weights = [4, 1, 1, 1, 8, 1, 1, 1, 2, 2, 4, 3, 1, 6, 3, 2, 1, 4, 3, 3, 3, 5, 3]
    return rng.choices(makers, weights)[0]()


def liftbridge_commands(
    rng: random.Random, state: State, place: tuple[Ref, Ref], name: str
) -> list[Callable[[], Command]]:
    known = sorted(state.liftbridge.names.items())
    places = [place] + [ref_of(state, *each) for _, each in rng.sample(known, rng.randint(0, len(known)))]
    member = f"member-{rng.randrange(3)}"
    chosen = tuple(rng.sample(range(4), rng.randint(0, 2)))
    home = state.liftbridge.home
    stream = place[0] if home is None else Ref(*home)
    title = f"{name}!"
    return [
        lambda: commands.PrepareLiftbridge(place[0], "id"),
        lambda: commands.CreateLiftbridgeStream(
            stream, title, rng.randint(0, 4), 1, 5, 6, 1, title=title, subject=name, attributes=(("minIsr", 1),)
        ),
        lambda: commands.PauseLiftbridgeStream(*rng.choice(places), chosen, rng.random() < 0.5),
        lambda: commands.ResumeLiftbridgeStream(*rng.choice(places), rng.randrange(3)),
        lambda: commands.SetLiftbridgeReadonly(*rng.choice(places), chosen, rng.random() < 0.5),
        lambda: commands.JoinLiftbridgeGroup(
            Ref(rng.randrange(2), 1), f"group-{rng.randrange(2)}", member, tuple(places)
        ),
        lambda: commands.LeaveLiftbridgeGroup(f"group-{rng.randrange(2)}", member),
    ]


def ref_of(state: State, stream: int, topic: int) -> tuple[Ref, Ref]:
    found = state.streams[stream]
    return Ref(stream, found.incarnation), Ref(topic, found.topics[topic].incarnation)


def random_permissions(rng: random.Random) -> Permissions | None:
    if rng.random() < 0.2:
        return None
    topics = Map({number: TopicPermissions(read_topic=True) for number in range(rng.randint(0, 3))})
    streams = Map({number: StreamPermissions(topics=topics) for number in range(rng.randint(0, 3))})
    return Permissions(read_users=True, streams=streams)


def random_history(seed: int, length: int) -> list[Record]:
    """Records of valid commands only."""
    rng = random.Random(seed)
    state, records = State(), []
    for number in range(length):
        command = random_command(rng, state)
        if validate(state, command) != Status.OK:
            continue
        _, record = encode_record(state.digest, state.index + 1, 1_000 + number, rng.getrandbits(64), 0, command)
        records.append(record)
        state = apply(state, record)
    return records


def partitions_of(state: State) -> Iterator[tuple[int, int, Partition]]:
    for stream in state.streams.values():
        for topic in stream.topics.values():
            for partition in topic.partitions:
                yield stream.id, topic.id, partition


def check_ids(used: set[int], free: tuple[int, ...]) -> None:
    """Used and free ids together are 0 .. n-1, each once."""
    assert sorted([*used, *free]) == list(range(len(used) + len(free)))


def check_invariants(state: State) -> None:
    assert {stream.name: stream.id for stream in state.streams.values()} == dict(state.stream_ids.items())
    check_ids(set(state.streams), state.free_stream_ids)
    assert {user.name: user.id for user in state.users.values()} == dict(state.user_ids.items())
    check_ids(set(state.users), state.free_user_ids)
    for stream_id, stream in state.streams.items():
        assert stream.id == stream_id
        assert {topic.name: topic.id for topic in stream.topics.values()} == dict(stream.topic_ids.items())
        check_ids(set(stream.topics), stream.free_topic_ids)
        for topic_id, topic in stream.topics.items():
            assert topic.id == topic_id
            assert [partition.id for partition in topic.partitions] == list(range(len(topic.partitions)))
            assert {group.name: group.id for group in topic.groups.values()} == dict(topic.group_ids.items())
            check_ids(set(topic.groups), topic.free_group_ids)
    check_liftbridge(state)
    slots = [partition.slot for _, _, partition in partitions_of(state)]
    assert sorted([*slots, *state.free_slots]) == list(range(state.next_slot))


def check_liftbridge(state: State) -> None:
    """Names lead to what has them; groups share out what there is, whole; a snapshot holds all of it."""
    liftbridge = state.liftbridge
    expected = {}
    for stream in state.streams.values():
        for topic in stream.topics.values():
            if topic.liftbridge is not None or is_home(state, stream):
                expected[described(state, stream, topic).name] = stream.id, topic.id
    assert dict(liftbridge.names) == expected
    charged, gone, charged_all = dict[int, int](), 0, 0
    owners = {user.incarnation for user in state.users.values()}
    for group in liftbridge.groups.values():
        assert set(group.charges) == set(group.members)
        for charge in group.charges.values():
            charged_all += charge.size
            if charge.owner in owners:
                charged[charge.owner] = charged.get(charge.owner, 0) + charge.size
            elif charge.owner != NO_OWNER:
                gone += charge.size
        for name, shared in group.streams.items():
            stream_id, topic_id = liftbridge.names[name]
            count = len(state.streams[stream_id].topics[topic_id].partitions)
            given_out = [partition for _, partitions in assigned(shared) for partition in partitions]
            assert shared.partitions == count and sorted(given_out) == list(range(count))
            assert group.name in liftbridge.groups_of[name]
    assert (charged, gone, charged_all) == (dict(liftbridge.charged), liftbridge.charged_gone, liftbridge.charged_all)
    decoded, _ = decode_image(encode_image(state, []), state.index, state.digest)
    assert decoded == state


histories = st.builds(random_history, st.integers(0, 2**32), st.integers(0, 120))


@settings(max_examples=examples(30))
@given(histories, st.data())
def test_any_prefix_then_the_rest_is_the_whole(records: list[Record], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(records)))
    assert replay(records[cut:], replay(records[:cut])) == replay(records)


@settings(max_examples=examples(20))
@given(histories)
def test_apply_changes_no_input_and_depends_on_nothing_else(records: list[Record]) -> None:
    states = [State()]
    for record in records:
        states.append(apply(states[-1], record))
    printed = [repr(state) for state in states]
    for (old, expected), record in zip(pairwise(states), records, strict=True):
        assert apply(old, record) == expected
    assert [repr(state) for state in states] == printed


@settings(max_examples=examples(30))
@given(histories)
def test_every_state_keeps_names_unique_ids_dense_and_slots_unique(records: list[Record]) -> None:
    state = State()
    for record in records:
        state = apply(state, record)
        check_invariants(state)
        assert (state.index, state.digest) == (record.index, record.digest)


@settings(max_examples=examples(30))
@given(histories)
def test_an_incarnation_of_a_partition_never_comes_back(records: list[Record]) -> None:
    """(namespace, incarnation) names one life of a partition: once gone, for ever."""
    state, alive, gone = State(), set[tuple[int, int, int, int]](), set[tuple[int, int, int, int]]()
    for record in records:
        state = apply(state, record)
        now = {(stream, topic, each.id, each.incarnation) for stream, topic, each in partitions_of(state)}
        gone |= alive - now
        assert not gone & now
        assert all(incarnation == record.index for *_, incarnation in now - alive)
        alive = now


@settings(max_examples=examples(20))
@given(histories)
def test_the_id_that_was_announced_is_the_one_that_is_given(records: list[Record]) -> None:
    state = State()
    for record in records:
        new, command = apply(state, record), record.command
        match command:
            case commands.CreateStream():
                assert new.stream_ids[command.name] == created_id(state, command)
            case commands.CreateTopic():
                topic_ids = new.streams[command.stream.id].topic_ids
                assert topic_ids[command.name] == created_id(state, command)
            case commands.CreateUser():
                assert new.user_ids[command.name] == created_id(state, command)
        state = new


@settings(max_examples=examples(20))
@given(histories)
def test_records_survive_their_encoding(records: list[Record]) -> None:
    digest = State().digest
    for record in records:
        data, encoded = encode_record(
            digest, record.index, record.timestamp_us, record.submission, record.user_id, record.command
        )
        assert decode_record(memoryview(data), 0, digest, record.index) == (record, len(data))
        assert encoded == record
        digest = record.digest
