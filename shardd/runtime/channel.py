"""The way to the other shards, as a protocol, and what can become of a request to one of them."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from typing import Protocol

Handler = Callable[[int, bytes], Awaitable[bytes]]  # (shard that asks, payload)
PeerWatcher = Callable[[int, bool], None]  # (shard, it is up)


class Senders(enum.Enum):
    """Which shards may send a method."""

    ANY_SHARD = "any shard"
    SHARD_0 = "shard 0"

    def include(self, shard: int) -> bool:
        return self is Senders.ANY_SHARD or shard == 0


class BusError(Exception):
    """A request to another shard that got no answer of its handler."""


class PeerLost(BusError):  # noqa: N818 - a state of the other side, named so by every caller
    """The shard died after it had taken the request: nobody can know whether it was done."""


class PeerUnavailableError(BusError):
    """The shard is down; the request was not taken."""


class RequestTimeoutError(BusError):
    """No answer in time; the shard may still be at it."""


class RemoteError(BusError):
    """The handler failed, or there is none."""


class Channel(Protocol):
    """The bus between the shards (`shardd.runtime.bus.Bus`). Loop thread only."""

    @property
    def shard(self) -> int: ...
    @property
    def shards(self) -> int: ...
    def serve(self, method: str, senders: Senders, handler: Handler) -> None: ...
    def watch(self, watcher: PeerWatcher) -> None:
        """Calls `watcher` after every change of `is_up`."""

    def is_up(self, shard: int) -> bool: ...
    def peer_up(self, shard: int) -> None: ...
    async def request(self, shard: int, method: str, payload: bytes, timeout_s: float | None = None) -> bytes:
        """Raises BusError."""
        ...
