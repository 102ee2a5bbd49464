"""Liftbridge's streams in the metadata: what its commands change, and what native ones mean for them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from immutables import Map
from msgspec.structs import replace

from shardd.metadata import commands, validate
from shardd.metadata.commands import Command, Ref
from shardd.metadata.liftbridge import described, find_liftbridge
from shardd.metadata.liftbridge_runs import is_on, on_ranges, partitions_in
from shardd.metadata.liftbridge_state import (
    EVENTS_BYTES_MAX,
    GROUP_SIZE_MAX,
    GROUPS_SIZE_MAX,
    MEMBERS_MAX,
    NO_LIFTBRIDGE,
    Charge,
    LiftbridgeGroup,
    LiftbridgeStream,
)
from shardd.metadata.snapshot import decode_snapshot, encode_snapshot
from shardd.metadata.snapshot_image import Image, decode_image, encode_image
from shardd.metadata.state import State
from shardd.metadata.steps import steps_concerned
from shardd.protocol.errors import Status
from shardd.protocol.liftbridge.requests import EVENTS_MAX, STREAMS_OF_MEMBER_MAX, ActivityOp
from tests.unit.test_metadata_apply import create_topic, run, stream_ref, topic_ref

NEVER = 2**64 - 1
NO_FILE = Path("state.snapshot")


def new_stream(name: str, partitions: int = 3, **attributes: int | bool) -> commands.CreateLiftbridgeStream:
    return commands.CreateLiftbridgeStream(
        Ref(0, 1),
        name,
        partitions,
        1,
        NEVER,
        NEVER,
        1,
        title=name,
        subject=f"in.{name}",
        queue_group="q",
        attributes=tuple(attributes.items()),
    )


def place(state: State, name: str) -> tuple[Ref, Ref]:
    found = find_liftbridge(state, name)
    assert found is not None
    return Ref(found[0].id, found[0].incarnation), Ref(found[1].id, found[1].incarnation)


def known(state: State, name: str) -> LiftbridgeStream:
    found = find_liftbridge(state, name)
    assert found is not None
    return described(state, *found)


def pause(state: State, name: str, *partitions: int, resume_all: bool = False) -> Command:
    return commands.PauseLiftbridgeStream(*place(state, name), partitions, resume_all)


def readonly(state: State, name: str, *partitions: int, on: bool = True) -> Command:
    return commands.SetLiftbridgeReadonly(*place(state, name), partitions, on)


def join(state: State, group: str, consumer: str, *names: str) -> Command:
    return commands.JoinLiftbridgeGroup(Ref(7, 1), group, consumer, tuple(place(state, name) for name in names))


def told(state: State) -> list[tuple[int, int, str]]:
    return [(event.index, event.op, event.stream or event.group) for event in state.liftbridge.events]


def again(state: State) -> State:
    """Through a snapshot."""
    state = replace(state, digest=bytes([7]) * 32)
    decoded = decode_snapshot(NO_FILE, encode_snapshot(state, [])).state
    assert decoded == state
    return decoded


@pytest.fixture
def state() -> State:
    """The home stream 0, with a and b of Liftbridge; a native stream 1 with a topic."""
    state = run(State(), commands.CreateStream("liftbridge-default"), commands.CreateStream("other"))
    state = run(state, commands.PrepareLiftbridge(Ref(0, 1), "server"))
    state = run(state, new_stream("a", segmentMaxAge=5, optimisticConcurrencyControl=True), new_stream("b"))
    return create_topic(state, 1, "native topic", 4)


def test_a_stream_is_a_topic_with_what_it_was_asked_for_in_one_record(state: State) -> None:
    assert dict(state.liftbridge.names) == {"a": (0, 0), "b": (0, 1)}
    attributes = (("segmentMaxAge", 5), ("optimisticConcurrencyControl", True))
    assert known(state, "a") == LiftbridgeStream("a", "in.a", "q", attributes)
    assert told(state) == [(4, ActivityOp.CREATE_STREAM, "a"), (5, ActivityOp.CREATE_STREAM, "b")]
    assert state.liftbridge.events[0].partitions == ((0, 3),)
    assert validate(state, new_stream("a")) == Status.TOPIC_NAME_ALREADY_EXISTS
    elsewhere = replace(new_stream("c"), stream=Ref(1, 2))
    assert validate(state, elsewhere) == Status.STREAM_ID_NOT_FOUND
    again(state)


def test_the_first_server_id_stays(state: State) -> None:
    state = run(state, commands.PrepareLiftbridge(Ref(0, 1), "another"))
    assert state.liftbridge.server_id == "server"


def test_what_is_made_natively_in_the_home_stream_is_a_stream(state: State) -> None:
    state = create_topic(state, 0, "made > natively", 2)
    assert known(state, "made > natively") == LiftbridgeStream("made > natively", "made%20%3E%20natively", "")
    assert state.streams[0].topics[2].liftbridge is None, "nothing is stored before the first change"
    assert told(state)[-1] == (7, ActivityOp.CREATE_STREAM, "made > natively")
    taken = commands.CreateTopic(Ref(0, 1), "a", 1, 1, NEVER, NEVER, 1)
    renamed = commands.UpdateTopic(Ref(0, 1), topic_ref(state, 0, 0), "renamed", 1, NEVER, NEVER, 1)
    assert validate(run(state, renamed), taken) == Status.TOPIC_NAME_ALREADY_EXISTS
    again(state)


def test_a_renamed_topic_keeps_its_name_in_liftbridge(state: State) -> None:
    state = create_topic(state, 0, "n", 2)
    for topic in (0, 2):
        ref = topic_ref(state, 0, topic)
        state = run(state, commands.UpdateTopic(Ref(0, 1), ref, f"renamed {topic}", 1, NEVER, NEVER, 1))
    assert known(state, "a").subject == "in.a" and known(state, "n").subject == "n"
    assert dict(state.liftbridge.names) == {"a": (0, 0), "b": (0, 1), "n": (0, 2)}
    again(state)


def test_a_native_topic_elsewhere_is_a_stream_with_its_first_change(state: State) -> None:
    ref = stream_ref(state, 1), topic_ref(state, 1, 0)
    assert find_liftbridge(state, "other/native topic") is None
    state = run(state, commands.SetLiftbridgeReadonly(*ref, (2,), True))
    assert known(state, "other/native topic").subject == "other.native%20topic"
    state = again(state)
    assert validate(state, new_stream("other/native topic")) == Status.TOPIC_NAME_ALREADY_EXISTS
    state = run(state, commands.DeleteStream(ref[0]))
    assert find_liftbridge(state, "other/native topic") is None
    assert told(state)[-1] == (8, ActivityOp.DELETE_STREAM, "other/native topic")


def test_a_name_that_a_stream_has_is_not_given_to_a_native_topic(state: State) -> None:
    state = run(state, new_stream("other/native topic"))
    ref = stream_ref(state, 1), topic_ref(state, 1, 0)
    assert validate(state, commands.SetLiftbridgeReadonly(*ref, (), True)) == Status.TOPIC_NAME_ALREADY_EXISTS


def test_pause_and_resume_count_by_partition(state: State) -> None:
    state = run(state, pause(state, "a", 2, 0, 2))
    first = known(state, "a").paused[0].first_ns
    assert partitions_in(on_ranges(known(state, "a").paused)) == (0, 2)
    state = run(state, pause(state, "a", 0))
    run_of_0 = known(state, "a").paused[0]
    assert run_of_0.first_ns == first < run_of_0.latest_ns, "a pause again is an event"
    stream, topic = place(state, "a")
    state = run(state, commands.ResumeLiftbridgeStream(stream, topic, 0))
    assert not is_on(known(state, "a").paused, 0) and is_on(known(state, "a").paused, 2)
    state = run(state, pause(state, "a", resume_all=True))
    assert on_ranges(known(state, "a").paused) == ((0, 3),) and known(state, "a").resume_all
    assert validate(state, pause(state, "a", 1, 3)) == Status.PARTITION_NOT_FOUND
    state = run(again(state), commands.ResumeLiftbridgeStream(stream, topic, 1))
    assert on_ranges(known(state, "a").paused) == () and not known(state, "a").resume_all
    assert state.liftbridge.events[-1].partitions == ((0, 3),)
    before = state.liftbridge.events
    state = run(state, commands.ResumeLiftbridgeStream(stream, topic, 1))
    assert state.liftbridge.events == before, "what was not paused is no event"


def test_readonly_stays_over_a_pause(state: State) -> None:
    state = run(state, readonly(state, "b", 1), pause(state, "b"))
    stream, topic = place(state, "b")
    state = run(again(state), commands.ResumeLiftbridgeStream(stream, topic, 1))
    assert partitions_in(on_ranges(known(state, "b").readonly)) == (1,)
    state = run(state, readonly(state, "b", on=False))
    assert on_ranges(known(state, "b").readonly) == ()
    assert [event.flag for event in state.liftbridge.events if event.op == ActivityOp.SET_STREAM_READONLY] == [
        True,
        False,
    ]


def test_partitions_that_go_take_their_marks_and_groups_follow(state: State) -> None:
    state = run(state, pause(state, "a"), join(state, "g", "one", "a", "b"))
    assert state.liftbridge.groups["g"].loads["one"] == 6
    stream, topic = place(state, "a")
    state = run(state, commands.DeletePartitions(stream, topic, 2))
    assert on_ranges(known(state, "a").paused) == ((0, 1),)
    group = state.liftbridge.groups["g"]
    assert (group.loads["one"], group.epoch) == (4, state.index)
    state = run(state, commands.CreatePartitions(stream, topic, 5))
    assert not is_on(known(state, "a").paused, 1)
    assert state.liftbridge.groups["g"].loads["one"] == 9
    again(state)


def test_a_deleted_topic_leaves_groups_and_is_told(state: State) -> None:
    state = run(state, join(state, "g", "one", "a", "b", "a"), join(state, "g", "two", "b"))
    assert state.liftbridge.events[-2].names == ("a", "b", "a"), "as they were named"
    state = run(state, commands.DeleteTopic(*place(state, "a")))
    group = state.liftbridge.groups["g"]
    assert dict(group.members) == {"one": ("b",), "two": ("b",)} and group.epoch == state.index
    assert told(state)[-1] == (state.index, ActivityOp.DELETE_STREAM, "a")
    state = run(again(state), commands.DeleteStream(Ref(0, 1)))
    assert dict(state.liftbridge.groups["g"].members) == {"one": (), "two": ()}
    assert state.liftbridge.home is None and not state.liftbridge.names
    again(state)
    for consumer in ("one", "two"):
        state = run(state, commands.LeaveLiftbridgeGroup("g", consumer))
    assert not state.liftbridge.groups and state.liftbridge.groups_size == 0


def test_refusals_of_groups(state: State) -> None:
    state = run(state, join(state, "g", "one", "a"))
    assert validate(state, join(state, "g", "one", "b")) == Status.CONSUMER_GROUP_NAME_ALREADY_EXISTS
    gone = commands.JoinLiftbridgeGroup(Ref(7, 1), "g", "two", ((Ref(0, 1), Ref(0, 99)),))
    assert validate(state, gone) == Status.TOPIC_ID_NOT_FOUND
    leave = commands.LeaveLiftbridgeGroup
    assert validate(state, leave("h", "one")) == Status.CONSUMER_GROUP_ID_NOT_FOUND
    assert validate(state, leave("g", "two")) == Status.CONSUMER_GROUP_MEMBER_NOT_FOUND
    assert validate(state, leave("g", "one", True, 7)) == Status.RESOURCE_NOT_FOUND
    assert validate(state, leave("g", "one", True, 0)) == Status.OK
    assert validate(state, leave("g" * 256, "one")) == Status.INVALID_FORMAT


def test_groups_are_bounded(state: State) -> None:
    """For root and old members, which have no share: tests/unit/test_metadata_liftbridge_shares.py has those."""
    state = run(state, join(state, "g", "one", "a"))
    group, names = state.liftbridge.groups["g"], state.liftbridge.names
    more = join(state, "g", "two", "a")
    assert validate(state, more) == Status.OK
    assert validate(with_group(state, replace(group, size=GROUP_SIZE_MAX - 1)), more) == Status.FEATURE_UNAVAILABLE
    crowd = Map({f"m{number}": ("a",) for number in range(MEMBERS_MAX)})
    assert validate(with_group(state, replace(group, members=crowd)), more) == Status.FEATURE_UNAVAILABLE
    full = replace(state, liftbridge=replace(state.liftbridge, charged_all=GROUPS_SIZE_MAX - 1))
    assert validate(full, more) == validate(full, join(state, "new", "two", "a")) == Status.FEATURE_UNAVAILABLE
    for number in range(STREAMS_OF_MEMBER_MAX + 1 - len(names)):
        state = run(state, new_stream(f"s{number}", 1))
    every = sorted(state.liftbridge.names)
    assert len(every) == STREAMS_OF_MEMBER_MAX + 1
    assert validate(state, join(state, "g", "two", *every)) == Status.FEATURE_UNAVAILABLE
    assert validate(state, join(state, "g", "two", *every[1:], every[1])) == Status.OK


def test_names_and_settings_that_are_too_long(state: State) -> None:
    good = new_stream("c")
    for wrong in (
        replace(good, title="x" * 512),
        replace(good, title=""),
        replace(good, subject="x" * 4_097),
        replace(good, subject=""),
        replace(good, queue_group="x" * 256),
    ):
        assert validate(state, wrong) == Status.INVALID_FORMAT
    for attributes in (tuple((str(number), 1) for number in range(33)), (("x" * 256, 1),), (("x", 1 << 63),)):
        assert validate(state, replace(good, attributes=attributes)) == Status.INVALID_COMMAND


def with_group(state: State, group: LiftbridgeGroup) -> State:
    return replace(state, liftbridge=replace(state.liftbridge, groups=state.liftbridge.groups.set(group.name, group)))


def test_another_home_takes_the_place_of_the_first(state: State) -> None:
    state = create_topic(create_topic(state, 0, "used", 1), 0, "unused", 1)
    state = create_topic(state, 1, "b", 2)
    state = run(state, join(state, "g", "one", "b", "used"))
    state = run(state, commands.PrepareLiftbridge(stream_ref(state, 1), "x"))
    assert dict(state.liftbridge.names) == {"a": (0, 0), "b": (1, 1), "native topic": (1, 0), "used": (0, 2)}
    assert dict(state.liftbridge.groups["g"].members) == {"one": ("used",)}
    assert state.streams[0].topics[1].liftbridge is None, "its name is another's now"
    again(state)


def test_events_are_the_newest_and_bounded(state: State) -> None:
    for _ in range(EVENTS_MAX + 10):
        state = run(state, readonly(state, "a"))
    events = state.liftbridge.events
    assert len(events) == EVENTS_MAX and events[-1].index == state.index
    scattered = tuple(range(0, 2_000, 2))
    state = create_topic(state, 0, "wide", 1_000)
    state = run(state, commands.CreatePartitions(*place(state, "wide"), 1_000))
    for _ in range(200):
        state = run(state, pause(state, "wide", *scattered))
    used = sum(event.cost_bytes for event in state.liftbridge.events)
    assert used == state.liftbridge.events_bytes <= EVENTS_BYTES_MAX
    again(state)


def test_a_state_without_liftbridge_is_what_earlier_programs_read() -> None:
    state = run(State(), commands.CreateStream("x"))
    assert state.liftbridge == NO_LIFTBRIDGE
    assert encode_snapshot(state, [])[8] == 1
    state = run(state, commands.PrepareLiftbridge(Ref(0, 1), "id"))
    assert encode_snapshot(state, [])[8] == 5


def test_a_snapshot_with_what_no_server_has_written_is_refused(state: State) -> None:
    state = run(state, join(state, "g", "one", "a"), pause(state, "a"))
    image = msgspec.msgpack.decode(encode_image(state, []), type=Image)
    assert image.liftbridge is not None
    (group,) = image.liftbridge.groups
    wrong = [
        replace(image.liftbridge, attributes=[replace(image.liftbridge.attributes[0], topic_id=99)]),
        replace(image.liftbridge, groups=[replace(group, members=[("one", ("a", "b"), Charge(7, 3))])]),
        replace(image.liftbridge, groups=[replace(group, members=[("two", ("a",), Charge(7, 2))])]),
        replace(image.liftbridge, groups=[replace(group, members=[("one", ("a",), Charge(7, 1))])]),
        replace(image.liftbridge, home=(1,)),
    ]
    for each in wrong:
        data = msgspec.msgpack.encode(replace(image, liftbridge=each))
        with pytest.raises(ValueError):
            decode_image(data, state.index, state.digest)


def test_what_spreads_to_large_groups_is_counted_before(state: State) -> None:
    state = run(state, join(state, "g", "one", "a", "b"), join(state, "g", "two", "a"))
    stream, topic = place(state, "a")
    size = state.liftbridge.groups["g"].size
    assert size == 5
    assert steps_concerned(state, commands.DeleteTopic(stream, topic)) == 3 + size
    assert steps_concerned(state, commands.CreatePartitions(stream, topic, 7)) == 7 + size
    assert steps_concerned(state, commands.LeaveLiftbridgeGroup("g", "one")) == size
    assert steps_concerned(state, commands.DeleteStream(stream)) == 6 + size


def test_commands_are_read_again_as_they_were_written(state: State) -> None:
    for command in (
        new_stream("c", compactEnabled=False, retentionMaxAge=-1),
        pause(state, "a", 1, resume_all=True),
        readonly(state, "a"),
        join(state, "g", "one", "a", "b"),
        commands.LeaveLiftbridgeGroup("g", "one", True, 5),
        commands.ResumeLiftbridgeStream(*place(state, "a"), 1),
    ):
        decoded = commands.decode_command(commands.encode_command(command))
        assert decoded == command
