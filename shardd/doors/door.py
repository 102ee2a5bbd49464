"""What a door works with: clients, each at one worker, with what that worker lets them do."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

import msgspec

from shardd.doors.links import WorkerLink, WorkerLostError
from shardd.protocol.door_frames import (
    CloseClient,
    Command,
    Kind,
    LoggedIn,
    Login,
    LoginBySetting,
    LoginWithAccessToken,
    LoginWithToken,
    Logout,
    OpenClient,
    Purpose,
    Task,
)
from shardd.protocol.errors import ShardError, Status
from shardd.runtime.control_messages import Stalls, Standing
from shardd.runtime.networks import network_of
from shardd.runtime.trust import PeerKey, Trust, TrustInheritance, shard_name

TRACE: Final = ContextVar("trace", default="")
"""The traceparent of the request that a command is for, or ""."""
_NO_HANDLE = 0
_NOBODY = -1


class DoorClient:
    """One client of the door. `ended` is called when the worker closes it by itself, or is lost. `user_id`: the
    user of the last login; -1: there was no login. `owner`: the user for which its stored things count (`LoggedIn`).
    `network`: the address that it counts as (shardd/runtime/networks.py). `at_work`: commands that are not answered
    yet.

    All requests raise `ShardError` (a status of the worker) or `WorkerLostError`."""

    def __init__(self, link: WorkerLink, number: int, ended: Callable[[], None], network: str) -> None:
        self.shard = link.shard
        self.network = network
        self.number = number
        self.is_open = True
        self.handle = _NO_HANDLE
        self.user_id = _NOBODY
        self.owner = 0
        self.at_work = 0
        self._link = link
        self._ended = ended
        self._left: dict[Callable[[DoorClient], None], None] = {}

    def when_left(self, hear: Callable[[DoorClient], None]) -> None:
        """`hear` is called once, when the client is not open any more, however often this is asked for."""
        self._left[hear] = None

    async def login(self, username: str, password: str) -> int:
        """Who it is now."""
        return await self._logged_in(Kind.LOGIN, Login(self.number, username, password))

    async def login_with_token(self, token: str) -> int:
        return await self._logged_in(Kind.LOGIN_WITH_TOKEN, LoginWithToken(self.number, token))

    async def login_with_access_token(self, token: str) -> int:
        """An access token or a personal one: with it the login ends."""
        return await self._logged_in(Kind.LOGIN_WITH_ACCESS_TOKEN, LoginWithAccessToken(self.number, token))

    async def login_by_setting(self, purpose: Purpose) -> int:
        """As the user whom the server's settings name for clients without a login."""
        return await self._logged_in(Kind.LOGIN_BY_SETTING, LoginBySetting(self.number, purpose))

    async def logout(self) -> None:
        handle, self.handle = self.handle, _NO_HANDLE
        await self._request(Kind.LOGOUT, Logout(handle))

    async def command(self, name: str, request: object = None) -> Any:
        """What the service of that name returns, as maps and lists. `request`: its fields."""
        fields: Any = {} if request is None else request  # encoded with its frame: as Raw it would be copied twice
        self.at_work += 1
        try:
            value = await self._request(Kind.COMMAND, Command(self.handle, name, fields, TRACE.get()))
        finally:
            self.at_work -= 1
        return msgspec.msgpack.decode(value, strict=False)

    async def close(self) -> None:
        if self.is_open:
            self._leave()
            await self._request(Kind.CLOSE_CLIENT, CloseClient(self.number), open_only=False)

    def end(self) -> None:
        """The worker has closed it."""
        if self.is_open:
            self._leave()
            self._ended()

    def _leave(self) -> None:
        self.is_open = False
        for hear in self._left:
            hear(self)
        self._left.clear()

    async def _logged_in(
        self, kind: Kind, request: Login | LoginWithToken | LoginWithAccessToken | LoginBySetting
    ) -> int:
        said = msgspec.msgpack.decode(await self._request(kind, request), type=LoggedIn)
        self.handle, self.user_id, self.owner = said.handle, said.user_id, said.owner
        return said.user_id

    async def _request(
        self,
        kind: Kind,
        request: Login | LoginWithToken | LoginWithAccessToken | LoginBySetting | Logout | Command | CloseClient,
        *,
        open_only: bool = True,
    ) -> bytes | memoryview:
        if open_only and not self.is_open:
            raise ShardError(Status.CLIENT_NOT_FOUND, "it is closed", close=True)
        try:
            return await self._link.request(kind, request)
        except ShardError as error:
            if error.close:
                self.end()
            raise


class Door:
    """The links of a door to all workers, and its clients. Loop thread only. `ready()` is to be called when the door
    serves. `listeners`: what the supervisor has opened for it, in the order of its addresses; they stay open when the
    door is replaced. `options`: its settings, as whoever made its specification has encoded them.
    `tls_fd`: what it shows to clients (shardd/runtime/tls_material.py), -1: no TLS; `tls_changed` is called when there
    is something else to show. `standing`: shards that stand still now. `addresses`: where doors listen, by setting.
    `on_metadata_changed(index)`: a worker has newer metadata; only the door for Liftbridge hears of it."""

    def __init__(
        self,
        inheritance: TrustInheritance,
        shards: int,
        ready: Callable[[], None],
        listeners: Sequence[socket.socket] = (),
        options: bytes = b"",
        tls_fd: int = -1,
        addresses: Mapping[str, str] | None = None,
    ) -> None:
        self.ready = ready
        self.addresses = addresses or {}
        self.tls_fd = tls_fd
        self.tls_changed: Callable[[], None] = lambda: None
        self.on_metadata_changed: Callable[[int], None] = lambda index: None
        self.standing: list[Standing] = []
        self.listeners = listeners
        self.options = options
        self._trust = Trust(inheritance)
        self._places = inheritance.places
        self._clients: list[dict[int, DoorClient]] = [{} for _ in range(shards)]
        self.links = [self._link(shard, self._places[shard_name(shard)]) for shard in range(shards)]
        self._turns = itertools.cycle(range(shards))
        self._tasks = [asyncio.create_task(link.run(), name=f"shard {link.shard}") for link in self.links]

    def renew(self, key: PeerKey) -> None:
        """A worker died: how its next process is spoken to."""
        self._trust.renew(key)

    def hear_stalls(self, stalls: Stalls) -> None:
        self.standing = stalls.standing

    async def open_client(
        self, address: str, ended: Callable[[], None] = lambda: None, shard: int | None = None
    ) -> DoorClient:
        """A client of the given address ("ip:port") at a worker, or at the next one that is connected. `ShardError`: it
        is refused. `WorkerLostError`: no worker is connected."""
        link = self._next_link() if shard is None else self.links[shard]
        number = msgspec.msgpack.decode(await link.request(Kind.OPEN_CLIENT, OpenClient(address)), type=int)
        client = DoorClient(link, number, ended, network_of(address))
        self._clients[link.shard][number] = client
        return client

    async def task(self, name: str, request: object = None, *, shard: int | None = None, kind: Any = Any) -> Any:
        """Has a worker, or the next one that is connected, do something in nobody's name: what it answers, as maps and
        lists, or as `kind`. `ShardError`: not for this door (41), or what the task says. `WorkerLostError`."""
        link = self._next_link() if shard is None else self.links[shard]
        fields: Any = {} if request is None else request
        value = await link.request(Kind.TASK, Task(name, fields))
        return msgspec.msgpack.decode(value, type=kind, strict=False)

    def clients(self) -> Iterator[DoorClient]:
        """All that are at workers now, also those that have not logged in yet."""
        for of_shard in self._clients:
            yield from of_shard.values()

    async def close_client(self, client: DoorClient) -> None:
        """Its login ends with it. One that has ended is no error."""
        self._clients[client.shard].pop(client.number, None)
        with contextlib.suppress(ShardError, WorkerLostError):
            await client.close()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _link(self, shard: int, place_fd: int) -> WorkerLink:
        def ended(number: int, status: int) -> None:
            client = self._clients[shard].pop(number, None)
            if client is not None:
                client.end()

        def lost() -> None:
            clients, self._clients[shard] = self._clients[shard], {}
            for client in clients.values():
                client.end()

        def changed(index: int) -> None:
            self.on_metadata_changed(index)

        return WorkerLink(shard, place_fd, self._trust, ended, lost, changed)

    def _next_link(self) -> WorkerLink:
        for _ in self.links:
            link = self.links[next(self._turns)]
            if link.connected.is_set():
                return link
        raise WorkerLostError("no worker is connected")
