"""The doors of the server, as a worker sees them: the worker lets `shardd/dispatch/door` answer their requests, proves
their identity, and reports them. A server without doors has nothing of this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from shardd.config.http import Http
from shardd.config.schema import Server
from shardd.engine import Engine
from shardd.metadata import Metadata
from shardd.runtime.helper_threads import HelperThreads
from shardd.runtime.metrics import MetricRegistry
from shardd.runtime.trust import PeerKey, Trust, TrustInheritance
from shardd.security.issuers import Issuers
from shardd.service.services import Services
from shardd.service.sessions import SessionTable

_FETCHING_THREADS: Final = 4  # at most so many trusted issuers are waited for at a time
_CLOSE_ISSUERS_S: Final = 0.1  # whoever waits for one at the stop is not waited for


class DoorParts(msgspec.Struct, frozen=True):
    """What a worker has for its doors. `hear()` has everything followed that the supervisor has said: a new door never
    comes before its key."""

    hear: Callable[[], None]
    shards: int
    pool_bytes: int
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
        self._issuer_threads: list[HelperThreads] = []

    def issuers(self, http: Http) -> Issuers | None:
        """Others whose tokens count, with threads of their own; None where there are none. Once."""
        trusted = http.jwt.trusted_issuers
        if not http.enabled or not trusted:
            return None
        fetching = HelperThreads(min(len(trusted), _FETCHING_THREADS), "issuers")
        verifying = HelperThreads(1, "tokens")
        self._issuer_threads = [fetching, verifying]
        return Issuers(trusted, http.jwt.clock_skew_ms // 1000, fetching, verifying)

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
        for threads in self._issuer_threads:
            await threads.close(_CLOSE_ISSUERS_S)

    def add_figures(self, metrics: MetricRegistry) -> None:
        if self._trust is not None:
            metrics.add("doors", self._gauges, self._counters)

    def _gauges(self) -> dict[str, int]:
        assert self._endpoint is not None
        return self._endpoint.gauges()

    def _counters(self) -> dict[str, int]:
        assert self._endpoint is not None
        return self._endpoint.counters()
