"""Which users there are, asked of the workers when something depends on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from shardd.doors.door import Door
from shardd.protocol.liftbridge.requests import AllUsers, UsersThere

_NEWEST_SHARD: Final = 0  # it orders the changes: no user that a worker knows is unknown there
_SPACING_S: Final = 0.05  # between two looks, which all who ask share


class LiveUsers:
    """Loop thread only. `hear(incarnations, index)`: all users at that record of the metadata."""

    def __init__(self, door: Door, hear: Callable[[Collection[int], int], None]) -> None:
        self._door = door
        self._hear = hear
        self._looking = asyncio.Lock()
        self._looked_at_s = self._look_again_at_s = 0.0

    async def look(self) -> None:
        """Has heard of every change that was answered before. ShardError, WorkerLostError."""
        loop = asyncio.get_running_loop()
        asked_at_s = loop.time()
        async with self._looking:
            if self._looked_at_s > asked_at_s:
                return  # another one has looked since
            await asyncio.sleep(self._look_again_at_s - loop.time())
            began_s = loop.time()
            said = await self._door.task("all_users", AllUsers(), shard=_NEWEST_SHARD)
            there = msgspec.convert(said, UsersThere, strict=False)
            self._hear(frozenset(there.incarnations), there.index)
            self._looked_at_s = began_s
            self._look_again_at_s = loop.time() + _SPACING_S
