"""From a request of the engine to its answer: decode, login check, service, encode (docs/protocol/framing.md#checks).
Lives on the loop thread of the worker that holds the connection; the engine keeps the order of the requests of one
connection.
"""

from __future__ import annotations

import logging
from typing import Final

from shardd.dispatch.classic.commands import command_table
from shardd.engine import Engine, RequestEvent
from shardd.metadata import Metadata
from shardd.protocol.codes import ALLOWED_WITHOUT_LOGIN, Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.requests import decode
from shardd.runtime import tracing
from shardd.security import Rule, allowed
from shardd.service.groups import ByEngine
from shardd.service.services import Services

_log = logging.getLogger(__name__)

_USER_CHANGES: Final = frozenset({Code.CREATE_USER, Code.UPDATE_PERMISSIONS})
_LARGE_BYTES: Final = 4096  # of a payload; what small ones cost is the same for everybody


class ClassicDispatcher:
    """Answers every request that the engine hands to Python. Never raises for a request: a fault is status 1."""

    def __init__(self, engine: Engine, metadata: Metadata, services: Services) -> None:
        self._engine = engine
        self._metadata = metadata
        self._services = services
        self._commands: Final = command_table(services)
        self._threads = services.threads

    async def handle(self, request: RequestEvent) -> None:
        """Answers a request through `engine.reply`."""
        connection, code = request.connection, request.code
        try:
            user_id = request.user_id if request.authenticated else None
            reply = await self._answer(connection, code, request.payload, user_id)
        except ShardError as error:
            _log.debug("request %d refused with %d: %s", code, error.status, error)
            tracing.refused(error.status)
            self._engine.reply(connection, error.status, b"", error.close)
        except Exception:
            _log.exception("request %d failed", code)
            self._engine.reply(connection, Status.ERROR)
        else:
            if reply is not None:
                self._engine.reply(connection, Status.OK, reply)

    async def _answer(self, connection: int, code: int, payload: bytes, user_id: int | None) -> bytes | None:
        """None: the engine answers."""
        if len(payload) > _LARGE_BYTES and code in _USER_CHANGES and user_id is not None:
            self._require_rights_over_users(user_id)  # before it costs a long decoding
            request = await self._threads.run(decode, code, payload)
        else:
            request = decode(code, payload)
        if user_id is None and code not in ALLOWED_WITHOUT_LOGIN:
            raise ShardError(Status.UNAUTHENTICATED)
        command = self._commands[code]
        value = await command.execute(self._services.connections.identity(connection, user_id), request)
        if isinstance(value, ByEngine):
            return None
        return await self._threads.run(command.encode, value) if command.is_large(value) else command.encode(value)

    def _require_rights_over_users(self, user_id: int) -> None:
        if not allowed(self._metadata.state, user_id, Rule.MANAGE_USERS):
            raise ShardError(Status.UNAUTHORIZED)
