"""What the workers know, gathered for who asks: at most once in `FRESH_S`, however many ask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from shardd.doors.door import Door
from shardd.doors.links import WorkerLink, WorkerLostError
from shardd.protocol.door_figures import Counts, GroupFigures, Listed, TopicFigures, What
from shardd.protocol.door_frames import Figures, Kind
from shardd.protocol.errors import ShardError
from shardd.runtime.control_messages import Standing
from shardd.runtime.metrics import ShardFigures

FRESH_S: Final = 1.0
ANSWER_S: Final = 5.0  # a worker that has not answered by then is left out; Prometheus waits for 10 s
T = TypeVar("T")
Made = TypeVar("Made")


class Server(msgspec.Struct, frozen=True):
    """One moment. `shards`: those that have answered, None for the others; `topics`, `counts`: None when nobody has."""

    shards: list[ShardFigures | None]
    standing: list[Standing]
    topics: Listed[TopicFigures] | None = None
    groups: list[Listed[GroupFigures]] = []
    counts: Counts | None = None


class Once(Generic[Made]):
    """Who asks while it is made waits for the same; who asks soon after gets the same. Loop thread only."""

    def __init__(self, make: Callable[[], Awaitable[Made]]) -> None:
        self._make = make
        self._made: asyncio.Future[Made] | None = None
        self._fresh_until = 0.0

    async def get(self) -> Made:
        made = self._made
        if made is None or (made.done() and time.monotonic() >= self._fresh_until):
            made = self._made = asyncio.ensure_future(self._make())
            made.add_done_callback(self._done)
        return await asyncio.shield(made)

    def _done(self, made: asyncio.Future[Made]) -> None:
        self._fresh_until = time.monotonic() + FRESH_S
        if made.cancelled() or made.exception() is not None:
            self._made = None


class Collector:
    """Loop thread of the door only."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def shards(self) -> Server:
        """What a probe asks for."""
        found = await self._of_all(What.SHARD, ShardFigures)
        return Server(found, self._door.standing)

    async def everything(self) -> Server:
        shards, groups, topics, counts = await asyncio.gather(
            self._of_all(What.SHARD, ShardFigures),
            self._of_all(What.GROUPS, Listed[GroupFigures]),
            self._of_one(What.TOPICS, Listed[TopicFigures]),
            self.counts(),
        )
        return Server(shards, self._door.standing, topics, [each for each in groups if each is not None], counts)

    async def counts(self) -> Counts | None:
        found = [each for each in await self._of_all(What.COUNTS, Counts) if each is not None]
        if not found:
            return None
        return msgspec.structs.replace(found[0], clients=sum(each.clients for each in found))

    async def _of_all(self, what: What, kind: type[T]) -> list[T | None]:
        return list(await asyncio.gather(*(self._ask(link, what, kind) for link in self._door.links)))

    async def _of_one(self, what: What, kind: type[T]) -> T | None:
        found: T | None = None
        for link in self._door.links:
            found = await self._ask(link, what, kind)
            if found is not None:
                break
        return found

    async def _ask(self, link: WorkerLink, what: What, kind: Any) -> Any:
        """None when it cannot answer now."""
        if not link.connected.is_set():
            return None
        try:
            async with asyncio.timeout(ANSWER_S):
                value = await link.request(Kind.FIGURES, Figures(what))
        except (WorkerLostError, ShardError, TimeoutError):
            return None
        return msgspec.msgpack.decode(value, type=kind)
