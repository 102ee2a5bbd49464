"""Logins at the workers, by what calls show in their metadata: many calls share one."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from grpc import StatusCode

from shardd.doors.door import Door, DoorClient
from shardd.doors.liftbridge.status import RpcError, is_login_lost, rpc_error
from shardd.doors.links import WorkerLostError
from shardd.protocol.door_frames import Purpose
from shardd.protocol.errors import ShardError

CREDENTIAL_CHARACTERS_MAX: Final = 4096
IDLE_S: Final = 60.0  # then its client is closed
_SWEEP_S: Final = 10.0
_TRIES: Final = 3  # workers that a login is tried at


class Credential(msgspec.Struct, frozen=True):
    """What a call shows: a token, or a name with a password, or nothing."""

    token: str = ""
    username: str = ""
    password: str = ""

    @property
    def is_anonymous(self) -> bool:
        return not self.token and not self.username

    def __repr__(self) -> str:
        return "Credential(***)"


class _Held(msgspec.Struct):
    client: DoorClient
    used_at_s: float


_Key = tuple[Credential, str]


def credential_of(metadata: Iterable[tuple[str, Any]] | None) -> Credential:
    """RpcError for an `authorization` that is neither `Bearer` nor `Basic`."""
    values = [value for key, value in metadata or () if key.lower() == "authorization"]
    if not values:
        return Credential()
    said = values[0] if isinstance(values[0], str) else ""
    if len(values) > 1 or len(said) > CREDENTIAL_CHARACTERS_MAX:
        raise _unauthenticated()
    scheme, _, value = said.partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return Credential(token=value.strip())
    if scheme.lower() != "basic":
        raise _unauthenticated()
    try:
        username, colon, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise _unauthenticated() from None
    if not colon or not username:
        raise _unauthenticated()
    return Credential(username=username, password=password)


class Clients:
    """Loop thread only. A token, and whoever shows nothing, is held for an address; a password for a connection, which
    it outlives no more than a TCP connection would. `anonymous`: whether a setting says who those without are."""

    def __init__(self, door: Door, clients_max: int, *, anonymous: bool) -> None:
        self.door = door
        self._clients_max = clients_max
        self._anonymous = anonymous
        self._held: OrderedDict[_Key, _Held] = OrderedDict()
        self._opening: dict[_Key, asyncio.Future[DoorClient]] = {}

    async def take(self, credential: Credential, address: str) -> DoorClient:
        """An open client that has logged in. RpcError."""
        if credential.is_anonymous and not self._anonymous:
            raise RpcError(StatusCode.UNAUTHENTICATED, "a login is needed: authorization Bearer or Basic")
        key = (credential, address if credential.username else address.rpartition(":")[0])
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

    async def _open(self, key: _Key, address: str) -> DoorClient:
        while len(self._held) >= self._clients_max:
            await self._close_oldest()
        client = await self._logged_in(key[0], address)
        self._held[key] = _Held(client, asyncio.get_running_loop().time())
        return client

    async def _logged_in(self, credential: Credential, address: str) -> DoorClient:
        for left in reversed(range(_TRIES)):
            try:
                client = await self.door.open_client(address)
                try:
                    await _log_in(client, credential)
                except ShardError:
                    await self.door.close_client(client)
                    raise
                return client
            except WorkerLostError as error:
                if not left:
                    raise rpc_error(error) from None
            except ShardError as error:
                if is_login_lost(error):
                    raise _unauthenticated() from None
                raise rpc_error(error, "Login", "server") from None
        raise AssertionError

    def _opened(self, key: _Key, done: asyncio.Future[DoorClient]) -> None:
        del self._opening[key]
        if not done.cancelled():
            done.exception()  # who waited has got it, if anybody did

    async def _close_oldest(self) -> None:
        _, held = self._held.popitem(last=False)
        await self.door.close_client(held.client)


async def _log_in(client: DoorClient, credential: Credential) -> None:
    if credential.token:
        await client.login_with_access_token(credential.token)
    elif credential.username:
        await client.login(credential.username, credential.password)
    else:
        await client.login_by_setting(Purpose.ANONYMOUS)


def _unauthenticated() -> RpcError:
    return RpcError(StatusCode.UNAUTHENTICATED, "no valid login")
