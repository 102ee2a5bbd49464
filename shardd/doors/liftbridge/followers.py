"""Who waits for the next message of a partition, and what wakes them: publishes through this door at once, everything
else a worker that waits, too, or a look at where partitions end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final

from grpc import StatusCode

from shardd.doors.liftbridge.calls import Call
from shardd.doors.liftbridge.partitions import Key, Partitions
from shardd.doors.liftbridge.status import NO_LOGIN, RpcError
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge.requests import StreamInfo

LOOK_S: Final = 0.1
AT_WORKERS_MAX: Final = 128  # subscriptions that a worker wakes, each for WAIT_MS
WAIT_MS: Final = 5_000  # a right that is taken ends a subscription that waits after this time at the latest
_AGAIN_S: Final = 1.0  # after a worker has refused to wait
_LOOK_EACH_S: Final = 0.005  # logins that are asked for: many make looks rarer
_DENIED: Final = frozenset({Status.UNAUTHORIZED, *NO_LOGIN})
_DENIED_CODES: Final = frozenset({StatusCode.PERMISSION_DENIED, StatusCode.UNAUTHENTICATED})
_log = logging.getLogger(__name__)


class Follower:
    """One subscription that may wait. `end`: the partition's, as far as it is known here; `history`: to which that
    belongs. `is_in_doubt`: the partition has another one, or the right to it was refused; a poll finds out."""

    def __init__(self, call: Call, stream: StreamInfo, partition: int, end: int, history: int = 0) -> None:
        self.call = call
        self.stream = stream
        self.seen: StreamInfo | None = stream  # as it was when it last woke this one
        self.partition = partition
        self.end = end
        self.history = history
        self.is_in_doubt = False
        self.wakes = 0
        self.at_worker = False  # one waits there for it
        self._wake: asyncio.Future[None] | None = None

    @property
    def key(self) -> Key:
        return self.stream.incarnation, self.partition

    @property
    def waits(self) -> bool:
        return self._wake is not None

    async def wait(self, wakes: int) -> None:
        """Until somebody wakes it, or has done so since there were `wakes`."""
        if wakes != self.wakes:
            return
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    def doubt(self) -> None:
        self.is_in_doubt = True
        self.wake()

    def wake(self) -> None:
        self.wakes += 1
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class Followers:
    """Loop thread only."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._of: dict[Key, list[Follower]] = {}
        self._at_workers = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, follower: Follower) -> None:
        self._of.setdefault(follower.key, []).append(follower)

    def remove(self, follower: Follower) -> None:
        left = self._of[follower.key]
        left.remove(follower)
        if not left:
            del self._of[follower.key]

    def any_of(self, stream: StreamInfo, partition: int) -> bool:
        return (stream.incarnation, partition) in self._of

    def __iter__(self) -> Iterator[Follower]:
        return (follower for of_partition in self._of.values() for follower in of_partition)

    def advanced(self, stream: StreamInfo, partition: int, end: int) -> None:
        """Messages below `end` are there now."""
        self._advance((stream.incarnation, partition), end)

    def streams_changed(self, get: Callable[[str], StreamInfo | None]) -> None:
        """Whoever follows one that is another object now looks whether that concerns it."""
        for follower in self:
            now = get(follower.stream.name)
            if now is not follower.seen:
                follower.seen = now
                follower.wake()

    async def watch(self) -> None:
        """Until it is cancelled: finds what was sent in other ways. For as many as may, a worker waits; of the others
        it is asked where their partitions end, one question for each login."""
        while True:
            logins = self._logins()
            await asyncio.sleep(max(LOOK_S, len(logins) * _LOOK_EACH_S))
            for followers in logins.values():
                await self._look([each for each in followers if each.waits and not each.at_worker])

    async def wait(self, follower: Follower, wakes: int) -> None:
        """As `Follower.wait`; a worker wakes it, too, when there is a place for that."""
        if not follower.at_worker and self._at_workers < AT_WORKERS_MAX:
            follower.at_worker = True
            self._at_workers += 1
            task = asyncio.create_task(self._wait_at_worker(follower), name="wait")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await follower.wait(wakes)

    async def _wait_at_worker(self, follower: Follower) -> None:
        """Nothing but a worker's answer ends it: a worker that has been asked waits in any case."""
        stream, end = follower.stream, follower.end
        place = {"stream": stream.stream_id, "topic": stream.topic_id, "partition": follower.partition}
        try:
            found = await follower.call.ask("wait_for_messages", {**place, "offset": end, "timeout_ms": WAIT_MS})
            if found:
                self._advance(follower.key, end + 1)
            else:
                await self._look([follower])  # a purge ends no wait
        except (ShardError, WorkerLostError, RpcError) as error:
            _log.debug("ends of partitions are looked up instead: %s", error)
            if _is_denied(error):
                follower.doubt()
            else:
                await asyncio.sleep(_AGAIN_S)
        finally:
            follower.at_worker = False
            self._at_workers -= 1
            follower.wake()  # it waits anew, if it is still there

    def _logins(self) -> dict[object, list[Follower]]:
        found: dict[object, list[Follower]] = {}
        for follower in self:
            if follower.waits and not follower.at_worker:
                found.setdefault(follower.call.login, []).append(follower)
        return found

    async def _look(self, followers: list[Follower]) -> None:
        wanted: dict[int, tuple[StreamInfo, set[int]]] = {}
        for follower in followers:
            wanted.setdefault(follower.stream.incarnation, (follower.stream, set()))[1].add(follower.partition)
        if not wanted:
            return
        asked = [(stream, tuple(sorted(ids))) for stream, ids in wanted.values()]
        try:
            for key, bounds in (await self._partitions.bounds(followers[0].call, asked)).items():
                self._advance(key, bounds.end)
                self._compare(key, bounds.history)
        except (ShardError, WorkerLostError, RpcError) as error:
            _log.debug("ends of partitions are looked up again: %s", error)
            denied = _is_denied(error)
            for follower in followers:  # each finds out itself what became of it
                follower.doubt() if denied else follower.wake()

    def _compare(self, key: Key, history: int) -> None:
        for follower in self._of.get(key, ()):
            if follower.history != history:
                follower.doubt()

    def _advance(self, key: Key, end: int) -> None:
        for follower in self._of.get(key, ()):
            if end > follower.end:
                follower.end = end
                follower.wake()


def _is_denied(error: Exception) -> bool:
    """Whether the right or the login was refused, of one of the followers that were asked for."""
    if isinstance(error, RpcError):
        return error.code in _DENIED_CODES
    return isinstance(error, ShardError) and error.status in _DENIED
