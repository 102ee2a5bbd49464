"""Connections of a listener that lets clients without a login act as a user (docs/protocol/legacy.md#anonymous), until
their first request has told who they are. They speak another dialect from then on."""

from __future__ import annotations

import logging
from typing import Final

from shardd.dispatch.legacy.dispatch import LegacyDispatcher
from shardd.engine import DIALECT_CLASSIC, Engine, RequestEvent
from shardd.protocol.catalogue import ALLOWED_WITHOUT_LOGIN
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.legacy.generations import OLD_LOGIN, generation_of_login, is_before_final_codes, release_of
from shardd.service.services import Services
from shardd.worker.dispatcher import RequestHandler

_log = logging.getLogger(__name__)


class UnnamedDispatcher:
    """Never raises for a request."""

    def __init__(self, engine: Engine, services: Services, classic: RequestHandler, legacy: LegacyDispatcher) -> None:
        self._engine = engine
        self._services = services
        self._classic, self._legacy = classic, legacy
        self._release: Final = release_of(services.legacy.anonymous_release)

    async def handle(self, request: RequestEvent) -> None:
        """A login tells as everywhere. A SEND is not here yet: the engine asks who sends it, and goes on."""
        connection, code = request.connection, request.code
        generation = generation_of_login(code, request.payload)
        if generation is not None:
            await self._legacy.handle_as(generation, request)
            return
        logs_in = code in ALLOWED_WITHOUT_LOGIN or (code == OLD_LOGIN and request.payload)
        if not logs_in and is_before_final_codes(code, request.payload):
            self._engine.reply(connection, Status.INVALID_COMMAND, b"", True)
            return
        user_id = None if logs_in else self._enter(connection)
        self._engine.speak(connection, DIALECT_CLASSIC if user_id is None else self._release.number)
        if code == Code.SEND_MESSAGES:
            self._engine.resume(connection)
        elif user_id is None:
            await self._classic.handle(request)
        else:
            await self._legacy.handle_as(self._release, request, user_id)

    def _enter(self, connection: int) -> int | None:
        try:
            return self._services.logins.enter_anonymous(self._services.connections.identity(connection, None))
        except ShardError as error:
            _log.debug("connection %d cannot act as the anonymous user: %s", connection, error)
            return None
