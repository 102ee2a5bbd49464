"""Sequences in which the state machines found something."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardd.client.errors import DeadlineError
from shardd.client.history import Loss
from tests.models.broker import STORE_POSITION
from tests.models.readers import GroupWorld, ReaderWorld
from tests.models.wires import Pipe
from tests.models.writers import WriterWorld


@pytest.fixture
def reading() -> Iterator[ReaderWorld]:
    world = ReaderWorld()
    yield world
    world.teardown()


@pytest.fixture
def writing() -> Iterator[WriterWorld]:
    world = WriterWorld()
    yield world
    world.teardown()


def test_gap_in_the_first_answer_of_a_consumer_is_told(reading: ReaderWorld) -> None:
    """Damage between messages that it hands over, before it had a position."""
    reading.begin(1, 1, "after", "earliest", "skip", False, 4)
    told: list[Loss] = []
    reading.readers[0]._histories._when_lost = told.append
    reading.topic.isolate(0, 1, 3)
    reading.account.excused[1] = {1, 2}
    reading.read(0, 1.0, 20, False)
    assert told == [Loss(0, 1, 3)]


def test_commit_that_is_never_answered_ends_at_its_deadline(reading: ReaderWorld) -> None:
    """The connection falls silent, the next one is proven, and the offset is asked to be stored again."""
    reading.begin(1, 1, "manual", "earliest", "skip", False, 4)
    reading.read(0, 1.0, 1, False)
    asked = reading.broker.asked

    def no_store(pipe: Pipe, code: int, payload: bytes) -> None:
        if code != STORE_POSITION:
            asked(pipe, code, payload)

    reading.broker.asked = no_store  # type: ignore[method-assign]
    consumer, began_s = reading.readers[0], reading.loop.time()
    consumer.done()
    with pytest.raises(DeadlineError):
        reading.run(consumer.commit())
    assert reading.loop.time() - began_s < 3 * reading.settings.deadline_s
    reading.broker.asked = asked  # type: ignore[method-assign]


@pytest.fixture
def member() -> Iterator[GroupWorld]:
    world = GroupWorld()
    yield world
    world.teardown()


def test_member_that_cannot_join_at_first_tells_histories_all_the_same(member: GroupWorld) -> None:
    """Its topic is missing while it asks what the server offers: that says nothing of histories."""
    member.begin(1, 1, "after", "earliest", "skip", False, 3)
    member.broker.is_there = False
    member.read(0, 0.3, 1, False)
    member.broker.is_there = True
    member.read(0, 15.0, 1, True)
    member.recreate(1, 0.0, 7)
    member.read(0, 15.0, 1, True)
    assert member.account.resets == {(0, 0): 1}


def test_member_whose_reads_are_short_leaves_a_silent_connection(member: GroupWorld) -> None:
    """Each read that is given up asks to join, and no request that is given up was missed by anybody."""
    member.begin(0, 1, "after", "earliest", "skip", True, 0)
    member.recreate(1, 0.3, 0)
    member.read(0, 0.004, 1, False)
    member.connection(0, "silent", 0.0)
    member.recreate(1, 0.0, 1)
    for _ in range(20):
        member.read(0, 1.0, 1, True)
    assert not member.account.missing()


def test_producer_whose_connection_broke_does_not_spin_until_it_tries_again(writing: WriterWorld) -> None:
    """The next batch of the partition waits until those that failed are settled, and no connection is made for it."""
    writing.begin(1, 1, 32, 0.0, 40.0)
    writing.send(0, 1, False)
    writing.wait_for_the_last()
    writing.broker.failures += ["answer lost"]
    steps = writing.loop.steps
    writing.send(0, 400, False)
    writing.time_passes(0.3)
    assert writing.loop.steps - steps < 5000
