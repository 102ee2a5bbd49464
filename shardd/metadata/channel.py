"""What the replication needs from its surroundings, as protocols: the way to the other shards, threads, the clock."""

from __future__ import annotations

import enum
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar, TypeVarTuple

Handler = Callable[[int, bytes], Awaitable[bytes]]  # (shard that asks, payload)
PeerWatcher = Callable[[int, bool], None]  # (shard, it is up)
RandomBits = Callable[[int], int]  # so many random bits
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


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
    """The bus between the shards (`shardd.shard.bus.Bus`). Loop thread only."""

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


class UnwantedError(Exception):
    """A call that nobody waited for any more when its turn came: it was not made."""


class Threads(Protocol):
    """Runs blocking calls away from the loop (`shardd.shard.helper_threads.HelperThreads`)."""

    async def run(self, function: Callable[[*Ts], T], *arguments: *Ts, wanted: Callable[[], bool] | None = None) -> T:
        """What `function(*arguments)` returns or raises; `UnwantedError` when `wanted` said no at its turn."""
        ...


class Clock(Protocol):
    def now_us(self) -> int:
        """Microseconds since the epoch."""
        ...


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1000
