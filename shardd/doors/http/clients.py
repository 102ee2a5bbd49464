"""Clients at the workers, by the token that they have shown: many requests share one login."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

import msgspec

from shardd.doors.door import Door, DoorClient
from shardd.doors.http.errors import NotAuthenticatedError
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError, Status

IDLE_S: Final = 60.0  # then its client is closed
TOKEN_CHARACTERS_MAX: Final = 4096
_SWEEP_S: Final = 10.0
_TRIES: Final = 3  # workers that a login is tried at


class _Held(msgspec.Struct):
    client: DoorClient
    used_at_s: float


class Clients:
    """Loop thread only. A client belongs to a token and to the address that shows it: limits and the log name that."""

    def __init__(self, door: Door, clients_max: int) -> None:
        self.door = door
        self._clients_max = clients_max
        self._held: OrderedDict[tuple[str, str], _Held] = OrderedDict()
        self._opening: dict[tuple[str, str], asyncio.Future[DoorClient]] = {}

    async def take(self, token: str, address: str) -> DoorClient:
        """An open client that has logged in. NotAuthenticatedError, ShardError, WorkerLostError."""
        if not token or len(token) > TOKEN_CHARACTERS_MAX:
            raise NotAuthenticatedError
        key = (token, address.rpartition(":")[0])
        held = self._held.get(key)
        if held is not None and held.client.is_open:
            held.used_at_s = asyncio.get_running_loop().time()
            self._held.move_to_end(key)
            return held.client
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.ensure_future(self._open(key, address))
            opening.add_done_callback(lambda done: self._opened(key, done))
        return await asyncio.shield(opening)

    async def drop(self, client: DoorClient) -> None:
        """Its login has ended."""
        for key, held in [*self._held.items()]:
            if held.client is client:
                del self._held[key]
        await self.door.close_client(client)

    async def sweep(self) -> None:
        """Until it is cancelled: closes who has not been used for a while."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            oldest_s = asyncio.get_running_loop().time() - IDLE_S
            while self._held and next(iter(self._held.values())).used_at_s < oldest_s:
                await self._close_oldest()

    async def _open(self, key: tuple[str, str], address: str) -> DoorClient:
        while len(self._held) >= self._clients_max:
            await self._close_oldest()
        client = await self._logged_in(key[0], address)
        self._held[key] = _Held(client, asyncio.get_running_loop().time())
        return client

    async def _logged_in(self, token: str, address: str) -> DoorClient:
        for left in reversed(range(_TRIES)):
            client = await self.door.open_client(address)
            try:
                await client.login_with_access_token(token)
                return client
            except WorkerLostError:
                if not left:
                    raise
            except ShardError as error:
                await self.door.close_client(client)
                if error.status is Status.INVALID_ACCESS_TOKEN:
                    raise NotAuthenticatedError from None
                raise
        raise AssertionError

    def _opened(self, key: tuple[str, str], done: asyncio.Future[DoorClient]) -> None:
        del self._opening[key]
        if not done.cancelled():
            done.exception()  # who waited has got it, if anybody did

    async def _close_oldest(self) -> None:
        _, held = self._held.popitem(last=False)
        await self.door.close_client(held.client)
