"""Marks of a stream with more partitions than it may have ranges of them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from shardd.metadata import commands, validate
from shardd.metadata.commands import Ref
from shardd.metadata.liftbridge_runs import is_on, marked, ranges_of
from shardd.metadata.liftbridge_state import RUNS_MAX, LiftbridgeStream, Run
from shardd.metadata.state import Partition, State, Topic
from shardd.protocol.errors import Status
from tests.unit.test_metadata_apply import run
from tests.unit.test_metadata_liftbridge import new_stream, pause


@pytest.fixture
def state() -> State:
    """The home stream 0, with a and b of Liftbridge."""
    state = run(State(), commands.CreateStream("liftbridge-default"))
    state = run(state, commands.PrepareLiftbridge(Ref(0, 1), "server"))
    return run(state, new_stream("a"), new_stream("b"))


def with_wide_topic(state: State, paused: tuple[Run, ...]) -> State:
    """More partitions than RUNS_MAX."""
    wide = Topic(0, "x", 0, 0, 1, 0, 0, 1)
    partitions = tuple(Partition(number, 0, 0, 0) for number in range(3 * RUNS_MAX))
    known = LiftbridgeStream("x", "x", "", paused=paused)
    topic = replace(wide, incarnation=1, partitions=partitions, liftbridge=known)
    stream = replace(state.streams[0], topics=state.streams[0].topics.set(0, topic))
    return replace(state, streams=state.streams.set(0, stream))


def known_of_wide(state: State) -> LiftbridgeStream:
    found = state.streams[0].topics[0].liftbridge
    assert found is not None
    return found


def test_marks_of_a_wide_topic_are_bounded(state: State) -> None:
    state = with_wide_topic(state, marked((), ranges_of(range(0, 2 * RUNS_MAX - 990, 2)), True, 5))
    many = tuple(range(9_000, 10_000, 2))
    refused = commands.PauseLiftbridgeStream(Ref(0, 1), Ref(0, 1), many, False)
    assert validate(state, refused) == Status.TOO_MANY_PARTITIONS
    assert validate(state, replace(refused, partitions=())) == Status.OK
    assert validate(state, replace(refused, partitions=tuple(range(1_001)))) == Status.INVALID_COMMAND


def test_a_stream_with_as_many_paused_ranges_as_it_may_have_can_be_paused_as_a_whole(state: State) -> None:
    """The bound is of one stream, and only a user that may change it comes near: other streams are paused as before."""
    wide = with_wide_topic(state, marked((), ranges_of(range(0, 2 * RUNS_MAX, 2)), True, 5))
    one_more = commands.PauseLiftbridgeStream(Ref(0, 1), Ref(0, 1), (2 * RUNS_MAX + 1,), False)
    assert validate(wide, one_more) == Status.TOO_MANY_PARTITIONS
    assert validate(wide, replace(one_more, partitions=(1,))) == Status.OK, "it closes a gap"
    assert validate(wide, pause(state, "b")) == Status.OK
    everything = replace(one_more, partitions=())
    assert validate(wide, everything) == Status.OK
    assert len(known_of_wide(run(wide, everything)).paused) == 1


def test_a_mark_of_everything_keeps_its_bound(state: State) -> None:
    """Each range and each gap has a time of its own."""
    state = with_wide_topic(state, marked((), ranges_of(range(0, 2 * RUNS_MAX - 1_000, 2)), True, 5))
    everything = commands.PauseLiftbridgeStream(Ref(0, 1), Ref(0, 1), (), False)
    assert validate(state, everything) == Status.OK
    [left] = known_of_wide(run(state, everything)).paused
    assert (left.first, left.end, left.on, left.first_ns) == (0, 3 * RUNS_MAX, True, 5)


def test_partitions_of_a_wide_topic_that_are_resumed_one_by_one_make_a_bounded_number_of_marks(state: State) -> None:
    """Each message to a paused partition is a resumption: at the bound it resumes those beside its partition, too."""
    end = 3 * RUNS_MAX
    paused = marked((), ((0, end),), True, 5)
    state = with_wide_topic(state, marked(paused, ranges_of(range(1, RUNS_MAX - 10, 2)), False, 6))
    for partition in range(RUNS_MAX, end, 500):
        state = run(state, commands.ResumeLiftbridgeStream(Ref(0, 1), Ref(0, 1), partition))
        left = known_of_wide(state).paused
        assert not is_on(left, partition) and len(left) <= RUNS_MAX
    assert all(is_on(left, partition) for partition in range(0, RUNS_MAX - 10, 2)), "others stay"
