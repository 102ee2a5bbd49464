"""The places and the room for bytes that requests of one connection of a door have at a worker while they run.

Logins and waits for messages stand beside that from the beginning. Any other request steps aside while it waits in a
line (shardd/runtime/aside.py): it has room among those that wait then, of which no user keeps another one's share. A
change that has begun, and waits for the device, stands beside in a room of its own: one user may have a quarter of that
room, and not more than is left. A send, a store of an offset, or a poll that stores one, has room that all doors share
at the worker while the engine has it: one user may have half of that room, and further requests of the user wait aside.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import msgspec

from shardd.dispatch.door.clients import ClientRecord
from shardd.protocol.errors import ShardError, Status
from shardd.runtime.crowds import FullError, Member, Room, SharedRoom

REQUESTS_MAX: Final = 256
UNDER_WAY_BYTES_MAX: Final = 64 << 20
ASIDE_BYTES_MAX: Final = 32 << 20  # of requests that wait in a line
BEGUN_BYTES_MAX: Final = 32 << 20  # of changes that wait for the device
BEGUN_OF_USER_BYTES_MAX: Final = BEGUN_BYTES_MAX // 4
HANDED_BYTES_MAX: Final = 128 << 20  # of sends, stores and polls that store, of all doors, at the engine of a worker
HANDED_POOL_PART: Final = 8  # the room is at most this part of the engine's pool, whose blocks may be twice as large
HANDED_MAX: Final = 2_048  # of its CALLS_MAX
HANDED_USER_SHARE: Final = 2  # one user has at most 1/2 of them, and not more than is left
HANDED_ONE_SHARE: Final = 4  # as 1/4 of them a larger one counts: it has room beside a user with half of them
ASIDE_BYTES_MIN: Final = 8 << 10  # as which a smaller one counts: so many bytes hold it and its task


class Work(msgspec.Struct, eq=False):
    """A request under way. `client`: whose answer it is, when one is named; `due_s`: when it is late. `frame_bytes`: of
    the request; `cost_bytes`: with what is kept free for its answer. `waiting`: its room while it is aside;
    `has_begun`: it stands beside, and cannot be sent away."""

    request_id: int
    frame_bytes: int
    cost_bytes: int
    is_login: bool
    is_wait: bool
    due_s: float
    client: ClientRecord | None = None
    answered: bool = False
    task: asyncio.Task[None] | None = None
    waiting: Member | None = None
    sent_away: bool = False
    has_begun: bool = False

    @property
    def stands_beside(self) -> bool:
        return self.is_login or self.is_wait

    @property
    def has_place_elsewhere(self) -> bool:
        return self.waiting is not None or self.has_begun

    @property
    def owner(self) -> Hashable:
        """Whose share it waits in: the user's; None: the door's own."""
        session = None if self.client is None else self.client.session
        return None if session is None else (session.user_id, session.user_incarnation)

    def send_away(self) -> None:
        """It does not wait any longer; nothing of it has been done."""
        assert self.task is not None
        self.sent_away = True
        self.task.cancel()


class Handed:
    """Room for what the engine of a worker carries out for its doors. `pool_bytes`: of that engine."""

    def __init__(self, pool_bytes: int) -> None:
        bytes_max = max(HANDED_MAX, min(HANDED_BYTES_MAX, pool_bytes // HANDED_POOL_PART))
        self.bytes_min: Final = bytes_max // HANDED_MAX
        self.of_user_bytes_max: Final = bytes_max // HANDED_USER_SHARE
        self.of_one_bytes_max: Final = bytes_max // HANDED_ONE_SHARE
        self.room: Final = SharedRoom(bytes_max, self.of_user_bytes_max, of_addresses=False)

    def size_of(self, cost_bytes: int) -> int:
        """As which such a request counts, with its answer, which the engine keeps until the device has answered."""
        return min(max(cost_bytes, self.bytes_min), self.of_one_bytes_max)


class Places:
    """Loop thread only. `freed()`: a request has stepped aside. `handed`: of all connections of doors."""

    def __init__(self, freed: Callable[[], None], handed: Handed) -> None:
        self._freed = freed
        self._handed = handed
        self._requests = 0
        self._bytes = 0
        self._waiting = Room(ASIDE_BYTES_MAX, ASIDE_BYTES_MAX)
        self._begun = SharedRoom(BEGUN_BYTES_MAX, BEGUN_OF_USER_BYTES_MAX, of_addresses=False)

    def has_room(self, unread_bytes: int) -> bool:
        """For another request, beside so many bytes of answers that the door has not read."""
        if self._requests >= REQUESTS_MAX:
            return False
        return self._bytes + unread_bytes < UNDER_WAY_BYTES_MAX or (not unread_bytes and not self._requests)

    def enter(self, work: Work) -> None:
        self._bytes += work.cost_bytes
        self._requests += not work.stands_beside

    def leave(self, work: Work) -> None:
        self._bytes -= work.cost_bytes
        self._requests -= not work.stands_beside
        assert self._bytes >= 0 and self._requests >= 0

    @contextmanager
    def aside(self, work: Work) -> Iterator[None]:
        """While it waits. `ShardError` 8 when another user, or whoever waits already, has the room."""
        if not _has_place_to_lend(work):
            yield
            return
        size = min(max(work.frame_bytes, ASIDE_BYTES_MIN), ASIDE_BYTES_MAX)
        host = "" if work.client is None else work.client.host
        try:
            work.waiting = member = self._waiting.enter(work.owner, host, work.send_away, size)
        except FullError:
            raise _too_many() from None
        self.leave(work)
        self._freed()
        try:
            yield
        except asyncio.CancelledError:
            if not work.sent_away or work.task is None:
                raise
            work.task.uncancel()
            raise _too_many() from None
        finally:
            work.waiting = None
            self._waiting.leave(member)
            self.enter(work)

    @contextmanager
    def beside(self, work: Work) -> Iterator[None]:
        """While it is carried out to its end. `ShardError` 8, before that, when its user or all have the room."""
        if not _has_place_to_lend(work):
            yield
            return
        size = min(max(work.frame_bytes, ASIDE_BYTES_MIN), BEGUN_OF_USER_BYTES_MAX)
        try:
            member = self._begun.enter(work.owner, "", _stays, size, at_work=True)
        except FullError:
            raise _too_many() from None
        with self._lent(work, self._begun, member):
            yield

    @asynccontextmanager
    async def handed_over(self, work: Work) -> AsyncIterator[None]:
        """While the engine has it. `ShardError` 8, before that, when it would have to wait and there is no room for
        that, or somebody else needs it."""
        if not _has_place_to_lend(work):
            yield
            return
        member = await self._handed_member(work)
        with self._lent(work, self._handed.room, member):
            yield

    @contextmanager
    def _lent(self, work: Work, room: Room, member: Member) -> Iterator[None]:
        """While `work` is a `member` of `room` and cannot be cancelled, its place is free for others."""
        work.has_begun = True
        self.leave(work)
        self._freed()
        try:
            yield
        finally:
            work.has_begun = False
            room.leave(member)
            self.enter(work)

    async def _handed_member(self, work: Work) -> Member:
        """Who waits has the next turn, unless the newcomer takes nobody's."""
        room, size = self._handed.room, self._handed.size_of(work.cost_bytes)
        if room.passes_nobody(work.owner, size):
            try:
                return room.enter(work.owner, "", _stays, size, at_work=True)
            except FullError:
                pass
        with self.aside(work):
            return await room.take(work.owner, "", _stays, size, at_work=True)


def _has_place_to_lend(work: Work) -> bool:
    """Not a task that the request has made, nor a request that has no place here now."""
    return not work.stands_beside and not work.has_place_elsewhere and asyncio.current_task() is work.task


def _stays() -> None:
    raise AssertionError("a change that has begun does not give way")


def _too_many() -> ShardError:
    return ShardError(Status.DISCONNECTED, "too many requests wait for their turn; ask again later")
