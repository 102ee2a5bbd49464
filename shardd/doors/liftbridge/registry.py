"""All streams of the server as the workers know them. What one client may see of them is asked in its name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from shardd.doors.door import Door
from shardd.doors.liftbridge.calls import Call
from shardd.doors.liftbridge.router import Router
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge.requests import AllStreams, Right, StreamInfo

ALL_STREAMS: Final = "all_streams"
_NEWEST_SHARD: Final = 0  # it orders the changes: what it says is never older than what it has said
_SPACING_S: Final = 0.02  # between two looks that notices have asked for
_FIND_S: Final = 0.05  # between two looks for names that are not known, and
_FIND_SHARE: Final = 20  # so many times as long as one takes, but
_FIND_MAX_S: Final = 2.0  # at most: one that took long has waited for a worker, or for the CPU
_SLICE: Final = 256  # streams between two turns of the loop
_decoder: Final = msgspec.msgpack.Decoder(StreamInfo, strict=False)
_RETRY_S: Final = 0.2
_log = logging.getLogger(__name__)


class Registry:
    """Loop thread only. `listeners` are called after each change, when the router has it."""

    def __init__(self, door: Door) -> None:
        self.router = Router()
        self.version = 0
        self.listeners: list[Callable[[], None]] = []
        self._door = door
        self._streams: dict[str, StreamInfo] = {}
        self._known: dict[bytes, StreamInfo] = {}  # by what a worker says of them
        self._look_again_at_s = self._looked_at_s = 0.0
        self._noticed = asyncio.Event()
        self._looking = asyncio.Lock()
        self._changes = asyncio.Condition()

    def streams(self) -> Mapping[str, StreamInfo]:
        """By name."""
        return self._streams

    def get(self, name: str) -> StreamInfo | None:
        return self._streams.get(name)

    async def find(self, name: str) -> StreamInfo | None:
        """As `get`; one that is not known may have been made in another way just now, so the server is asked once
        more, at intervals that all who ask share."""
        loop = asyncio.get_running_loop()
        asked_at_s = loop.time()
        while name and name not in self._streams and self._looked_at_s < asked_at_s:
            wait_s = self._look_again_at_s - loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                continue
            try:
                await self.refresh()
            except (ShardError, WorkerLostError):
                return None
        return self._streams.get(name)

    async def find_for(self, call: Call, right: Right, name: str) -> StreamInfo | None:
        """As `find`; a name that is not known is looked for only when the caller has the right to every stream.
        RpcError."""
        stream = self._streams.get(name)
        if stream is None:
            await call.require(right, name, (name,))
            stream = await self.find(name)
        return stream

    def notice(self) -> None:
        """A worker has a newer record."""
        self._noticed.set()

    async def changed(self, since: int) -> int:
        async with self._changes:
            await self._changes.wait_for(lambda: self.version > since)
            return self.version

    async def refresh(self) -> None:
        """What the server knows now, with every change that has been answered. ShardError, WorkerLostError."""
        loop = asyncio.get_running_loop()
        asked_at_s = loop.time()
        async with self._looking:
            began_s = loop.time()
            if self._looked_at_s >= asked_at_s:
                return  # somebody else has looked since
            said = await self._door.task(ALL_STREAMS, AllStreams(), shard=_NEWEST_SHARD, kind=list[msgspec.Raw])
            await self._replace(await self._decoded(said))
            self._looked_at_s = began_s
            took_s = loop.time() - began_s
            self._look_again_at_s = loop.time() + min(_FIND_MAX_S, max(_FIND_S, took_s * _FIND_SHARE))

    async def follow(self) -> None:
        """Until it is cancelled: looks when something has changed."""
        while True:
            await self._noticed.wait()
            self._noticed.clear()
            try:
                await self.refresh()
            except (ShardError, WorkerLostError) as error:
                _log.debug("streams are looked up again: %s", error)
                self._noticed.set()
                await asyncio.sleep(_RETRY_S)
            await asyncio.sleep(_SPACING_S)

    async def _decoded(self, said: list[msgspec.Raw]) -> dict[str, StreamInfo]:
        """By name, in slices: there may be many. What is said as before stays the same object."""
        found: dict[bytes, StreamInfo] = {}
        for at in range(0, len(said), _SLICE):
            for raw in said[at : at + _SLICE]:
                data = bytes(raw)
                found[data] = self._known.get(data) or _decoder.decode(data)
            await asyncio.sleep(0)
        self._known = found
        return {each.name: each for each in found.values()}

    async def _replace(self, new: dict[str, StreamInfo]) -> None:
        old = self._streams
        if self.version and len(new) == len(old) and all(old.get(name) is each for name, each in new.items()):
            return
        for _ in self.router.replacing(new.values()):
            await asyncio.sleep(0)
        self._streams = new
        self.version += 1
        async with self._changes:
            self._changes.notify_all()
        for listener in self.listeners:
            listener()
