"""The clients of one door at one worker, and the handles of their logins.

A client counts like a connection of its own address: in the limits of connections, and with its failed logins. A
handle is a number that this door was given for a login that a worker has verified. It is looked up among the door's
own clients only, is never used again, and ends with the next login or the logout of its client, with its user, its
client or its door.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from shardd.config.digits import number_of
from shardd.config.schema import Server
from shardd.engine import Engine
from shardd.protocol.door_frames import CLIENT_SHARE
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.system_replies import TRANSPORT_HTTP, TRANSPORT_QUIC, TRANSPORT_TCP
from shardd.service.identity import Identity
from shardd.service.sessions import Session, SessionTable

_PORT_MAX: Final = 65_535
_NO_SOCKET: Final = 0xFFFF_FFFF  # no place in the engine's table of connections
_TRANSPORTS: Final = {"http": TRANSPORT_HTTP, "quic": TRANSPORT_QUIC}  # as clients are told, by door
_connections: Final = itertools.count(1)


def parse_address(address: str) -> tuple[str, str]:
    """(host, address as sessions have it) of "ip:port" or "[v6]:port". `ShardError` 4."""
    host, _, port = address.rpartition(":")
    try:
        parsed = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        number = number_of(port)
        if number is None or number > _PORT_MAX or "%" in host:
            raise ValueError
    except ValueError:
        raise ShardError(Status.INVALID_FORMAT, "no address of a client") from None
    whole = f"[{parsed}]" if parsed.version == 6 else str(parsed)
    return str(parsed), f"{whole}:{number}"


class ClientRecord(msgspec.Struct, eq=False):
    """The record that a worker keeps of one client of a door. `handle`: the handle of its login, None without a login.
    `authenticated`: whether it is counted among the clients with a login."""

    number: int
    host: str
    session: Session
    login_timer: asyncio.TimerHandle | None = None
    handle: int | None = None
    authenticated: bool = False
    logging_in: bool = False

    def identity(self) -> Identity:
        return Identity(self.session.user_id, self.session.user_incarnation, self.session)


class DoorClients:
    """Lives on the loop thread of the worker. `count`: clients of all processes of the door. `expired`: a client had no
    login for too long and was closed."""

    def __init__(
        self,
        door: str,
        shards: int,
        engine: Engine,
        sessions: SessionTable,
        limits: Server,
        count: Callable[[], int],
        expired: Callable[[int, Status], None],
    ) -> None:
        self._door = door
        self._engine = engine
        self._sessions = sessions
        self._login_timeout_s = limits.login_timeout_ms / 1000
        self._clients_max = max(1, limits.connections_max // (CLIENT_SHARE * shards))
        self._count_all = count
        self._expired = expired
        self._numbers = itertools.count(1)
        self._clients: dict[int, ClientRecord] = {}
        self._by_handle: dict[int, ClientRecord] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[ClientRecord]:
        return iter(self._clients.values())

    def open(self, address: str) -> ClientRecord:
        """`ShardError` 8 when there is no room for it, as a connection would hear."""
        host, whole = parse_address(address)
        if self._count_all() >= self._clients_max or not self._engine.client_enter(host):
            raise ShardError(Status.DISCONNECTED, f"no room for a client of {host}")
        connection = (next(_connections) & 0xFFFF_FFFF) << 32 | _NO_SOCKET
        transport = _TRANSPORTS.get(self._door, TRANSPORT_TCP)
        session = self._sessions.open(connection, whole, time.time_ns() // 1000, self._door, transport)
        client = ClientRecord(next(self._numbers), host, session)
        self._clients[client.number] = client
        self._wait_for_login(client)
        return client

    def get(self, number: int) -> ClientRecord:
        """`ShardError` 100."""
        client = self._clients.get(number)
        if client is None:
            raise ShardError(Status.CLIENT_NOT_FOUND, f"client {number}")
        return client

    def of_handle(self, handle: int) -> ClientRecord:
        """The client with that login. `ShardError` 40 when there is none (any more)."""
        client = self._by_handle.get(handle)
        if client is None or client.session.removed or client.session.user_id is None:
            raise ShardError(Status.UNAUTHENTICATED, "no login has this handle")
        return client

    def logged_in(self, client: ClientRecord) -> int:
        """Right after a service has noted the login in the session: its handle."""
        self._forget_handle(client)
        self._count(client, authenticated=True)
        client.handle = next(self._numbers)
        self._by_handle[client.handle] = client
        return client.handle

    def logged_out(self, client: ClientRecord) -> None:
        self._forget_handle(client)
        self._count(client, authenticated=False)

    def close(self, client: ClientRecord) -> None:
        """One that is closed already is no error."""
        if self._clients.pop(client.number, None) is None:
            return
        self._forget_handle(client)
        self._stop_timer(client)
        self._engine.client_leave(client.host, client.authenticated)
        self._sessions.close(client.session.connection)

    def close_all(self) -> None:
        for client in [*self._clients.values()]:
            self.close(client)

    def _forget_handle(self, client: ClientRecord) -> None:
        if client.handle is not None:
            del self._by_handle[client.handle]
            client.handle = None

    def _count(self, client: ClientRecord, *, authenticated: bool) -> None:
        if client.authenticated != authenticated:
            client.authenticated = authenticated
            self._engine.client_authenticated(authenticated)
        if authenticated:
            self._stop_timer(client)
        else:
            self._wait_for_login(client)

    def _wait_for_login(self, client: ClientRecord) -> None:
        self._stop_timer(client)
        loop = asyncio.get_running_loop()
        client.login_timer = loop.call_later(self._login_timeout_s, self._expire, client)

    def _stop_timer(self, client: ClientRecord) -> None:
        if client.login_timer is not None:
            client.login_timer.cancel()
            client.login_timer = None

    def _expire(self, client: ClientRecord) -> None:
        self.close(client)
        self._expired(client.number, Status.UNAUTHENTICATED)
