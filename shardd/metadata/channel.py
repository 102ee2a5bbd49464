"""What the replication needs from its surroundings, as protocols: the way to the other shards, threads, the clock."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar, TypeVarTuple

Handler = Callable[[bytes], Awaitable[bytes]]
PeerWatcher = Callable[[int, bool], None]  # (shard, it is up)
RandomBits = Callable[[int], int]  # so many random bits
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


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
    """The bus between the shards (`shardd.shard.bus.Bus`). Loop thread only."""

    @property
    def shard(self) -> int: ...
    @property
    def shards(self) -> int: ...
    def serve(self, method: str, handler: Handler) -> None: ...
    def watch(self, watcher: PeerWatcher) -> None:
        """Calls `watcher` after every change of `is_up`."""

    def is_up(self, shard: int) -> bool: ...
    def peer_up(self, shard: int) -> None: ...
    async def request(self, shard: int, method: str, payload: bytes, timeout_s: float | None = None) -> bytes:
        """Raises BusError."""
        ...


class Threads(Protocol):
    """Runs blocking calls away from the loop (`shardd.shard.helper_threads.HelperThreads`)."""

    async def run(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """What `function(*arguments)` returns or raises."""
        ...


class Clock(Protocol):
    def now_us(self) -> int:
        """Microseconds since the epoch."""
        ...


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1000
