"""What the requests of one connection of a door have at a worker while they are under way: places, and room for bytes.

Logins and waits for messages stand beside that from the beginning. Any other request steps aside while it waits in a
line (shardd/runtime/aside.py): it has room among those that wait then, of which no user keeps another one's share. A
change that has begun, and waits for the device, stands beside in a room of its own: one user may have a quarter of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from shardd.protocol.errors import ShardError, Status
from shardd.runtime.crowds import FullError, Member, Room
from shardd.transport.door.clients import DoorClient

REQUESTS_MAX: Final = 256
UNDER_WAY_BYTES_MAX: Final = 64 << 20
ASIDE_BYTES_MAX: Final = 32 << 20  # of requests that wait in a line
BEGUN_BYTES_MAX: Final = 32 << 20  # of changes that wait for the device
BEGUN_OF_USER_BYTES_MAX: Final = BEGUN_BYTES_MAX // 4
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
    client: DoorClient | None = None
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


class Places:
    """Loop thread only. `freed()`: a request has stepped aside."""

    def __init__(self, freed: Callable[[], None]) -> None:
        self._freed = freed
        self._requests = 0
        self._bytes = 0
        self._waiting = Room(ASIDE_BYTES_MAX, ASIDE_BYTES_MAX)
        self._begun = Room(BEGUN_BYTES_MAX, BEGUN_OF_USER_BYTES_MAX)

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
        work.has_begun = True
        self.leave(work)
        self._freed()
        try:
            yield
        finally:
            work.has_begun = False
            self._begun.leave(member)
            self.enter(work)


def _has_place_to_lend(work: Work) -> bool:
    """Not a task that the request has made, nor a request that has no place here now."""
    return not work.stands_beside and not work.has_place_elsewhere and asyncio.current_task() is work.task


def _stays() -> None:
    raise AssertionError("a change that has begun does not give way")


def _too_many() -> ShardError:
    return ShardError(Status.DISCONNECTED, "too many requests wait for their turn; ask again later")
