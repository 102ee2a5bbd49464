"""What a worker has to do with the doors of its server: it lets a transport answer them, proves who they are, and tells
of them. Nothing at all when the server has no door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from shardd.config.schema import Server
from shardd.engine import Engine
from shardd.metadata import Metadata
from shardd.runtime.metrics import MetricRegistry
from shardd.runtime.trust import PeerKey, Trust, TrustInheritance
from shardd.service.services import Services
from shardd.service.sessions import SessionTable


class DoorParts(msgspec.Struct, frozen=True):
    """What a worker has for its doors. `hear()` has everything followed that the supervisor has said: a new door never
    comes before its key."""

    hear: Callable[[], None]
    shards: int
    limits: Server
    engine: Engine
    metadata: Metadata
    services: Services
    sessions: SessionTable


class DoorEndpoint(Protocol):
    """Answers the doors of a server at one worker. Lives on its loop thread."""

    async def start(self, listener_fd: int) -> None: ...
    async def stop(self, seconds: float) -> None:
        """Takes no more requests; those under way have so long. All clients of doors are gone at the end."""

    def gauges(self) -> dict[str, int]: ...
    def counters(self) -> dict[str, int]: ...


MakeDoorEndpoint = Callable[[Trust, DoorParts], DoorEndpoint]


class WorkerDoors:
    """One per worker, loop thread only."""

    def __init__(self, inheritance: TrustInheritance | None, make: MakeDoorEndpoint) -> None:
        self._inheritance = inheritance
        self._trust = None if inheritance is None else Trust(inheritance)
        self._make = make
        self._endpoint: DoorEndpoint | None = None

    def renew(self, key: PeerKey) -> None:
        """A door has died: what its next process will prove itself with."""
        if self._trust is not None:
            self._trust.renew(key)

    async def start(self, parts: DoorParts) -> None:
        if self._trust is None or self._inheritance is None:
            return
        self._endpoint = self._make(self._trust, parts)
        await self._endpoint.start(self._inheritance.listener_fd)

    async def stop(self, seconds: float) -> None:
        if self._endpoint is not None:
            await self._endpoint.stop(seconds)

    def add_figures(self, metrics: MetricRegistry) -> None:
        if self._trust is not None:
            metrics.add("doors", self._gauges, self._counters)

    def _gauges(self) -> dict[str, int]:
        assert self._endpoint is not None
        return self._endpoint.gauges()

    def _counters(self) -> dict[str, int]:
        assert self._endpoint is not None
        return self._endpoint.counters()
