"""The clients of a door that are logged in at the workers. Requests with the same token or login share a client."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

import msgspec

from shardd.doors.door import Door, DoorClient
from shardd.doors.links import WorkerLostError

SHOWN_CHARACTERS_MAX: Final = 4096  # of a token or a login that a client shows
IDLE_S: Final = 60.0  # then its client is closed
_SWEEP_S: Final = 10.0
_TRIES: Final = 3  # workers that a login is tried at
Shown = TypeVar("Shown")


def host_of_address(address: str) -> str:
    """The host of "host:port"."""
    return address.rpartition(":")[0]


class _Held(msgspec.Struct):
    client: DoorClient
    used_at_s: float


class HeldClients(Generic[Shown]):
    """Loop thread only. `key_of(shown, address)`: those with the same key share a client; `log_in(client, shown)`. What
    either raises ends `take`; a client that could not log in is closed."""

    def __init__(
        self,
        door: Door,
        clients_max: int,
        key_of: Callable[[Shown, str], Hashable],
        log_in: Callable[[DoorClient, Shown], Awaitable[object]],
    ) -> None:
        self.door = door
        self._clients_max = clients_max
        self._key_of = key_of
        self._log_in = log_in
        self._held: OrderedDict[Hashable, _Held] = OrderedDict()
        self._opening: dict[Hashable, asyncio.Future[DoorClient]] = {}

    async def take(self, shown: Shown, address: str) -> DoorClient:
        """An open client that has logged in. ShardError, WorkerLostError."""
        key = self._key_of(shown, address)
        held = self._held.get(key)
        if held is not None and held.client.is_open:
            held.used_at_s = asyncio.get_running_loop().time()
            self._held.move_to_end(key)
            return held.client
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.ensure_future(self._open(key, shown, address))
            opening.add_done_callback(lambda done: self._opened(key, done))
        return await asyncio.shield(opening)

    async def drop(self, client: DoorClient) -> None:
        """Its login has ended."""
        for key, held in [*self._held.items()]:
            if held.client is client:
                del self._held[key]
        await self.door.close_client(client)

    async def sweep(self) -> None:
        """Until it is cancelled: closes clients that have not been used for a while."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_s = asyncio.get_running_loop().time()
            while self._held and (first := next(iter(self._held.items())))[1].used_at_s < now_s - IDLE_S:
                key, held = first
                if held.client.at_work:
                    held.used_at_s = now_s
                    self._held.move_to_end(key)
                else:
                    await self._close(key)

    async def _open(self, key: Hashable, shown: Shown, address: str) -> DoorClient:
        while len(self._held) >= self._clients_max:
            await self._close(self._longest_unused())
        client = await self._logged_in(shown, address)
        self._held[key] = _Held(client, asyncio.get_running_loop().time())
        return client

    async def _logged_in(self, shown: Shown, address: str) -> DoorClient:
        for left in reversed(range(_TRIES)):
            try:
                client = await self.door.open_client(address)
                try:
                    await self._log_in(client, shown)
                except Exception:
                    await self.door.close_client(client)
                    raise
                return client
            except WorkerLostError:
                if not left:
                    raise
        raise AssertionError

    def _opened(self, key: Hashable, done: asyncio.Future[DoorClient]) -> None:
        del self._opening[key]
        if not done.cancelled():
            done.exception()  # who waited has got it, if anybody did

    def _longest_unused(self) -> Hashable:
        """One that is not at work, if there is one: with its client a request that waits would end."""
        idle = (key for key, held in self._held.items() if not held.client.at_work)
        return next(idle, next(iter(self._held)))

    async def _close(self, key: Hashable) -> None:
        await self.door.close_client(self._held.pop(key).client)
