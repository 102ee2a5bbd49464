"""Timeouts of requests between shards that are longer while the shard that is waited for stands still.

The supervisor says who stands still (a device that does not answer, no CPU). Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Final

from shardd.runtime.control_messages import Standing

PATIENCE_S: Final = 60.0  # in all, for a shard that stands still; a client gives up after tcp.request_timeout anyway
AT_ONCE: Final = 0.0  # a patience: who asks does without a shard that stands still


class _Wait:
    __slots__ = ("patience_s", "started", "timeout", "timeout_s")

    def __init__(self, timeout: asyncio.Timeout, timeout_s: float, patience_s: float) -> None:
        self.timeout = timeout
        self.timeout_s = timeout_s
        self.patience_s = patience_s
        self.started = asyncio.get_running_loop().time()

    def stand_still(self) -> None:
        when = self.timeout.when()
        if when is not None and not self.timeout.expired():
            limit = self.started + self.patience_s
            self.timeout.reschedule(limit if self.patience_s == AT_ONCE else max(when, limit))

    def go_on(self) -> None:
        """From now on it has the time that it has for a shard that is well."""
        when = self.timeout.when()
        if when is not None and not self.timeout.expired():
            self.timeout.reschedule(min(when, asyncio.get_running_loop().time() + self.timeout_s))

    def put_off(self, seconds: float) -> None:
        when = self.timeout.when()
        if when is not None and not self.timeout.expired():
            self.timeout.reschedule(when + seconds)


class Patience:
    """All requests of a worker that have a timeout, by the shard that they wait for."""

    def __init__(self) -> None:
        self.standing: Mapping[int, Standing] = {}
        self._waits: dict[int, set[_Wait]] = {}

    @contextlib.asynccontextmanager
    async def timeout(self, shard: int, timeout_s: float | None, patience_s: float | None) -> AsyncIterator[None]:
        """As asyncio.timeout, but for up to `patience_s` in all while `shard` stands still (None: no longer)."""
        async with asyncio.timeout(timeout_s) as timeout:
            if timeout_s is None or patience_s is None:
                yield
                return
            wait = _Wait(timeout, timeout_s, patience_s)
            waits = self._waits.setdefault(shard, set())
            waits.add(wait)
            if shard in self.standing:
                wait.stand_still()
            try:
                yield
            finally:
                waits.discard(wait)

    def follow(self, standing: Mapping[int, Standing]) -> None:
        """From now on these shards stand still, and no others."""
        before, self.standing = self.standing, standing
        for shard, waits in self._waits.items():
            for wait in waits:
                if shard in standing and shard not in before:
                    wait.stand_still()
                elif shard in before and shard not in standing:
                    wait.go_on()

    def forgive(self, seconds: float) -> None:
        """This worker stood still itself: what came meanwhile has not been looked at yet."""
        for waits in self._waits.values():
            for wait in waits:
                wait.put_off(seconds)
