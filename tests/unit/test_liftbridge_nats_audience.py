"""Who hears what, when rights come and go, and how much waits for an answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest

from shardd.doors.door import DoorClient
from shardd.doors.liftbridge.losses import Loss, Losses
from shardd.doors.liftbridge.nats import audience as nats_audience
from shardd.doors.liftbridge.nats.audience import Audience, Message, Subscription, Telling
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge.requests import StreamInfo
from shardd.protocol.nats import NatsError
from tests.support.on_loop import on_loop, until

STREAM = StreamInfo("s", "sub", "", 1, 2, 3, 1, 1, {})
OTHER = StreamInfo("o", "sub", "", 1, 3, 4, 1, 1, {})


class Client:
    """A worker that knows which topics its user may poll. `polls`: what was asked."""

    def __init__(self, *topics: int) -> None:
        self.topics = {*topics}
        self.polls: list[int] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def command(self, name: str, request: dict[str, Any]) -> None:
        assert name == "poll_messages" and request["count"] == 0
        self.polls.append(request["topic"])
        await self.answers.wait()
        if request["topic"] not in self.topics:
            raise ShardError(Status.UNAUTHORIZED)


class Ear:
    """A connection that remembers what it hears."""

    def __init__(self, user_id: int, *topics: int) -> None:
        self.worker = Client(*topics)
        self.client = cast(DoorClient, self.worker)
        self.user_id = user_id
        self.echo = True
        self.is_open = True
        self.heard: list[bytes] = []

    def hear(self, subscription: Subscription, message: Message) -> None:
        self.heard.append(message.payload)


def message(payload: bytes, subject: str = "sub") -> Message:
    return Message(subject, "", payload, None)


def tell(audience: Audience, said: Message, *streams: StreamInfo) -> None:
    """These streams have stored it, one after the other."""
    telling = Telling(said)
    for stream in streams:
        audience.tell(telling, stream)


def nothing_waits(audience: Audience) -> bool:
    return all(user.asking is None for user in audience._users.values())


def listening(audience: Audience, user_id: int, *topics: int, subject: str = "sub", queue: str = "") -> Ear:
    ear = Ear(user_id, *topics)
    audience.add(Subscription(ear, "1", subject, queue))
    return ear


@on_loop
async def test_one_readable_stream_is_enough_and_order_is_kept_while_it_is_asked() -> None:
    audience = Audience(Losses())
    may, may_not = listening(audience, 1, OTHER.topic_id), listening(audience, 2)
    may.worker.answers.clear()
    for number in range(20):
        tell(audience, message(b"%d" % number), STREAM, OTHER)
        await asyncio.sleep(0)
    assert not may.heard
    may.worker.answers.set()
    await until(lambda: len(may.heard) == 20)
    assert may.heard == [b"%d" % number for number in range(20)] and not may_not.heard
    tell(audience, message(b"known by now"), STREAM, OTHER)
    assert may.heard[-1] == b"known by now" and len(may.worker.polls) == 2
    assert len(may_not.worker.polls) == 2


@on_loop
async def test_a_stream_that_has_not_stored_a_message_lets_nobody_hear_it_and_nobody_hears_it_twice() -> None:
    audience = Audience(Losses())
    of_one, of_other = listening(audience, 1, STREAM.topic_id), listening(audience, 2, OTHER.topic_id)
    of_both, deaf = listening(audience, 3, STREAM.topic_id, OTHER.topic_id), listening(audience, 4)
    elsewhere = listening(audience, 5, STREAM.topic_id, OTHER.topic_id, subject="else")
    for stream in (STREAM, OTHER):
        tell(audience, message(b"0"), stream)
        await until(lambda: nothing_waits(audience))
    assert (of_one.heard, of_other.heard, of_both.heard) == ([b"0"], [b"0"], [b"0", b"0"])
    both = Telling(message(b"1"))
    audience.tell(both, STREAM)
    assert of_one.heard == [b"0", b"1"] and of_both.heard == [b"0", b"0", b"1"] and of_other.heard == [b"0"]
    audience.tell(Telling(message(b"2")), OTHER)
    audience.tell(both, OTHER)
    assert of_one.heard == [b"0", b"1"] and of_both.heard == [b"0", b"0", b"1", b"2"]
    assert of_other.heard == [b"0", b"2", b"1"]
    assert not deaf.heard and not elsewhere.heard and not elsewhere.worker.polls


@on_loop
async def test_streams_that_store_a_message_while_it_is_asked_count() -> None:
    audience = Audience(Losses())
    ear = listening(audience, 1, OTHER.topic_id)
    ear.worker.answers.clear()
    while_asked, after = Telling(message(b"while it is asked")), Telling(message(b"after a no"))
    audience.tell(while_asked, STREAM)
    await until(lambda: len(ear.worker.polls) == 1)
    audience.tell(while_asked, OTHER)
    audience.tell(while_asked, OTHER)
    ear.worker.answers.set()
    await until(lambda: nothing_waits(audience))
    audience.tell(after, STREAM)
    audience.tell(while_asked, STREAM)
    assert nothing_waits(audience) and ear.heard == [b"while it is asked"]
    audience.tell(after, OTHER)
    assert ear.heard == [b"while it is asked", b"after a no"]


@on_loop
async def test_a_stream_that_stores_a_message_as_a_no_comes_in_counts() -> None:
    """Whatever the turn of the loop in which it does."""
    for turns in range(12):
        audience = Audience(Losses())
        ear = listening(audience, 1, OTHER.topic_id)
        telling = Telling(message(b"x"))
        audience.tell(telling, STREAM)
        for _ in range(turns):
            await asyncio.sleep(0)
        audience.tell(telling, OTHER)
        await until(lambda ear=ear: bool(ear.heard))  # type: ignore[misc]
        await until(lambda audience=audience: nothing_waits(audience))  # type: ignore[misc]
        assert ear.heard == [b"x"]


@pytest.mark.parametrize("seed", range(6))
def test_everybody_hears_once_and_in_order_what_streams_have_stored_that_he_may_poll(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the order in which streams store a message, and whether rights are known or asked each time."""
    chance = random.Random(seed)
    for name in ("MAY_S", "MAY_NOT_S"):
        monkeypatch.setattr(nats_audience, name, (0.0, 10.0)[seed % 2])

    @on_loop
    async def publish() -> None:
        audience = Audience(Losses())
        streams = [msgspec.structs.replace(STREAM, name=str(topic), topic_id=topic) for topic in range(4)]
        ears = [listening(audience, mask, *(topic for topic in range(4) if mask >> topic & 1)) for mask in range(16)]
        tellings = [Telling(message(b"%d" % number)) for number in range(40)]
        takes = [stream for stream in streams if chance.random() < 0.7]  # the others refuse all
        left = [(stream, iter(tellings)) for stream in takes]
        while left:
            stream, some = chance.choice(left)
            telling = next(some, None)
            if telling is None:
                left.remove((stream, some))
            else:
                audience.tell(telling, stream)
            for _ in range(chance.choice((0, 0, 1, 5))):
                await asyncio.sleep(0)
        await until(lambda: nothing_waits(audience))
        for ear in ears:
            may = any(stream.topic_id in ear.worker.topics for stream in takes)
            assert ear.heard == ([telling.message.payload for telling in tellings] if may else [])

    publish()


@on_loop
async def test_places_of_users_who_have_left_are_given_to_others() -> None:
    audience = Audience(Losses())
    subscriptions = [Subscription(Ear(user_id, STREAM.topic_id), "1", "sub", "") for user_id in range(20)]
    for each in subscriptions:
        audience.add(each)
    tell(audience, message(b"x"), STREAM)
    for each in subscriptions[5:15]:
        audience.remove(each)
    others = [listening(audience, user_id, STREAM.topic_id) for user_id in range(100, 115)]
    assert sorted(user.place for user in audience._users.values()) == [*range(25)]
    tell(audience, message(b"y"), STREAM)
    await until(lambda: all(each.heard == [b"y"] for each in others))


@on_loop
async def test_streams_of_what_waits_are_bounded_and_its_bytes_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_audience, "HELD_STREAMS_MAX", 100)
    losses = Losses()
    audience = Audience(losses)
    ear = listening(audience, 1, 9)
    ear.worker.answers.clear()
    streams = [msgspec.structs.replace(STREAM, name=str(topic), topic_id=topic) for topic in range(10)]
    large = nats_audience.HELD_BYTES_MAX // 10
    for number in range(10):
        tell(audience, message(b"%d" % number * large), *streams)
    assert not losses.counts
    tell(audience, message(b"too much"), *streams)
    assert losses.counts[Loss.SLOW] == 10
    ear.worker.answers.set()
    await until(lambda: len(ear.heard) == 10)
    (user,) = audience._users.values()
    await until(lambda: user.asking is None)
    assert not user.held and not user.held_of and not user.held_bytes and len(ear.worker.polls) == 10


@on_loop
async def test_a_right_that_is_withdrawn_ends_it_and_one_that_is_given_begins_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nats_audience, "MAY_S", 0.0)
    monkeypatch.setattr(nats_audience, "MAY_NOT_S", 0.0)
    audience = Audience(Losses())
    ear = listening(audience, 1, STREAM.topic_id)

    async def publish(payload: bytes) -> None:
        asked = len(ear.worker.polls)
        tell(audience, message(payload), STREAM)
        await until(lambda: len(ear.worker.polls) > asked)
        await asyncio.sleep(0.01)

    await publish(b"1")
    ear.worker.topics.clear()
    await publish(b"2")
    ear.worker.topics.add(STREAM.topic_id)
    await publish(b"3")
    assert ear.heard == [b"1", b"3"]


@on_loop
async def test_what_waits_for_an_answer_is_bounded_and_the_rest_counted() -> None:
    losses = Losses()
    audience = Audience(losses)
    ear = listening(audience, 1, STREAM.topic_id)
    ear.worker.answers.clear()
    for _ in range(nats_audience.HELD_MESSAGES_MAX + 10):
        tell(audience, message(b"x"), STREAM)
    assert losses.counts[Loss.SLOW] == 10
    ear.worker.answers.set()
    await until(lambda: len(ear.heard) == nats_audience.HELD_MESSAGES_MAX)
    ear.worker.answers.clear()
    for topic in range(10, 20):
        stream = StreamInfo(str(topic), "sub", "", 1, topic, topic, 1, 1, {})
        tell(audience, message(b"y" * (nats_audience.HELD_BYTES_MAX // 2)), stream)
    assert losses.counts[Loss.SLOW] == 18


@on_loop
async def test_who_leaves_while_it_is_asked_leaves_nothing_behind() -> None:
    audience = Audience(Losses())
    ear = Ear(1, STREAM.topic_id)
    subscription = Subscription(ear, "1", "sub", "")
    audience.add(subscription)
    ear.worker.answers.clear()
    tell(audience, message(b"x"), STREAM)
    await asyncio.sleep(0)
    audience.remove(subscription)
    ear.worker.answers.set()
    await asyncio.sleep(0.05)
    assert not ear.heard and not audience._users and not audience._room.used
    assert not audience.has_subscribers


@on_loop
async def test_without_a_right_no_message_costs_a_look_at_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    audience = Audience(Losses())
    nosy = listening(audience, 1, subject=">")
    assert audience.is_wanted("sub", [STREAM])  # it is not known yet
    tell(audience, message(b"x"), STREAM)
    await until(lambda: not audience.is_wanted("sub", [STREAM]))

    def look(self: nats_audience._User, subject: str) -> bool:
        raise AssertionError

    monkeypatch.setattr(nats_audience._User, "has_match", look)
    for _ in range(100):
        tell(audience, message(b"x"), STREAM)
    assert len(nosy.worker.polls) == 1 and not nosy.heard


@on_loop
async def test_own_subjects_are_heard_by_their_user_only_and_shared_in_groups() -> None:
    audience = Audience(Losses())
    one, other = listening(audience, 1, subject=">"), listening(audience, 2, subject=">")
    members = [listening(audience, 1, subject="in.*", queue="g") for _ in range(3)]
    for number in range(300):
        audience.tell_user(1, message(b"%d" % number, "in.box"))
    assert len(one.heard) == 300 and not other.heard
    assert sum(len(each.heard) for each in members) == 300 and all(len(each.heard) > 50 for each in members)
    one.echo = False
    audience.tell_user(1, Message("in.box", "", b"own", one))
    assert len(one.heard) == 300
    audience.tell_user(3, message(b"nobody", "in.box"))


@on_loop
async def test_subscriptions_have_shares() -> None:
    audience = Audience(Losses())
    ears = [Ear(1) for _ in range(5)]
    made = 0
    with pytest.raises(NatsError):
        for ear in ears:
            for number in range(nats_audience.SUBSCRIPTIONS_PER_CONNECTION_MAX):
                audience.add(Subscription(ear, str(number), f"a.{number}", ""))
                made += 1
    assert made == nats_audience.SUBSCRIPTIONS_PER_USER_MAX
    audience.add(Subscription(Ear(2), "1", "a", ""))
    with pytest.raises(NatsError):
        audience.add(Subscription(ears[4], "1", "a", ""))


@on_loop
async def test_a_message_for_many_is_delivered_user_by_user_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_audience, "HEARINGS_AT_ONCE_MAX", 10)
    audience = Audience(Losses())
    ears = []
    for user_id in range(1, 7):
        ear = Ear(user_id, STREAM.topic_id)
        for number in range(8):
            audience.add(Subscription(ear, str(number), "*", ""))
        ears.append(ear)
    tell(audience, message(b"rights"), STREAM)
    await until(lambda: all(len(ear.heard) == 8 for ear in ears))

    def heard() -> int:
        return sum(len(ear.heard) for ear in ears)

    before = heard()
    for number in range(5):
        tell(audience, message(b"%d" % number), STREAM)
    assert 0 < heard() - before <= 5 * 16
    while heard() < 6 * 8 * 6:
        before = heard()
        await asyncio.sleep(0)
        assert heard() - before <= 8, "more than one user's in a turn"
    for ear in ears:
        assert ear.heard == [b"rights"] * 8 + [b"%d" % number for number in range(5) for _ in range(8)]


@on_loop
async def test_a_message_of_many_streams_looks_at_a_bounded_number_of_rights_in_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else many users without a right, who listen to what many streams get, stop the door with each message."""
    monkeypatch.setattr(nats_audience, "LOOKS_AT_ONCE_MAX", 20)
    audience = Audience(Losses())
    streams = [msgspec.structs.replace(STREAM, name=str(topic), topic_id=topic) for topic in range(10)]
    nosy = [listening(audience, user_id, subject=">") for user_id in range(30)]
    may = listening(audience, 30, 9, subject=">")
    tell(audience, message(b"rights"), *streams)
    await until(lambda: may.heard == [b"rights"] and all(len(each.worker.polls) == 10 for each in nosy))
    looks, look = 0, nats_audience._User.may_hear

    def counted(self: nats_audience._User, of: Sequence[StreamInfo], now_s: float) -> bool | None:
        nonlocal looks
        looks += len(of)
        return look(self, of, now_s)

    monkeypatch.setattr(nats_audience._User, "may_hear", counted)
    for number in range(3):
        looks = 0
        assert audience.is_wanted("sub", streams) and looks <= 30
        telling = Telling(message(b"%d" % number))
        for stream in streams:
            looks = 0
            audience.tell(telling, stream)
            assert looks <= 31, "more than one at each user"
    for _ in range(1_000):
        looks = 0
        await asyncio.sleep(0)
        assert looks <= 20, "more than one user's in a turn"
    assert may.heard == [b"rights", b"0", b"1", b"2"]
    assert not any(each.heard or len(each.worker.polls) > 10 for each in nosy)
