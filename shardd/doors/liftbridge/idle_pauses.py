"""Automatic pause: a partition that has got nothing for long enough is paused, until somebody publishes to it or
resumes it. Its time begins with the door, with its creation and with each resumption. What comes through this door is
known at once; what native clients send is seen where a partition ends, when its time is over: then the time begins
anew. Reads do not count, as with Liftbridge."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from shardd.config.liftbridge import LiftbridgeStreams
from shardd.doors.door import Door
from shardd.doors.liftbridge.arrivals import Arrivals
from shardd.doors.liftbridge.followers import Followers
from shardd.doors.liftbridge.partitions import Key
from shardd.doors.liftbridge.registry import Registry
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge.requests import NAMES_MAX, PartitionEnds, PausePartitions, StreamInfo

_LOOKS: Final = 10  # in the shortest time that a stream has
_LOOK_MIN_S: Final = 0.05
_LOOK_MAX_S: Final = 10.0
_STEP: Final = 1_000  # partitions between two turns of the loop
_log = logging.getLogger(__name__)


class _Awake(NamedTuple):
    """A partition that is not paused. `end`: where it ended when that was last asked."""

    since_s: float
    end: int | None = None


class IdlePauses:
    """Loop thread only."""

    def __init__(
        self, door: Door, registry: Registry, arrivals: Arrivals, followers: Followers, defaults: LiftbridgeStreams
    ) -> None:
        self._door = door
        self._registry = registry
        self._arrivals = arrivals
        self._followers = followers
        self._defaults = defaults
        self._awake: dict[Key, _Awake] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            times_s = [each for stream in self._registry.streams().values() if (each := self._time_s(stream)) > 0]
            shortest_s = min(times_s, default=_LOOK_MAX_S)
            await asyncio.sleep(min(_LOOK_MAX_S, max(_LOOK_MIN_S, shortest_s / _LOOKS)))
            await self._look()

    async def _look(self) -> None:
        seen: dict[Key, _Awake] = {}
        looked = 0
        for stream in [*self._registry.streams().values()]:
            time_s = self._time_s(stream)
            if time_s <= 0:
                continue
            looked += stream.partitions
            if looked >= _STEP:
                looked = 0
                await asyncio.sleep(0)
            asked = tuple(self._to_ask(stream, time_s, seen))
            for at in range(0, len(asked), NAMES_MAX):
                idle = await self._idle(stream, asked[at : at + NAMES_MAX], seen)
                if idle:
                    await self._pause(stream, idle)
        self._awake = seen

    def _to_ask(self, stream: StreamInfo, time_s: float, seen: dict[Key, _Awake]) -> Iterator[int]:
        """Partitions of which it is not known where they end, and those that have got nothing through this door."""
        now_s, paused = time.monotonic(), frozenset(stream.paused)
        default = self._defaults.auto_pause_disable_if_subscribers
        spared = self._setting(stream, "autoPauseDisableIfSubscribers", default)
        for partition in range(stream.partitions):
            if partition in paused:
                continue
            key = (stream.incarnation, partition)
            awake = seen[key] = self._awake.get(key) or _Awake(now_s)
            is_idle = now_s - max(awake.since_s, self._arrivals.latest_s(stream, partition)) >= time_s
            if awake.end is None or (is_idle and not (spared and self._followers.any_of(stream, partition))):
                yield partition

    async def _idle(self, stream: StreamInfo, asked: tuple[int, ...], seen: dict[Key, _Awake]) -> tuple[int, ...]:
        """Those that have got nothing in another way, either."""
        try:
            ends: list[int] = await self._door.task("partition_ends", PartitionEnds(stream.name, asked))
        except (ShardError, WorkerLostError) as error:
            _log.debug("%s is paused later: %s", stream.name, error)
            return ()
        idle = []
        for partition, end in zip(asked, ends, strict=True):
            key = (stream.incarnation, partition)
            known = seen[key].end
            if known is None:
                seen[key] = _Awake(seen[key].since_s, end)
            elif end > max(known, self._arrivals.end(stream, partition)):
                seen[key] = _Awake(time.monotonic(), end)
            else:
                idle.append(partition)
        return tuple(idle)

    def _time_s(self, stream: StreamInfo) -> float:
        return self._setting(stream, "autoPauseTime", self._defaults.auto_pause_time_ms) / 1000

    def _setting(self, stream: StreamInfo, name: str, default: int | bool) -> int | bool:
        return 0 if stream.native else stream.settings.get(name, default)

    async def _pause(self, stream: StreamInfo, partitions: tuple[int, ...]) -> None:
        try:
            await self._door.task("pause_partitions", PausePartitions(stream.name, partitions))
        except (ShardError, WorkerLostError) as error:
            _log.debug("%s is paused later: %s", stream.name, error)
