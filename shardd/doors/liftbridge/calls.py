"""A call: who makes it, and how many may be there at a time."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from grpc import StatusCode

from shardd.doors.door import DoorClient
from shardd.doors.liftbridge.clients import Clients, Credential, credential_of
from shardd.doors.liftbridge.connection_shares import ConnectionShares
from shardd.doors.liftbridge.status import RpcError, is_login_lost, rpc_error
from shardd.doors.liftbridge.strangers import Strangers
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge.requests import NAMES_MAX, RequireRight, Right
from shardd.runtime.crowds import FullError, Member, Room
from shardd.runtime.networks import network_of

Context: TypeAlias = "grpc.aio.ServicerContext[object, bytes]"
"""`read()` gives bytes, and `grpc.aio.EOF` at the end of what a client sends."""
Request = TypeVar("Request", bound=Message)
LOGINS_MAX: Final = 2048  # calls whose login is not known yet
LOGINS_OF_ADDRESS_MAX: Final = 512
CALLS_MAX: Final = 2048  # under way, of users
CALLS_OF_ADDRESS_MAX: Final = 512  # here and below: of one user
SUBSCRIPTIONS_MAX: Final = 1024
SUBSCRIPTIONS_OF_ADDRESS_MAX: Final = 256
SESSIONS_MAX: Final = 256  # of PublishAsync
SESSIONS_OF_ADDRESS_MAX: Final = 64
WATCHES_MAX: Final = 1024  # of health, which live as long as their clients and need no login
WATCHES_OF_ADDRESS_MAX: Final = 256
PROBES_MAX: Final = 512  # looks at health and reflection, which need no login
PROBES_OF_ADDRESS_MAX: Final = 64
READS_MAX: Final = 128  # requests of users that come in now: each may have 4 MiB
PROBE_READS_MAX: Final = 32  # requests of strangers
REQUEST_S: Final = 10.0  # for a whole request, counted from its turn
ANSWERS_BYTES_MAX: Final = 128 << 20  # of answers without a bound of their own that clients have not taken yet
ANSWER_BYTES_MAX: Final = 32 << 20  # of one of them, and of all of one address of a user
LARGE_BYTES_MAX: Final = 256 << 20  # of single messages that are larger than a window, all subscriptions together,
LARGE_COPIES: Final = 2  # of each: the library has a copy of its own until the client has the message
LARGE_OF_ADDRESS_BYTES_MAX: Final = LARGE_BYTES_MAX // 2
GRACE_S: Final = 1.0  # what its client has not taken by then gives way to a user that has less
LARGE_BYTES_PER_S: Final = 1 << 20  # a client that takes less, after `slow_reader_timeout`, gives way to every user
_ANSWER_BYTES_PER_S: Final = 16 << 10  # a client that takes less has given up, as in native/src/net/conn/limits.c


class Crowd:
    """Calls of one kind. Loop thread only. `waits`: a call without a place waits for one."""

    def __init__(
        self, what: str, size_max: int, of_address_max: int, connections: ConnectionShares, *, waits: bool = False
    ) -> None:
        self._what = what
        self._waits = waits
        self._connections = connections
        self._room = Room(size_max, of_address_max)

    @asynccontextmanager
    async def place(self, call: Call, size: int = 1) -> AsyncIterator[None]:
        """While the call is within. RpcError UNAVAILABLE, also when another caller needs the place: clients come
        back."""
        task = asyncio.current_task()
        assert task is not None
        gave_way = False

        def give_way() -> None:
            nonlocal gave_way
            gave_way = call.gave_way = True
            task.cancel()

        before, call.give_way = call.give_way, give_way
        try:
            if self._waits:
                member = await self._room.take(call.owner, call.host, give_way, size)
            else:
                member = self._room.enter(call.owner, call.host, give_way, size)
        except FullError as error:
            call.give_way = before
            if error.of_address:
                self._connections.refused(call.address)
            raise self._full() from None
        try:
            yield
        except asyncio.CancelledError:
            if not gave_way:
                raise
            task.uncancel()
            raise self._full() from None
        finally:
            call.give_way = before
            self._room.leave(member)

    def _full(self) -> RpcError:
        return RpcError(StatusCode.UNAVAILABLE, f"too many {self._what} at a time")


class Gate:
    """Who may come in. Loop thread only. A call that waits for its login has a place among those that do, and no place
    of those that have one."""

    def __init__(self, clients: Clients, connections: ConnectionShares, slow_reader_s: float) -> None:
        self.clients = clients
        self.slow_reader_s = slow_reader_s
        self.connections = connections
        self.strangers = Strangers(connections.end_stranger, connections.beyond, connections.has_login)
        connections.is_at_work, connections.was_refused = self.strangers.is_at_work, self.strangers.was_refused
        self.logins = Crowd("calls without a login", LOGINS_MAX, LOGINS_OF_ADDRESS_MAX, connections)
        self.calls = Crowd("calls", CALLS_MAX, CALLS_OF_ADDRESS_MAX, connections)
        self.subscriptions = Crowd("subscriptions", SUBSCRIPTIONS_MAX, SUBSCRIPTIONS_OF_ADDRESS_MAX, connections)
        self.sessions = Crowd("sessions of PublishAsync", SESSIONS_MAX, SESSIONS_OF_ADDRESS_MAX, connections)
        self.probes = Crowd("probes", PROBES_MAX, PROBES_OF_ADDRESS_MAX, connections)
        self.watches = Crowd("watches of health", WATCHES_MAX, WATCHES_OF_ADDRESS_MAX, connections)
        self.reads = Crowd("requests that come in", READS_MAX, READS_MAX, connections, waits=True)
        self.answers = Crowd("bytes of answers that are not taken", ANSWERS_BYTES_MAX, ANSWER_BYTES_MAX, connections)
        self.large = Room(LARGE_BYTES_MAX, LARGE_OF_ADDRESS_BYTES_MAX)
        self.probe_reads = Crowd("requests that come in", PROBE_READS_MAX, PROBE_READS_MAX, connections, waits=True)


class Call:
    """One call of a method. `address`: "ip:port" of its client; `host`: what it is counted as. `owner`: whose share it
    counts in: the user's when he is known, until then the host's. `gave_way`: another caller has its place, or its
    room. `give_way`: ends it while it has a place."""

    def __init__(self, gate: Gate, method: str, context: Context) -> None:
        self.method = method
        self.context = context
        self.address = address_of(context.peer())
        gate.connections.called(self.address)
        self.host = network_of(self.address)
        self.owner: Hashable = self.host
        self.gave_way = False
        self.give_way: Callable[[], None] = _has_no_place
        self._gate = gate
        self._credential = Credential()

    async def authenticate(self) -> None:
        """Before anything of the request is read. RpcError."""
        strangers, has_place = self._gate.strangers, False
        try:
            self._credential = credential_of(self.context.invocation_metadata())
            async with self._gate.logins.place(self):
                has_place = True
                with strangers.waiting(self.address):
                    client = await self.client()
        except RpcError as error:
            if error.code is StatusCode.UNAUTHENTICATED:
                strangers.refused(self.address, self.host)
            elif not has_place:
                strangers.in_vain(self.address, self.host)
            raise
        except asyncio.CancelledError:
            strangers.given_up(self.address, self.host)
            raise
        self.owner = client.user_id
        self._gate.connections.logged_in(self.address)

    @property
    def has_login(self) -> bool:
        return self.owner != self.host

    def is_probe(self) -> None:
        """It ends, and needs no login."""
        self._gate.strangers.probed(self.address, self.host)

    def is_unknown(self) -> None:
        """There is no such method."""
        self._gate.strangers.refused(self.address, self.host)

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

    async def read_one(self, kind: type[Request]) -> Request:
        """The request of a call that has one. RpcError."""
        async with (self._gate.reads if self.has_login else self._gate.probe_reads).place(self):
            try:
                async with asyncio.timeout(REQUEST_S):
                    data = await self.context.read()
            except TimeoutError:
                raise RpcError(StatusCode.DEADLINE_EXCEEDED, f"no request within {REQUEST_S:.0f} s") from None
        if not isinstance(data, bytes):
            raise RpcError(StatusCode.INTERNAL, "a call without a request")
        return decoded(kind, data)

    async def write(self, answer: bytes) -> None:
        """An answer that may be large, until its client has taken it. RpcError UNAVAILABLE where no room is free. A
        client that takes it too slowly loses its connection, also when another caller needs the room."""
        whole_s = self._gate.slow_reader_s + len(answer) / _ANSWER_BYTES_PER_S
        async with self._gate.answers.place(self, max(1, len(answer))):
            try:
                async with asyncio.timeout(whole_s):
                    await self.context.write(answer)
            except TimeoutError:
                self._gate.connections.end(self.address)
                raise RpcError(StatusCode.DEADLINE_EXCEEDED, f"the answer was not taken in {whole_s:.0f} s") from None
            except asyncio.CancelledError:
                if self.gave_way:
                    self._gate.connections.end(self.address)
                raise
            except grpc.aio.BaseError:  # the client has ended the call: there is no one to tell
                raise asyncio.CancelledError from None

    async def large_room(self, size: int) -> Large:
        """For a message that is larger than a window, until `leave`. A client that has not taken it after a while loses
        its connection when another user needs the room."""
        taken = size * LARGE_COPIES
        member = await self._gate.large.take(self.owner, self.host, self._give_way_unread, taken, at_work=True)
        return Large(self._gate.large, member, size, self._gate.slow_reader_s + size / LARGE_BYTES_PER_S)

    def _give_way_unread(self) -> None:
        self._gate.connections.end(self.address)
        self.give_way()

    @property
    def line(self) -> tuple[str, str]:
        """Where it waits in lines whose users take turns."""
        return str(self.owner), self.host

    @property
    def login(self) -> tuple[Credential, str]:
        """Calls with the same one act as the same user."""
        return self._credential, self.host

    @property
    def seconds_left(self) -> float | None:
        """None: the call has no deadline."""
        left = self.context.time_remaining()
        return None if left is None else float(left)


class Large:
    """Room of a large message of `size` bytes, which its client takes in `late_s`, or gives way to users with as much
    or more."""

    def __init__(self, room: Room, member: Member, size: int, late_s: float) -> None:
        self._room = room
        self._member = member
        self.size = size
        self._late_s = late_s
        self._begin()

    def _begin(self) -> None:
        self._room.works_for(self._member, GRACE_S)
        self._late = asyncio.get_running_loop().call_later(self._late_s, self._look)

    def _look(self) -> None:
        """The message is late: another user that waits has the room."""
        if not self._member.size:
            return
        if self._room.is_wanted_beside(self._member.owner):
            self._room.leave(self._member)
            self._member.give_way()
        else:
            self._late = asyncio.get_running_loop().call_later(GRACE_S, self._look)

    def again(self) -> None:
        """It is for a further message: its client has taken the one before."""
        self._late.cancel()
        self._begin()

    def leave(self) -> None:
        self._late.cancel()
        self._room.leave(self._member)


def _has_no_place() -> None:
    """A call without a place has nothing that another one could need."""


def decoded(kind: type[Request], data: bytes) -> Request:
    """RpcError as servers of gRPC give it."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise RpcError(StatusCode.INTERNAL, f"grpc: error unmarshalling request: {error}") from None


def address_of(peer: str) -> str:
    """ "ipv6:%5B::1%5D:5" is "[::1]:5"."""
    return urllib.parse.unquote(peer.partition(":")[2])
