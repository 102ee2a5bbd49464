"""Automatic pause: a partition that has got nothing through this door for long enough is paused, until somebody
publishes to it or resumes it. Its time begins with the door, with its creation and with each resumption."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Final

from shardd.config.liftbridge import LiftbridgeStreams
from shardd.doors.door import Door
from shardd.doors.liftbridge.arrivals import Arrivals
from shardd.doors.liftbridge.followers import Followers
from shardd.doors.liftbridge.partitions import Key
from shardd.doors.liftbridge.registry import Registry
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge.requests import NAMES_MAX, PausePartitions, StreamInfo

_LOOKS: Final = 10  # in the shortest time that a stream has
_LOOK_MIN_S: Final = 0.05
_LOOK_MAX_S: Final = 10.0
_STEP: Final = 1_000  # partitions between two turns of the loop
_log = logging.getLogger(__name__)


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
        self._awake_since_s: dict[Key, float] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            times_s = [each for stream in self._registry.streams().values() if (each := self._time_s(stream)) > 0]
            shortest_s = min(times_s, default=_LOOK_MAX_S)
            await asyncio.sleep(min(_LOOK_MAX_S, max(_LOOK_MIN_S, shortest_s / _LOOKS)))
            await self._look()

    async def _look(self) -> None:
        seen: dict[Key, float] = {}
        looked = 0
        for stream in [*self._registry.streams().values()]:
            time_s = self._time_s(stream)
            if time_s <= 0:
                continue
            looked += stream.partitions
            if looked >= _STEP:
                looked = 0
                await asyncio.sleep(0)
            idle = tuple(self._idle(stream, time_s, seen))
            for at in range(0, len(idle), NAMES_MAX):
                await self._pause(stream, idle[at : at + NAMES_MAX])
        self._awake_since_s = seen

    def _idle(self, stream: StreamInfo, time_s: float, seen: dict[Key, float]) -> Iterator[int]:
        now_s, paused = time.monotonic(), frozenset(stream.paused)
        default = self._defaults.auto_pause_disable_if_subscribers
        spared = self._setting(stream, "autoPauseDisableIfSubscribers", default)
        for partition in range(stream.partitions):
            if partition in paused:
                continue
            key = (stream.incarnation, partition)
            since_s = seen[key] = self._awake_since_s.get(key, now_s)
            if now_s - max(since_s, self._arrivals.latest_s(stream, partition)) < time_s:
                continue
            if not (spared and self._followers.any_of(stream, partition)):
                yield partition

    def _time_s(self, stream: StreamInfo) -> float:
        return self._setting(stream, "autoPauseTime", self._defaults.auto_pause_time_ms) / 1000

    def _setting(self, stream: StreamInfo, name: str, default: int | bool) -> int | bool:
        return 0 if stream.native else stream.settings.get(name, default)

    async def _pause(self, stream: StreamInfo, partitions: tuple[int, ...]) -> None:
        try:
            await self._door.task("pause_partitions", PausePartitions(stream.name, partitions))
        except (ShardError, WorkerLostError) as error:
            _log.debug("%s is paused later: %s", stream.name, error)
