"""Queues in which a crowd waits among itself: at every level the keys take turns, whoever has how many waiting."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from shardd.runtime.aside import aside

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items under paths of keys: round robin at each level, first come first served under one path.

    All paths of a queue are of the same length.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._below: OrderedDict[str, FairQueue[T]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._items or self._below)

    def put(self, path: Sequence[str], item: T) -> None:
        if not path:
            self._items.append(item)
            return
        below = self._below.get(path[0])
        if below is None:
            below = self._below[path[0]] = FairQueue()
        below.put(path[1:], item)

    def take(self) -> T:
        """IndexError: empty."""
        if not self._below:
            return self._items.popleft()
        key, below = self._below.popitem(last=False)
        item = below.take()
        if below:
            self._below[key] = below
        return item

    def take_all(self, key: str) -> list[T]:
        """Everything under a key of the first level, in order."""
        below, items = self._below.pop(key, None), []
        while below:
            items.append(below.take())
        return items


class FairTurns:
    """So many at once; whoever has to wait does so aside, under its path. Loop thread only."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()

    @property
    def is_busy(self) -> bool:
        """Whether a newcomer has to wait: also while a place is on its way to the next one that waits."""
        return not self._free

    @asynccontextmanager
    async def turn(self, path: Sequence[str]) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            with aside():
                await self._given(path)
        try:
            yield
        finally:
            self._pass_on()

    async def _given(self, path: Sequence[str]) -> None:
        given = asyncio.get_running_loop().create_future()
        self._waiting.put(path, given)
        try:
            await given
        except asyncio.CancelledError:
            if not given.cancelled():  # given in the moment of the cancellation
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            given = self._waiting.take()
            if not given.done():
                given.set_result(None)
                return
        self._free += 1
