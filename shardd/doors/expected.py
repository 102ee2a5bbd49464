"""Room that a door keeps free for an answer while its worker is asked for it.

A worker may stand still. So a request that stores nothing gives its room to an owner with less after a moment: it is
refused then, and its connection goes on. A poll that stores an offset keeps its room until its answer is there: the
worker stores before it answers, so a consumer that is refused would miss these messages. Such polls are asked for only
in a share of the room (`storing`), of which each user leaves some to others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Hashable

from shardd.runtime.crowds import Member, Room


class GaveWayError(Exception):
    """The room has gone to another owner: the answer is not waited for any more."""


class Expected:
    """One answer. `end`: ends the connection, when the answer is there and gives way. Loop thread only."""

    def __init__(self, room: Room, end: Callable[[], None]) -> None:
        self.member: Member | None = None
        self._room = room
        self._end = end
        self._asking: asyncio.Timeout | None = None
        self._has_given_way = False

    async def enter(self, owner: Hashable, address: str, size: int) -> None:
        """Waits for room; it is kept until `asked` or `leave`."""
        self.member = await self._room.take(owner, address, self._give_way, size, at_work=True)

    @contextlib.asynccontextmanager
    async def asked(self, grace_s: float | None) -> AsyncIterator[None]:
        """While the worker is asked. GaveWayError: it has not answered within `grace_s`, and another owner needs the
        room; None: the room stays with it."""
        if self.member is not None and grace_s is not None:
            self._room.works_for(self.member, grace_s)
        try:
            async with asyncio.timeout(None) as self._asking:
                yield
        except TimeoutError:
            if not self._has_given_way:
                raise
        finally:
            self._asking = None
        if self._has_given_way:
            raise GaveWayError

    def _give_way(self) -> None:
        self._has_given_way = True
        if self._asking is None:
            self._end()
        else:
            self._asking.reschedule(asyncio.get_running_loop().time())
