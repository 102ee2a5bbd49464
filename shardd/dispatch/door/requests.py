"""Carries out each kind of request of a door. A door names its clients and the handles that it was given, never a user:
the worker takes the user from the session of the client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from shardd.dispatch.door.clients import ClientRecord, DoorClients
from shardd.dispatch.door.commands import LIFTBRIDGE, REFUSED, USER_CHANGES, DoorCommand, request_bytes_max
from shardd.dispatch.door.tasks import DoorTask, run_task
from shardd.dispatch.door.values import encode_value, keep_encoded
from shardd.protocol import account_requests, door_figures, requests
from shardd.protocol.account_replies import LoggedIn as LoggedInUser
from shardd.protocol.door_figures import What
from shardd.protocol.door_frames import (
    ANSWER_BYTES_MAX,
    CloseClient,
    Command,
    Figures,
    LoggedIn,
    Login,
    LoginBySetting,
    LoginWithAccessToken,
    LoginWithToken,
    Logout,
    OpenClient,
    Request,
    Task,
)
from shardd.protocol.errors import ShardError, Status
from shardd.runtime import tracing
from shardd.security import Rule
from shardd.service import base
from shardd.service.groups import ByEngine
from shardd.service.identity import Identity
from shardd.worker.doors import DoorParts

_LARGE_BYTES: Final = 4096  # of a request; what small ones cost is the same for everybody
_NIL: Final = encode_value(None)
Said = TypeVar("Said")


class DoorFunctions(msgspec.Struct, frozen=True):
    """What doors may ask a worker for, by name."""

    commands: dict[str, DoorCommand]
    tasks: dict[str, DoorTask]


class RequestHandler:
    """Of one connection of a door. Lives on the loop thread."""

    def __init__(self, door: str, clients: DoorClients, parts: DoorParts, functions: DoorFunctions) -> None:
        self._door = door
        self._clients = clients
        self._parts = parts
        self._functions = functions

    def client_of(self, request: Request) -> ClientRecord | None:
        """The client that a request names, or `ShardError` 100 or 40."""
        if isinstance(request, Command | Logout):
            return self._of_handle(request.handle)
        if isinstance(request, CloseClient | Login | LoginWithToken | LoginWithAccessToken | LoginBySetting):
            return self._clients.get(request.client)
        return None

    async def handle(self, request: Request, named: ClientRecord | None) -> bytes:
        """The answer in MessagePack, or `ShardError`. `named`: whom `client_of` has found."""
        match request:
            case OpenClient():
                return encode_value(self._clients.open(request.address).number)
            case CloseClient():
                self._clients.close(self._clients.get(request.client))
                return _NIL
            case Login():
                said = requests.Login(request.username, request.password)
                return await self._login(request.client, self._parts.services.logins.login, said)
            case LoginWithToken():
                token = account_requests.TokenLogin(request.token)
                return await self._login(request.client, self._parts.services.logins.login_with_token, token)
            case LoginWithAccessToken():
                token = account_requests.TokenLogin(request.token)
                return await self._login(request.client, self._parts.services.logins.login_with_bearer, token)
            case LoginBySetting():
                if self._door != LIFTBRIDGE:
                    raise ShardError(Status.UNAUTHORIZED, f"no login by a setting for door {self._door}")
                return await self._login(request.client, self._parts.services.logins.login_by_setting, request.purpose)
            case Logout() if named is not None:
                await self._parts.services.logins.logout(named.identity(), requests.Empty())
                self._clients.logged_out(named)
                return _NIL
            case Command() if named is not None:
                return await self._command(request, named)
            case Figures():
                return encode_value(await self._figures(request.what))
            case Task():
                return _answer(await run_task(self._functions.tasks, self._door, request))
        raise ShardError(Status.INVALID_COMMAND)

    def _of_handle(self, handle: int) -> ClientRecord:
        """`ShardError` 40 also when the login rests on a token that has ended."""
        client = self._clients.of_handle(handle)
        if not self._parts.services.access_tokens.holds(client.session):
            raise ShardError(Status.UNAUTHENTICATED, "its token has ended")
        return client

    async def _login(
        self, number: int, login: Callable[[Identity, Said], Awaitable[LoggedInUser]], said: Said
    ) -> bytes:
        client = self._clients.get(number)
        if client.logging_in:
            raise ShardError(Status.INVALID_COMMAND, "a login of this client is under way")
        client.logging_in = True
        try:
            user = await login(client.identity(), said)
        finally:
            client.logging_in = False
        return encode_value(LoggedIn(self._clients.logged_in(client), user.user_id, client.identity().owner))

    async def _figures(self, what: What) -> object:
        if what not in door_figures.ALLOWED.get(self._door, ()):
            raise ShardError(Status.UNAUTHORIZED, f"no figures of that kind for door {self._door}")
        figures = self._parts.services.figures
        match what:
            case What.SHARD:
                return figures.of_shard()
            case What.COUNTS:
                return await figures.counts()
            case What.TOPICS:
                return await figures.topics(keep_encoded)
            case What.GROUPS:
                return await figures.groups(keep_encoded)

    async def _command(self, request: Command, client: ClientRecord) -> bytes:
        command = self._functions.commands.get(request.name)
        if command is not None and command.door not in ("", self._door):
            raise ShardError(Status.UNAUTHORIZED, f"no command of door {self._door}")
        if command is None:
            status = Status.FEATURE_UNAVAILABLE if request.name in REFUSED else Status.INVALID_COMMAND
            raise ShardError(status, "no command of doors")
        identity, size = client.identity(), memoryview(request.request).nbytes
        if size > _LARGE_BYTES and request.name in USER_CHANGES:
            base.require(self._parts.metadata.state, identity, Rule.MANAGE_USERS)
        if size > request_bytes_max(request.name):
            raise ShardError(Status.INVALID_COMMAND, f"a request of {size} bytes")
        with tracing.span(request.name, request.trace, user_id=identity.user_id or 0, door=self._door):
            value = await command.execute(identity, command.decode(request.request))
        if isinstance(value, ByEngine):
            raise RuntimeError(f"{request.name} was left to the engine, which has no such connection")
        return _answer(value)


def _answer(value: object) -> bytes:
    answer = encode_value(value)
    if len(answer) > ANSWER_BYTES_MAX // 2:
        raise ShardError(Status.CANNOT_SERIALIZE_RESOURCE, f"an answer of {len(answer)} bytes")
    return answer
