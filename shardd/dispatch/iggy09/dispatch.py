"""From a request of the engine to its answer, in the dialect of 0.9: operation, login check, decode, service, encode.
The engine has admitted the request: number, session and checksum are right (native/src/wire/iggy09.c)."""

from __future__ import annotations

import logging
from typing import Any, Final

from shardd.dispatch.classic.execution import Execution
from shardd.dispatch.iggy09.commands import READERS, commands_of
from shardd.engine import Engine, RequestEvent
from shardd.metadata import Metadata
from shardd.protocol import iggy09, requests
from shardd.protocol.account_requests import TokenLogin
from shardd.protocol.catalogue import decode
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.iggy09 import EVICTION, Head, Register
from shardd.protocol.primitives import Reader
from shardd.runtime import tracing
from shardd.service.registrations import FencedError
from shardd.service.services import Services

_log = logging.getLogger(__name__)

_OWN_NUMBER: Final = frozenset(iggy09.OPERATIONS.values())
_REASONS: Final = {
    Status.INVALID_CREDENTIALS: iggy09.INVALID_CREDENTIALS,
    Status.INVALID_USERNAME: iggy09.INVALID_CREDENTIALS,
    Status.INVALID_PASSWORD: iggy09.INVALID_CREDENTIALS,
    Status.RESOURCE_NOT_FOUND: iggy09.INVALID_TOKEN,
    Status.PERSONAL_ACCESS_TOKEN_EXPIRED: iggy09.INVALID_TOKEN,
    Status.USER_INACTIVE: iggy09.USER_INACTIVE,
    Status.CLIENT_NOT_FOUND: iggy09.SESSION_ERROR,
}


class _EvictedError(Exception):
    """The answer is an eviction."""

    def __init__(self, reason: int, *, close: bool = False) -> None:
        super().__init__(reason)
        self.status = EVICTION | reason
        self.close = close


class Iggy09Dispatcher:
    """Answers every request that the engine hands to Python. Never raises for a request: a fault is status 1."""

    def __init__(self, engine: Engine, metadata: Metadata, services: Services) -> None:
        self._engine = engine
        self._services = services
        self._commands: Final = commands_of(metadata, services)
        self._execution = Execution(metadata, services.threads)

    async def handle(self, request: RequestEvent) -> None:
        """Answers a request through `engine.reply`."""
        connection, head = request.connection, Head.read(request.payload)
        body = request.payload[iggy09.HEAD_BYTES :]
        try:
            user_id = request.user_id if request.authenticated else None
            reply = await self._answer(connection, head, body, user_id)
        except _EvictedError as evicted:
            self._engine.reply(connection, evicted.status, b"", evicted.close)
        except ShardError as error:
            _log.debug("operation %d refused with %d: %s", head.operation, error.status, error)
            tracing.refused(error.status)
            self._engine.reply(connection, error.status, b"", error.close)
        except Exception:
            _log.exception("operation %d failed", head.operation)
            self._engine.reply(connection, Status.ERROR)
        else:
            if reply is not None:
                self._engine.reply(connection, Status.OK, reply)

    async def _answer(self, connection: int, head: Head, body: bytes, user_id: int | None) -> bytes | None:
        """None: the engine answers."""
        if head.operation == iggy09.REGISTER:
            return await self._register(connection, head.client, body, user_id)
        if head.operation == iggy09.LOGOUT:
            return await self._log_out(connection, user_id)
        code = self._code(head)
        if user_id is None:
            raise ShardError(Status.UNAUTHENTICATED)  # an eviction, unless it is a read
        identity = self._services.connections.identity(connection, user_id)
        request = await self._execution.decoded(identity, code, len(body), lambda: _decode(code, body))
        command = self._commands[code]
        return await self._execution.encoded(command, await command.execute(identity, request))

    def _code(self, head: Head) -> int:
        """The command. `ShardError` 3 unknown, 5 a change that comes as a read."""
        if head.operation != iggy09.NON_REPLICATED:
            found = iggy09.OPERATIONS.get(head.operation)
            if found is None:
                raise ShardError(Status.INVALID_COMMAND, "unknown operation")
            return found
        if head.code in iggy09.CLASSIC_LOGINS:
            raise _EvictedError(iggy09.MALFORMED_LOGIN)
        if head.code in _OWN_NUMBER:
            raise ShardError(Status.FEATURE_UNAVAILABLE, "it has an operation of its own")
        if head.code not in self._commands:
            raise ShardError(Status.INVALID_COMMAND, "unknown code")
        return head.code

    async def _register(self, connection: int, client: bytes, body: bytes, user_id: int | None) -> bytes:
        try:
            login = Register.read(body)
        except ShardError as error:
            raise _EvictedError(iggy09.MALFORMED_LOGIN) from error
        if login.version != iggy09.VERSION:
            raise _EvictedError(iggy09.INCOMPATIBLE_PROTOCOL)
        if user_id is not None:
            await self._log_out(connection, user_id)
        identity = self._services.connections.identity(connection, None)
        try:
            if login.token is not None:
                logged_in = await self._services.logins.login_with_token(identity, TokenLogin(login.token))
            else:
                logged_in = await self._services.logins.login(identity, requests.Login(login.username, login.password))
        except ShardError as error:
            reason = _REASONS.get(error.status)
            if reason is None:
                raise
            raise _EvictedError(reason, close=error.close) from error
        number = await self._enter(connection, client, logged_in.user_id)
        return iggy09.registered(logged_in.user_id, number)

    async def _enter(self, connection: int, client: bytes, user_id: int) -> int:
        """The number of the session that a login has earned. Without one the connection is not logged in."""
        session = self._services.connections.identity(connection, user_id).session
        if session is None or session.removed:
            raise _EvictedError(iggy09.SESSION_ERROR)
        try:
            return await self._services.registrations.enter(session, client, user_id)
        except FencedError:
            reason = iggy09.SESSION_TOO_LOW
        except ShardError:
            reason = iggy09.SESSION_ERROR
        await self._log_out(connection, user_id)
        raise _EvictedError(reason)

    async def _log_out(self, connection: int, user_id: int | None) -> bytes:
        """The session ends with its memberships; the connection stays."""
        identity = self._services.connections.identity(connection, user_id)
        await self._services.logins.logout(identity, requests.Empty())
        if identity.session is not None and user_id is not None:
            self._services.registrations.leave(identity.session, (user_id, identity.incarnation))
        self._services.connections.leave_groups(connection)
        return b""


def _decode(code: int, body: bytes) -> Any:
    read = READERS.get(code)
    return decode(code, body) if read is None else read(Reader(body))
