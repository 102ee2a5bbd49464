"""A call: who makes it, and how many may be there at a time."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from grpc import StatusCode

from shardd.doors.budget import Budget
from shardd.doors.door import DoorClient
from shardd.doors.liftbridge.clients import Clients, Credential, credential_of
from shardd.doors.liftbridge.connection_shares import ConnectionShares
from shardd.doors.liftbridge.status import RpcError, is_login_lost, rpc_error
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge.requests import NAMES_MAX, RequireRight, Right

CALLS_MAX: Final = 2048  # under way, of whatever kind
CALLS_OF_ADDRESS_MAX: Final = 512
SUBSCRIPTIONS_MAX: Final = 1024
SUBSCRIPTIONS_OF_ADDRESS_MAX: Final = 256
SESSIONS_MAX: Final = 256  # of PublishAsync
SESSIONS_OF_ADDRESS_MAX: Final = 64
READS_MAX: Final = 128  # requests that come in now, one address has half of them: each may have 4 MiB
REQUEST_S: Final = 10.0  # for a whole request, counted from its turn


class Crowd:
    """How many there are, in all and by address. Loop thread only."""

    def __init__(self, what: str, count_max: int, of_address_max: int, refused: Callable[[str], None]) -> None:
        self._what = what
        self._refused = refused
        self._max = count_max
        self._of_address_max = of_address_max
        self._of: Counter[str] = Counter()
        self._all = 0

    def enter(self, call: Call) -> None:
        """RpcError UNAVAILABLE: clients come back."""
        host = call.host
        if self._all >= self._max or self._of[host] >= self._of_address_max:
            if self._of[host] >= self._of_address_max:
                self._refused(call.address)
            raise RpcError(StatusCode.UNAVAILABLE, f"too many {self._what} at a time")
        self._all += 1
        self._of[host] += 1

    def leave(self, host: str) -> None:
        self._all -= 1
        self._of[host] -= 1
        if not self._of[host]:
            del self._of[host]


class Gate:
    """Who may come in. Loop thread only."""

    def __init__(self, clients: Clients, connections: ConnectionShares) -> None:
        self.clients = clients
        self.connections = connections
        refused = connections.refused
        self.calls = Crowd("calls", CALLS_MAX, CALLS_OF_ADDRESS_MAX, refused)
        self.subscriptions = Crowd("subscriptions", SUBSCRIPTIONS_MAX, SUBSCRIPTIONS_OF_ADDRESS_MAX, refused)
        self.sessions = Crowd("sessions of PublishAsync", SESSIONS_MAX, SESSIONS_OF_ADDRESS_MAX, refused)
        self.reads = Budget(READS_MAX)


class Call:
    """One call of a method. `address`: "ip:port" of its client; `host`: the same without the port."""

    def __init__(self, gate: Gate, method: str, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self.method = method
        self.context = context
        self.address = address_of(context.peer())
        gate.connections.called(self.address)
        self.host = self.address.rpartition(":")[0]
        self._gate = gate
        self._credential = Credential()

    async def authenticate(self) -> None:
        """Before anything of the request is read. RpcError."""
        self._credential = credential_of(self.context.invocation_metadata())
        await self.client()

    async def client(self) -> DoorClient:
        """An open one. RpcError."""
        try:
            return await self._gate.clients.take(self._credential, self.address)
        except (ShardError, WorkerLostError) as error:
            raise rpc_error(error, "Login", "server") from None

    async def command(self, name: str, request: object = None, resource: str = "") -> Any:
        """In the name of whoever calls. RpcError."""
        try:
            return await self.ask(name, request)
        except (ShardError, WorkerLostError) as error:
            raise rpc_error(error, self.method, resource) from None

    async def require(self, right: Right, resource: str, streams: Sequence[str] = ()) -> None:
        """Before a refusal that tells something about a stream. RpcError PERMISSION_DENIED unless the caller has the
        right to one of the streams; a name without a stream, and no name, stand for every stream."""
        await self.command("liftbridge_require_right", RequireRight(right, tuple(streams)[:NAMES_MAX]), resource)

    async def ask(self, name: str, request: object = None) -> Any:
        """As `command`, with the errors of workers: ShardError, WorkerLostError; RpcError without a login. A login that
        has ended is made again, once."""
        for again in (True, False):
            client = await self.client()
            try:
                return await client.command(name, request)
            except ShardError as error:
                if not is_login_lost(error):
                    raise
                await self._gate.clients.drop(client)
                if not again:
                    raise
        raise AssertionError

    async def drop_login_if(self, ended: bool, client: DoorClient) -> None:
        """The next call logs in again."""
        if ended:
            await self._gate.clients.drop(client)

    async def read_one(self, kind: Any) -> Any:
        """The request of a call that has one. RpcError."""
        reads = self._gate.reads
        await reads.take(self.host, 1)
        try:
            async with asyncio.timeout(REQUEST_S):
                data = await self.context.read()
        except TimeoutError:
            raise RpcError(StatusCode.DEADLINE_EXCEEDED, f"no request within {REQUEST_S:.0f} s") from None
        finally:
            reads.give(self.host, 1)
        if data is grpc.aio.EOF:
            raise RpcError(StatusCode.INTERNAL, "a call without a request")
        return decoded(kind, data)

    @property
    def login(self) -> tuple[Credential, str]:
        """Calls with the same one act as the same user."""
        return self._credential, self.host

    @property
    def seconds_left(self) -> float | None:
        """None: the call has no deadline."""
        left = self.context.time_remaining()
        return None if left is None else float(left)


def decoded(kind: Any, data: bytes) -> Any:
    """RpcError as servers of gRPC give it."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise RpcError(StatusCode.INTERNAL, f"grpc: error unmarshalling request: {error}") from None


def address_of(peer: str) -> str:
    """ "ipv6:%5B::1%5D:5" is "[::1]:5"."""
    return urllib.parse.unquote(peer.partition(":")[2])
