"""From a request of the engine to its answer, in the classic dialect. Lives on the loop thread of the worker that holds
the connection; the engine keeps the order of the requests of one connection."""

from __future__ import annotations

import logging

from shardd.dispatch.classic.execution import ClassicCommands
from shardd.engine import Engine, RequestEvent
from shardd.metadata import Metadata
from shardd.protocol.errors import ShardError, Status
from shardd.runtime import tracing
from shardd.service.services import Services

_log = logging.getLogger(__name__)


class ClassicDispatcher:
    """Answers every request that the engine hands to Python. Never raises for a request: a fault is status 1."""

    def __init__(self, engine: Engine, metadata: Metadata, services: Services) -> None:
        self._engine = engine
        self._connections = services.connections
        self._commands = ClassicCommands(metadata, services)

    async def handle(self, request: RequestEvent) -> None:
        """Answers a request through `engine.reply`."""
        connection, code = request.connection, request.code
        try:
            user_id = request.user_id if request.authenticated else None
            identity = self._connections.identity(connection, user_id)
            reply = await self._commands.run(identity, code, request.payload)
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
