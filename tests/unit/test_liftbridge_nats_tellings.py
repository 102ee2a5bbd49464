"""What thousands of users hear of one message takes many turns of the loop, and keeps its order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

import pytest

from shardd.doors.liftbridge.losses import Losses
from shardd.doors.liftbridge.nats import audience as nats_audience
from shardd.doors.liftbridge.nats import tellings as nats_tellings
from shardd.doors.liftbridge.nats.audience import Audience
from shardd.doors.liftbridge.nats.tellings import LOOKS_PER_CLOCK, TURN_S, WAITING_MAX, Tellings
from shardd.doors.liftbridge.publish_batches import Outcome
from shardd.doors.liftbridge.publishing import Publisher
from shardd.protocol.liftbridge.records import LiftbridgeMessage
from tests.support.on_loop import on_loop, until
from tests.unit.test_liftbridge_nats_audience import STREAM, listening, message, tell
from tests.unit.test_liftbridge_publishing import Worker

STEP_S = TURN_S / 100


@dataclass(frozen=True)
class What:
    number: int
    size_bytes: int = 10


class Clock:
    """Each user costs a hundredth of a turn."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@on_loop
async def test_many_users_a_turn_tells_some_and_later_ones_the_rest_in_order() -> None:
    clock, heard, lost = Clock(), list[tuple[int, int]](), list[What]()

    def hear(user: int, what: What) -> int:
        clock.now_s += STEP_S
        heard.append((what.number, user))
        return 0

    tellings = Tellings[int, What](lambda _: range(1_000), hear, lost.append, clock)
    for number in range(3):
        tellings.put(What(number))
    most = 100 + LOOKS_PER_CLOCK
    assert 0 < len(heard) <= most
    while len(heard) < 3_000:
        before = len(heard)
        await asyncio.sleep(0)
        assert 0 < len(heard) - before <= most, "a turn without an end, or a loop that stands"
    assert heard == [(number, user) for number in range(3) for user in range(1_000)] and not lost


@on_loop
async def test_what_users_hear_counts_for_the_turn() -> None:
    clock, heard = Clock(), list[int]()

    def hear(user: int, what: What) -> int:
        clock.now_s += TURN_S / 2
        heard.append(user)
        return 1_000

    Tellings[int, What](lambda _: range(100), hear, lambda _: None, clock).put(What(0))
    assert len(heard) == 2
    await until(lambda: len(heard) == 100)


@on_loop
async def test_telling_one_user_fails_the_others_hear_and_who_publishes_goes_on() -> None:
    clock, heard, caught_up = Clock(), list[int](), asyncio.Event()

    def hear(user: int, what: What) -> int:
        clock.now_s += STEP_S
        if user == 150:
            raise ValueError(user)
        heard.append(user)
        return 0

    tellings = Tellings[int, What](lambda _: range(300), hear, lambda _: None, clock)
    tellings.caught_up = caught_up.set
    tellings.put(What(0))
    assert tellings.is_behind
    await asyncio.wait_for(caught_up.wait(), 60)
    assert heard == [user for user in range(300) if user != 150] and not tellings.is_behind


@on_loop
async def test_more_than_may_wait_is_lost_and_the_rest_is_told() -> None:
    clock, lost, told = Clock(), list[What](), set[int]()

    def hear(user: int, what: What) -> int:
        clock.now_s += STEP_S
        told.add(what.number)
        return 0

    tellings = Tellings[int, What](lambda _: range(200), hear, lost.append, clock)
    for number in range(WAITING_MAX + 5):
        tellings.put(What(number))
    assert [each.number for each in lost] == [*range(WAITING_MAX, WAITING_MAX + 5)]
    tellings = Tellings[int, What](lambda _: range(200), hear, lost.append, clock)
    for number in range(3):
        tellings.put(What(number, nats_tellings.WAITING_BYTES_MAX * 2 // 3))
    assert [each.number for each in lost[5:]] == [1, 2]
    await until(lambda: told == {*range(WAITING_MAX)})


@on_loop
async def test_users_of_unknown_rights_are_asked_in_turns_and_newcomers_hear_later_messages_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of users with a subscription is that of all subscriptions, at most."""
    monkeypatch.setattr(nats_tellings, "TURN_S", 0.0)  # each look at the clock ends a turn
    audience = Audience(Losses())
    looks, look = 0, nats_audience._User.may_hear

    def counted(*arguments: object) -> bool | None:
        nonlocal looks
        looks += 1
        return look(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(nats_audience._User, "may_hear", counted)
    ears = [listening(audience, user_id, STREAM.topic_id) for user_id in range(500)]
    tell(audience, message(b"0"), STREAM)
    assert 0 < looks <= LOOKS_PER_CLOCK
    late = listening(audience, 500, STREAM.topic_id)
    gone = ears.pop()
    audience.remove(next(iter(audience._users[gone.user_id].subscriptions.match("sub")))[500])
    tell(audience, message(b"1"), STREAM)
    await until(lambda: all(ear.heard == [b"0", b"1"] for ear in ears))
    await until(lambda: late.heard == [b"1"])
    assert not gone.heard


@on_loop
async def test_publisher_sends_a_burst_it_goes_at_the_pace_of_those_who_hear_and_nothing_is_lost() -> None:
    clock, lost, heard = Clock(), list[What](), list[int]()

    def hear(user: int, what: What) -> int:
        clock.now_s += STEP_S
        if not user:
            heard.append(what.number)
        return 0

    def put(number: int, _: Outcome) -> None:
        tellings.put(What(number))

    tellings = Tellings[int, What](lambda _: range(300), hear, lost.append, clock)
    worker, publisher = Worker(), Publisher(1 << 20)
    worker.at_once = True
    publisher.follow(tellings)
    count = WAITING_MAX + 1_000
    for number in range(count):
        publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(b"x"), done=partial(put, number))
    await asyncio.wait_for(publisher.drained(), 60)
    await until(lambda: not tellings.is_behind)
    assert not lost and heard == [*range(count)]
