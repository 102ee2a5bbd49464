"""The subscribers of this server, and the messages that each of them hears (docs/protocol/nats.md#rights).

If streams have the subject of a message, the users hear it that may poll one of the streams that have stored it; a
message that every stream refuses has no hearer. Every other subject, inboxes among them, belongs to the user that
publishes there: only subscriptions of the same user hear it. So no user can listen to subjects of other users, or
publish in their place."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from shardd.doors.door import DoorClient
from shardd.doors.liftbridge.losses import Loss, Losses
from shardd.doors.liftbridge.nats.pool import member_of
from shardd.doors.liftbridge.nats.tellings import Tellings
from shardd.doors.liftbridge.subject_table import SubjectTable
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge.requests import StreamInfo
from shardd.protocol.nats import NatsError
from shardd.protocol.primitives import ConsumerKind
from shardd.runtime.crowds import Member, SharedRoom

SUBSCRIPTIONS_PER_CONNECTION_MAX: Final = 256
SUBSCRIPTIONS_PER_USER_MAX: Final = 1_024  # and not more than are left free
SUBSCRIPTIONS_MAX: Final = 16_384
MAY_S: Final = 1.0  # how long it holds that a user may poll
MAY_NOT_S: Final = 10.0  # and that he may not: what he subscribes to costs nobody a question for each message
RIGHTS_MAX: Final = 4_096  # answers that are remembered for one user
HELD_MESSAGES_MAX: Final = 1_024  # of one user, while it is asked what he may hear
HELD_BYTES_MAX: Final = 1 << 20
HELD_STREAMS_MAX: Final = 16_384  # that have stored them, each counted for each message
PASSED_OVER_AT_ONCE_MAX: Final = 256  # of those
HEARINGS_AT_ONCE_MAX: Final = 1_024  # of one message; users beyond hear it in later turns of the loop, one in each
LOOKS_AT_ONCE_MAX: Final = 4_096  # at who may hear a stream, before a message is published; beyond it is wanted
_REMEMBERED_SUBJECTS_MAX: Final = 1_024  # of one user
_REMEMBERED_MATCHES_MAX: Final = 16  # of one subject
_POLL: Final = "poll_messages"
_OFFSET: Final = 1  # a poll from an offset on


class Listener(Protocol):
    """A connection of a subscriber. `is_open`: it hears still."""

    client: DoorClient
    user_id: int
    echo: bool
    is_open: bool

    def hear(self, subscription: Subscription, message: Message) -> None:
        """One message."""


class Subscription:
    """`heard`: messages; `left`: so many more until it ends, -1: it does not. `number`: of this server."""

    __slots__ = ("heard", "left", "listener", "number", "queue", "sid", "subject")

    def __init__(self, listener: Listener, sid: str, subject: str, queue: str) -> None:
        self.listener = listener
        self.sid = sid
        self.subject = subject
        self.queue = queue
        self.heard = 0
        self.left = -1
        self.number = 0


class Message(NamedTuple):
    """`sender`: the connection that it came from, or None; `headers`: as they came."""

    subject: str
    reply: str
    payload: bytes
    sender: Listener | None
    headers: bytes = b""

    @property
    def size_bytes(self) -> int:
        return len(self.payload) + len(self.headers)


class Telling:
    """A message that some streams have stored, and others may yet. `settled`: users who have heard it or do not want
    it, a bit for each `_User.place`."""

    __slots__ = ("message", "settled")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.settled = 0


class _Stored:
    """One stream has stored a message. `newest_user`: of those that were there then; `left`: so many subscriptions may
    hear it at once."""

    __slots__ = ("left", "newest_user", "stream", "telling")

    def __init__(self, telling: Telling, stream: StreamInfo, newest_user: int, left: int) -> None:
        self.telling = telling
        self.stream = stream
        self.newest_user = newest_user
        self.left = left

    @property
    def size_bytes(self) -> int:
        return self.telling.message.size_bytes


class _User:
    """All subscriptions of one user. `place`: his among all users; another one has it when he is gone; `number`: of
    all that ever came; `member`: of the room for subscriptions."""

    def __init__(self, place: int, number: int, member: Member) -> None:
        self.place = place
        self.member = member
        self.number = number
        self.subscriptions: SubjectTable[int, Subscription] = SubjectTable()  # by number
        self.listeners: dict[Listener, int] = {}  # and how many each has
        self.count = 0
        self.found: dict[str, list[Subscription]] = {}
        self.rights: dict[tuple[int, int, int], tuple[bool, float]] = {}
        self.held: deque[tuple[Telling, StreamInfo]] = deque()
        self.held_of: Counter[Telling] = Counter()  # how many of these each message has
        self.held_bytes = 0
        self.asking: asyncio.Task[None] | None = None

    def matching(self, subject: str) -> list[Subscription]:
        found = self.found.get(subject)
        if found is None:
            found = [each for at in self.subscriptions.match(subject) for each in at.values()]
            if len(self.found) >= _REMEMBERED_SUBJECTS_MAX:
                self.found.clear()
            if len(found) <= _REMEMBERED_MATCHES_MAX:
                self.found[subject] = found
        return found

    def has_match(self, subject: str) -> bool:
        found = self.found.get(subject)
        return self.subscriptions.has_match(subject) if found is None else bool(found)

    def may_hear(self, streams: Sequence[StreamInfo], now_s: float) -> bool | None:
        """None: it has to be asked."""
        known: bool | None = False
        for stream in streams:
            may, until_s = self.rights.get(_key(stream), (False, 0.0))
            if until_s < now_s:
                known = None
            elif may:
                return True
        return known


class Audience:
    """Loop thread only. `choice`: who takes one of a queue group."""

    def __init__(self, losses: Losses, choice: random.Random | None = None) -> None:
        self._losses = losses
        self._choice = choice or random.Random()
        self._users: dict[int, _User] = {}
        self._free_places: list[int] = []  # of those below the number of users and these
        self._room = SharedRoom(SUBSCRIPTIONS_MAX, of_addresses=False)
        self._number = 0
        self._loop = asyncio.get_running_loop()
        self._newest_user = 0
        self.tellings = Tellings(self._hearers, self._tell_one, self._lose)
        self._delivering = asyncio.Lock()  # what was held: one message for one user in a turn of the loop

    def add(self, subscription: Subscription) -> None:
        """NatsError: there are too many."""
        listener = subscription.listener
        user = self._users.get(listener.user_id)
        if not self._room.has_room(listener.user_id, "", 1) or (
            user is not None
            and (
                user.count >= SUBSCRIPTIONS_PER_USER_MAX
                or user.listeners.get(listener, 0) >= SUBSCRIPTIONS_PER_CONNECTION_MAX
            )
        ):
            raise NatsError("Maximum Subscriptions Exceeded")
        if user is None:
            place = self._free_places.pop() if self._free_places else len(self._users)
            self._newest_user += 1
            user = self._users[listener.user_id] = _User(place, self._newest_user, member_of(listener.user_id))
        self._number += 1
        subscription.number = self._number
        user.subscriptions.add(subscription.subject, subscription.number, subscription)
        user.found.clear()
        user.listeners[listener] = user.listeners.get(listener, 0) + 1
        user.count += 1
        self._room.count(user.member, user.count)

    def remove(self, subscription: Subscription) -> None:
        """One that was added."""
        listener = subscription.listener
        user = self._users[listener.user_id]
        user.subscriptions.remove(subscription.subject, subscription.number)
        user.found.clear()
        user.listeners[listener] -= 1
        if not user.listeners[listener]:
            del user.listeners[listener]
        user.count -= 1
        self._room.count(user.member, user.count)
        if not user.count:
            del self._users[listener.user_id]
            self._free_places.append(user.place)
            user.held.clear()
            if user.asking is not None:
                user.asking.cancel()

    @property
    def has_subscribers(self) -> bool:
        return bool(self._users)

    def is_wanted(self, subject: str, streams: Sequence[StreamInfo]) -> bool:
        """Whether somebody has subscribed to it who may hear these streams, as far as that is known soon."""
        now_s, looks = self._loop.time(), 0
        for user in self._users.values():
            if looks >= LOOKS_AT_ONCE_MAX:
                return True
            looks += max(1, len(streams))
            if user.may_hear(streams, now_s) is not False and user.has_match(subject):
                return True
        return False

    def tell_user(self, user_id: int, message: Message) -> None:
        """What is on no subject of a stream."""
        user = self._users.get(user_id)
        if user is not None:
            self._deliver(user, message)

    def tell(self, telling: Telling, stream: StreamInfo) -> None:
        """This stream has stored it. Whoever may poll it hears it, if he has not because of another one."""
        self.tellings.put(_Stored(telling, stream, self._newest_user, HEARINGS_AT_ONCE_MAX))

    def _hearers(self, stored: _Stored) -> list[_User]:
        return [user for user in self._users.values() if user.number <= stored.newest_user]

    def _tell_one(self, user: _User, stored: _Stored) -> int:
        """How many subscriptions have heard it."""
        telling, stream = stored.telling, stored.stream
        if telling.settled >> user.place & 1 or not user.count:
            return 0
        may = user.may_hear((stream,), self._loop.time())
        if may is False:
            return 0
        if not user.has_match(telling.message.subject):
            telling.settled |= 1 << user.place
        elif may and not user.held and stored.left > 0:
            telling.settled |= 1 << user.place
            found = self._deliver(user, telling.message)
            stored.left -= found
            return found
        else:
            self._hold(user, telling, stream)
        return 0

    def _deliver(self, user: _User, message: Message) -> int:
        """How many subscriptions it has found."""
        groups: dict[str, list[Subscription]] = {}
        matching = [*user.matching(message.subject)]
        for subscription in matching:
            if subscription.queue:
                groups.setdefault(subscription.queue, []).append(subscription)
            else:
                self._give(subscription, message)
        for members in groups.values():
            self._give(self._choice.choice(members), message)
        return len(matching)

    def _give(self, subscription: Subscription, message: Message) -> None:
        listener = subscription.listener
        if listener.is_open and (listener.echo or listener is not message.sender):
            listener.hear(subscription, message)

    def _lose(self, stored: _Stored) -> None:
        self._losses.count(Loss.SLOW, stored.telling.message.subject)

    # ---- rights ----

    def _hold(self, user: _User, telling: Telling, stream: StreamInfo) -> None:
        """Until it is known whether the user may hear it because of this stream, or others have heard it; what comes
        behind it waits, too. So he hears messages in the order in which streams have stored them."""
        is_new = telling not in user.held_of
        size = telling.message.size_bytes if is_new else 0
        if len(user.held) >= HELD_STREAMS_MAX or (
            is_new and user.held and (len(user.held_of) >= HELD_MESSAGES_MAX or user.held_bytes + size > HELD_BYTES_MAX)
        ):
            self._losses.count(Loss.SLOW, telling.message.subject)
            return
        user.held.append((telling, stream))
        user.held_of[telling] += 1
        user.held_bytes += size
        if user.asking is None:
            user.asking = asyncio.create_task(self._clear(user))

    async def _clear(self, user: _User) -> None:
        try:
            while user.held:
                async with self._delivering:
                    stream = self._clear_some(user)
                    await asyncio.sleep(0)
                while stream is not None and not await self._ask(user, stream):
                    self._let_go(user, False)
                    await asyncio.sleep(0)
                    stream = self._unknown(user)
                if stream is not None:
                    async with self._delivering:
                        self._let_go(user, True)
                        await asyncio.sleep(0)
        finally:
            user.asking = None

    def _clear_some(self, user: _User) -> StreamInfo | None:
        """Until the user has heard one; or a stream about which he has to be asked."""
        for _ in range(min(len(user.held), PASSED_OVER_AT_ONCE_MAX)):
            may = self._may_hear_first(user)
            if may is None:
                return user.held[0][1]
            self._let_go(user, may)
            if may:
                break
        return None

    def _unknown(self, user: _User) -> StreamInfo | None:
        """The first stream, if he has to be asked about it."""
        return user.held[0][1] if user.held and self._may_hear_first(user) is None else None

    def _may_hear_first(self, user: _User) -> bool | None:
        """False, too, if he has heard it."""
        telling, stream = user.held[0]
        return False if telling.settled >> user.place & 1 else user.may_hear((stream,), self._loop.time())

    def _let_go(self, user: _User, may: bool) -> None:
        telling, _ = user.held.popleft()
        user.held_of[telling] -= 1
        if not user.held_of[telling]:
            del user.held_of[telling]
            user.held_bytes -= telling.message.size_bytes
        if may:
            telling.settled |= 1 << user.place
            self._deliver(user, telling.message)

    async def _ask(self, user: _User, stream: StreamInfo) -> bool:
        """Whether the user may poll it: a poll of nothing, for which the same right is needed."""
        listener = next((each for each in user.listeners if each.is_open), None)
        if listener is None:
            return False
        may = await _may_poll(listener.client, stream)
        if len(user.rights) >= RIGHTS_MAX:
            user.rights.clear()
        user.rights[_key(stream)] = (may, self._loop.time() + (MAY_S if may else MAY_NOT_S))
        return may


def _key(stream: StreamInfo) -> tuple[int, int, int]:
    return stream.stream_id, stream.topic_id, stream.incarnation


async def _may_poll(client: DoorClient, stream: StreamInfo) -> bool:
    request = {
        "consumer": {"kind": int(ConsumerKind.CONSUMER), "identifier": 1},
        "stream": stream.stream_id,
        "topic": stream.topic_id,
        "partition": 0,
        "strategy": _OFFSET,
        "value": 0,
        "count": 0,
        "auto_commit": False,
    }
    try:
        await client.command(_POLL, request)
    except (ShardError, WorkerLostError):
        return False
    return True
