"""The rules of single commands: id reuse, incarnations, slots, permissions that go with what they name, refusals."""

from __future__ import annotations

import pytest
from immutables import Map
from msgspec.structs import replace

from shardd.metadata import apply as state_machine
from shardd.metadata import commands, validate
from shardd.metadata.apply import ApplyError
from shardd.metadata.commands import Command, Ref
from shardd.metadata.records import Record
from shardd.metadata.state import Partition, Permissions, State, StreamPermissions, TopicPermissions
from shardd.metadata.validate import PARTITIONS_MAX, SLOTS_MAX, STREAMS_MAX, TOPICS_MAX
from shardd.protocol.errors import Status

NEVER = 2**64 - 1


def run(state: State, *changes: Command) -> State:
    for command in changes:
        assert validate(state, command) == Status.OK, command
        state = state_machine(state, Record(state.index + 1, 1000 + state.index, 0, 0, command))
    return state


def stream_ref(state: State, stream: int) -> Ref:
    return Ref(stream, state.streams[stream].incarnation)


def topic_ref(state: State, stream: int, topic: int) -> Ref:
    return Ref(topic, state.streams[stream].topics[topic].incarnation)


def create_topic(state: State, stream: int, name: str, partitions: int) -> State:
    return run(state, commands.CreateTopic(stream_ref(state, stream), name, partitions, 1, NEVER, NEVER, 1))


@pytest.fixture
def populated() -> State:
    """Streams 0..2; topics 0 and 1 with 3 and 2 partitions in stream 0."""
    state = run(State(), *(commands.CreateStream(f"s{number}") for number in range(3)))
    return create_topic(create_topic(state, 0, "t0", 3), 0, "t1", 2)


def test_ids_start_at_0_and_the_last_freed_is_given_first(populated: State) -> None:
    state = populated
    for stream in (0, 2):
        state = run(state, commands.DeleteStream(stream_ref(state, stream)))
    state = run(state, commands.CreateStream("a"), commands.CreateStream("b"), commands.CreateStream("c"))
    assert [state.stream_ids[name] for name in ("a", "b", "c")] == [2, 0, 3]


def test_an_id_that_is_given_again_gets_another_incarnation(populated: State) -> None:
    old = stream_ref(populated, 0)
    state = run(populated, commands.DeleteStream(old), commands.CreateStream("s0"))
    assert state.stream_ids["s0"] == 0
    assert state.streams[0].incarnation == state.index
    assert validate(state, commands.DeleteStream(old)) == Status.STREAM_ID_NOT_FOUND


def test_a_command_for_a_deleted_topic_never_hits_the_next_one(populated: State) -> None:
    old = topic_ref(populated, 0, 1)
    state = run(populated, commands.DeleteTopic(stream_ref(populated, 0), old))
    state = create_topic(state, 0, "t1", 2)
    assert state.streams[0].topic_ids["t1"] == 1
    assert validate(state, commands.PurgeTopic(stream_ref(state, 0), old)) == Status.TOPIC_ID_NOT_FOUND


def test_group_ids_are_per_topic_from_0_and_the_last_freed_is_given_first(populated: State) -> None:
    stream, topic = stream_ref(populated, 0), topic_ref(populated, 0, 1)
    state = run(populated, *(commands.CreateConsumerGroup(stream, topic, name) for name in ("a", "b", "c")))
    old = {group.id: group for group in state.streams[0].topics[1].groups.values()}
    for group_id in (0, 2):
        group = Ref(group_id, old[group_id].incarnation)
        state = run(state, commands.DeleteConsumerGroup(stream, topic, group))
        assert validate(state, commands.DeleteConsumerGroup(stream, topic, group)) == Status.CONSUMER_GROUP_ID_NOT_FOUND
    state = run(state, *(commands.CreateConsumerGroup(stream, topic, name) for name in ("d", "e", "f")))
    groups = state.streams[0].topics[1].groups
    assert {group.name: group.id for group in groups.values()} == {"b": 1, "d": 2, "e": 0, "f": 3}
    assert groups[0].offsets_id != old[0].offsets_id, "a later group never finds the offsets of an earlier one"
    assert not state.streams[0].topics[0].groups


def test_a_group_name_is_unique_in_its_topic(populated: State) -> None:
    stream = stream_ref(populated, 0)
    first, second = topic_ref(populated, 0, 0), topic_ref(populated, 0, 1)
    state = run(populated, commands.CreateConsumerGroup(stream, first, "a"))
    refused = validate(state, commands.CreateConsumerGroup(stream, first, "a"))
    assert refused == Status.CONSUMER_GROUP_NAME_ALREADY_EXISTS
    run(state, commands.CreateConsumerGroup(stream, second, "a"))


def test_purging_a_topic_keeps_its_groups(populated: State) -> None:
    stream, topic = stream_ref(populated, 0), topic_ref(populated, 0, 0)
    state = run(populated, commands.CreateConsumerGroup(stream, topic, "a"), commands.PurgeTopic(stream, topic))
    assert set(state.streams[0].topics[0].group_ids) == {"a"}


def test_purging_a_topic_renews_its_partitions_and_nothing_else(populated: State) -> None:
    state = run(populated, commands.PurgeTopic(stream_ref(populated, 0), topic_ref(populated, 0, 0)))
    before, after = populated.streams[0].topics[0], state.streams[0].topics[0]
    assert {each.incarnation for each in after.partitions} == {state.index}
    assert [each.slot for each in after.partitions] == [each.slot for each in before.partitions]
    assert [each.created_at_us for each in after.partitions] == [each.created_at_us for each in before.partitions]
    assert after.incarnation == before.incarnation
    assert state.streams[0].topics[1] == populated.streams[0].topics[1]


def test_purging_a_stream_renews_the_partitions_of_all_its_topics(populated: State) -> None:
    state = run(populated, commands.PurgeStream(stream_ref(populated, 0)))
    for topic in state.streams[0].topics.values():
        assert {each.incarnation for each in topic.partitions} == {state.index}
    assert state.streams[0].incarnation == populated.streams[0].incarnation


def test_slots_of_deleted_partitions_are_used_again(populated: State) -> None:
    state = run(populated, commands.DeleteTopic(stream_ref(populated, 0), topic_ref(populated, 0, 0)))
    assert state.free_slots == (0, 1, 2)
    state = create_topic(state, 1, "new", 4)
    assert [each.slot for each in state.streams[1].topics[0].partitions] == [2, 1, 0, 5]
    assert (state.free_slots, state.next_slot) == ((), 6)


def test_partitions_are_added_and_removed_at_the_end(populated: State) -> None:
    refs = stream_ref(populated, 0), topic_ref(populated, 0, 0)
    state = run(populated, commands.CreatePartitions(*refs, 2), commands.DeletePartitions(*refs, 4))
    kept = state.streams[0].topics[0].partitions
    assert kept == populated.streams[0].topics[0].partitions[:1]
    assert validate(state, commands.DeletePartitions(*refs, 2)) == Status.INVALID_PARTITIONS_COUNT


def test_renaming(populated: State) -> None:
    state = run(populated, commands.UpdateStream(stream_ref(populated, 0), "other"))
    assert dict(state.stream_ids.items()) == {"other": 0, "s1": 1, "s2": 2}
    assert validate(state, commands.UpdateStream(stream_ref(state, 0), "other")) == Status.OK
    assert validate(state, commands.UpdateStream(stream_ref(state, 0), "s1")) == Status.STREAM_NAME_ALREADY_EXISTS


def test_permissions_go_with_the_stream_or_topic_they_name(populated: State) -> None:
    entry = StreamPermissions(topics=Map({0: TopicPermissions(read_topic=True), 1: TopicPermissions()}))
    permissions = Permissions(streams=Map({0: entry, 1: StreamPermissions(read_stream=True)}))
    state = run(populated, commands.CreateUser("root", "hash", True, permissions))
    state = run(state, commands.DeleteTopic(stream_ref(state, 0), topic_ref(state, 0, 0)))
    left = state.users[0].permissions
    assert left is not None
    assert set(left.streams[0].topics) == {1}
    state = run(state, commands.DeleteStream(stream_ref(state, 0)))
    left = state.users[0].permissions
    assert left is not None
    assert set(left.streams) == {1}


def test_a_record_out_of_order_is_refused(populated: State) -> None:
    with pytest.raises(ApplyError, match="cannot follow"):
        state_machine(populated, Record(populated.index + 2, 0, 0, 0, commands.CreateStream("x")))


def test_a_record_about_nothing_is_refused(populated: State) -> None:
    with pytest.raises(ApplyError, match="does not exist"):
        state_machine(populated, Record(populated.index + 1, 0, 0, 0, commands.DeleteStream(Ref(9, 9))))


def refusals() -> list[tuple[Command, Status]]:
    stream, topic, none = Ref(0, 1), Ref(0, 4), Ref(7, 7)
    topic_values = ("n", 1, NEVER, NEVER, 1)
    return [
        (commands.CreateStream("s1"), Status.STREAM_NAME_ALREADY_EXISTS),
        (commands.CreateStream(""), Status.INVALID_FORMAT),
        (commands.CreateStream("ä" * 128), Status.INVALID_FORMAT),
        (commands.DeleteStream(none), Status.STREAM_ID_NOT_FOUND),
        (commands.PurgeStream(Ref(0, 2)), Status.STREAM_ID_NOT_FOUND),
        (commands.UpdateStream(none, "s1"), Status.STREAM_ID_NOT_FOUND),
        (commands.CreateTopic(none, "n", 1001, 1, NEVER, NEVER, 1), Status.TOO_MANY_PARTITIONS),
        (commands.CreateTopic(none, "n", 1, 3, NEVER, NEVER, 1), Status.INVALID_COMMAND),
        (commands.CreateTopic(none, "t0", 1, 1, NEVER, NEVER, 1), Status.STREAM_ID_NOT_FOUND),
        (commands.CreateTopic(stream, "t0", 1, 1, NEVER, NEVER, 1), Status.TOPIC_NAME_ALREADY_EXISTS),
        (commands.UpdateTopic(stream, none, *topic_values), Status.TOPIC_ID_NOT_FOUND),
        (commands.UpdateTopic(stream, topic, "t1", 1, 0, 0, 1), Status.TOPIC_NAME_ALREADY_EXISTS),
        (commands.UpdateTopic(stream, topic, "t", 1, NEVER + 1, 0, 1), Status.INVALID_COMMAND),
        (commands.DeleteTopic(none, topic), Status.STREAM_ID_NOT_FOUND),
        (commands.PurgeTopic(stream, none), Status.TOPIC_ID_NOT_FOUND),
        (commands.ChangeTopic(stream, none, "x"), Status.TOPIC_ID_NOT_FOUND),
        (commands.ChangeTopic(stream, topic, "t1"), Status.TOPIC_NAME_ALREADY_EXISTS),
        (commands.ChangeTopic(stream, topic, ""), Status.INVALID_FORMAT),
        (commands.ChangeTopic(stream, topic, None, 3), Status.INVALID_COMMAND),
        (commands.ChangeTopic(stream, topic, None, None, NEVER + 1), Status.INVALID_COMMAND),
        (commands.SetTopicSettings(stream, none, (("ack", "durable"),)), Status.TOPIC_ID_NOT_FOUND),
        (commands.SetTopicSettings(none, topic, (("ack", "sure"),)), Status.INVALID_CONFIGURATION),
        (commands.SetTopicSettings(none, topic, (("ack", ""), ("colour", "red"))), Status.FEATURE_UNAVAILABLE),
        (
            commands.CreateTopicWithSettings(stream, "n", 1, 1, 0, 0, 1, settings=(("ack", "sure"),)),
            Status.INVALID_CONFIGURATION,
        ),
        (
            commands.CreateTopicWithSettings(stream, "t0", 1, 1, 0, 0, 1, settings=(("ack", "durable"),)),
            Status.TOPIC_NAME_ALREADY_EXISTS,
        ),
        (commands.CreatePartitions(stream, topic, 0), Status.TOO_MANY_PARTITIONS),
        (commands.CreatePartitions(none, topic, 1001), Status.TOO_MANY_PARTITIONS),
        (commands.DeletePartitions(stream, topic, 0), Status.TOO_MANY_PARTITIONS),
        (commands.DeletePartitions(stream, topic, 4), Status.INVALID_PARTITIONS_COUNT),
        (commands.DeletePartitions(stream, topic, 5000), Status.INVALID_PARTITIONS_COUNT),
        (commands.CreateUser("ab", "", True, None), Status.INVALID_USERNAME),
        (commands.CreateUser("x" * 51, "", True, None), Status.INVALID_USERNAME),
    ]


def test_topic_settings_stay_until_they_are_reset_or_the_topic_goes(populated: State) -> None:
    stream, topic = stream_ref(populated, 0), topic_ref(populated, 0, 0)
    state = run(populated, commands.SetTopicSettings(stream, topic, (("ack", "durable"),)))
    state = run(state, commands.PurgeTopic(stream, topic), commands.UpdateTopic(stream, topic, "new", 1, 0, 0, 1))
    state = run(state, commands.CreatePartitions(stream, topic, 1))
    assert dict(state.streams[0].topics[0].settings) == {"ack": "durable"}
    assert state.streams[0].topics[1].settings == Map()
    assert run(state, commands.SetTopicSettings(stream, topic, (("ack", ""),))).streams[0].topics[0].settings == Map()
    state = create_topic(run(state, commands.DeleteTopic(stream, topic)), 0, "next", 1)
    assert state.stream_ids["s0"] == 0 and state.streams[0].topics[0].name == "next"
    assert state.streams[0].topics[0].settings == Map()


def test_topic_change_keeps_what_it_does_not_say(populated: State) -> None:
    stream, topic = stream_ref(populated, 0), topic_ref(populated, 0, 0)
    state = run(populated, commands.SetTopicSettings(stream, topic, (("compression", "zstd"),)))
    state = run(state, commands.UpdateTopic(stream, topic, "t", 2, 5, 6, 7))
    before = state.streams[0].topics[0]
    state = run(state, commands.ChangeTopic(stream, topic, "new"))
    assert state.streams[0].topics[0] == replace(before, name="new")
    assert state.streams[0].topic_ids["new"] == 0 and "t" not in state.streams[0].topic_ids
    state = run(state, commands.ChangeTopic(stream, topic, message_expiry_us=9, retention=True))
    changed = state.streams[0].topics[0]
    assert (changed.message_expiry_us, changed.settings["retention"]) == (9, "on")
    assert (changed.max_topic_size_bytes, changed.compression, changed.replication_factor) == (6, 2, 7)
    state = run(state, commands.ChangeTopic(stream, topic, compression=1, max_topic_size_bytes=0))
    assert "compression" not in state.streams[0].topics[0].settings
    assert state.streams[0].topics[0].max_topic_size_bytes == 0


def test_a_topic_has_its_settings_from_the_start(populated: State) -> None:
    stream = stream_ref(populated, 0)
    settings = (("ack", "durable"), ("discard", "refuse"))
    command = commands.CreateTopicWithSettings(stream, "n", 2, 1, NEVER, NEVER, 1, retention=True, settings=settings)
    state = run(populated, command)
    topic = state.streams[0].topics[state.streams[0].topic_ids["n"]]
    assert dict(topic.settings) == {"ack": "durable", "discard": "refuse", "retention": "on"}
    assert len(topic.partitions) == 2
    unknown = commands.CreateTopicWithSettings(stream, "m", 1, 1, NEVER, NEVER, 1, settings=(("colour", "red"),))
    with pytest.raises(ApplyError, match="'colour'"):
        state_machine(state, Record(state.index + 1, 1, 0, 0, unknown))


def test_a_record_with_an_unknown_topic_setting_is_not_applied(populated: State) -> None:
    """It comes from a newer program: to leave it out would be to serve the topic otherwise than it was promised."""
    stream, topic = stream_ref(populated, 0), topic_ref(populated, 0, 0)
    command = commands.SetTopicSettings(stream, topic, (("colour", "red"),))
    with pytest.raises(ApplyError, match="sets 'colour' to 'red', which this version does not know"):
        state_machine(populated, Record(populated.index + 1, 1, 0, 0, command))


@pytest.mark.parametrize(("command", "status"), refusals(), ids=str)
def test_refused_with(populated: State, command: Command, status: Status) -> None:
    assert validate(populated, command) == status


def test_a_user_name_is_unique() -> None:
    state = run(State(), commands.CreateUser("root", "hash", True, None))
    assert validate(state, commands.CreateUser("root", "hash", True, None)) == Status.USER_ALREADY_EXISTS


def test_stream_ids_end_at_12_bits() -> None:
    state = run(State(), *(commands.CreateStream(f"s{number}") for number in range(STREAMS_MAX)))
    assert state.streams[STREAMS_MAX - 1].id == STREAMS_MAX - 1
    assert validate(state, commands.CreateStream("one more")) == Status.CANNOT_CREATE_STREAM_DIRECTORY
    state = run(state, commands.DeleteStream(stream_ref(state, 77)))
    assert run(state, commands.CreateStream("one more")).stream_ids["one more"] == 77


def test_topic_ids_end_at_12_bits() -> None:
    state = run(State(), commands.CreateStream("s"))
    state = run(state, *(commands.CreateTopic(Ref(0, 1), f"t{n}", 0, 1, NEVER, NEVER, 1) for n in range(TOPICS_MAX)))
    more = commands.CreateTopic(Ref(0, 1), "one more", 0, 1, NEVER, NEVER, 1)
    assert validate(state, more) == Status.CANNOT_CREATE_TOPIC_DIRECTORY


def test_partition_ids_and_slots_end_at_20_bits() -> None:
    state = create_topic(run(State(), commands.CreateStream("s")), 0, "t", 0)
    refs = Ref(0, 1), Ref(0, 2)
    nearly_full = (Partition(0, 0, 0, 0),) * (PARTITIONS_MAX - 5)
    topic = replace(state.streams[0].topics[0], partitions=nearly_full)
    stream = replace(state.streams[0], topics=Map({0: topic}))
    state = replace(state, streams=Map({0: stream}), next_slot=SLOTS_MAX - 5)
    assert validate(state, commands.CreatePartitions(*refs, 6)) == Status.CANNOT_CREATE_PARTITION
    state = run(state, commands.CreatePartitions(*refs, 5))
    assert state.streams[0].topics[0].partitions[-1].id == PARTITIONS_MAX - 1
    assert state.next_slot == SLOTS_MAX
    full = commands.CreateTopic(Ref(0, 1), "u", 1, 1, NEVER, NEVER, 1)
    assert validate(state, full) == Status.CANNOT_CREATE_PARTITION
    state = run(state, commands.DeletePartitions(*refs, 1))
    assert validate(state, full) == Status.OK
