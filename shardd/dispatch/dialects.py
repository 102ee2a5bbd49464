"""All dialects of the listener as one dispatcher: each request goes to the dispatcher of the dialect in which it came.
They share services; what a request without a route needs is the same for all of them."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from shardd.dispatch.classic.dispatch import ClassicDispatcher
from shardd.dispatch.iggy09.dispatch import Iggy09Dispatcher
from shardd.dispatch.legacy.dispatch import LegacyDispatcher
from shardd.dispatch.legacy.unnamed import UnnamedDispatcher
from shardd.engine import DIALECT_CLASSIC, DIALECT_IGGY09, DIALECT_UNNAMED, Engine, RequestEvent, RouteMissEvent
from shardd.metadata import Metadata
from shardd.protocol.catalogue import COMMANDS, command_name
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.legacy.generations import GENERATIONS, generation_of_login, is_versioned_login
from shardd.protocol.primitives import Reader
from shardd.runtime import tracing
from shardd.security import Rule
from shardd.service.identity import Identity
from shardd.service.services import Services
from shardd.worker.dispatcher import RequestHandler

_log = logging.getLogger(__name__)

_SENDS: Final = frozenset(code for code, entry in COMMANDS.items() if entry.in_engine)


async def _traced(answering: Coroutine[Any, Any, None], request: RequestEvent) -> None:
    who = {"user_id": request.user_id, "connection": request.connection, "dialect": request.dialect}
    with tracing.span(command_name(request.code).lower(), "", **who):
        await answering


class Dialects:
    """Never raises for a request."""

    def __init__(self, engine: Engine, metadata: Metadata, services: Services) -> None:
        self._engine = engine
        self._services = services
        self._legacy = LegacyDispatcher(engine, metadata, services)
        self._tells_generations = services.listener.dialect == "auto"
        classic = ClassicDispatcher(engine, metadata, services)
        self._handlers: Final[Mapping[int, RequestHandler]] = {
            DIALECT_CLASSIC: classic,
            DIALECT_UNNAMED: UnnamedDispatcher(engine, services, classic, self._legacy),
            DIALECT_IGGY09: Iggy09Dispatcher(engine, metadata, services),
            **dict.fromkeys(GENERATIONS, self._legacy),
        }

    def handle(self, request: RequestEvent) -> Coroutine[Any, Any, None]:
        """Answers a request."""
        answering = self._answering(request)
        return answering if tracing.current() is None else _traced(answering, request)

    def _answering(self, request: RequestEvent) -> Coroutine[Any, Any, None]:
        """Who logs in tells which generation it is."""
        if request.dialect == DIALECT_CLASSIC and not request.authenticated and self._tells_generations:
            generation = generation_of_login(request.code, request.payload)
            if generation is not None:
                return self._legacy.handle_as(generation, request)
        if request.dialect in GENERATIONS and is_versioned_login(request.code, request.payload):
            generation = generation_of_login(request.code, request.payload)
            if generation is not None:
                return self._legacy.handle_as(generation, request)
            self._engine.speak(request.connection, DIALECT_CLASSIC)
            return self._handlers[DIALECT_CLASSIC].handle(request)
        return self._handlers[request.dialect].handle(request)

    async def route_miss(self, missed: RouteMissEvent) -> None:
        """Fills the route table and resumes the connection, or refuses its request."""
        connection, code = missed.connection, missed.code
        self._services.members.polled(connection, 0, 0)  # a group poll, if it is one, starts over
        try:
            names = Reader(missed.stream).identifier(), Reader(missed.topic).identifier()
            rule = Rule.SEND_MESSAGES if code in _SENDS else Rule.POLL_MESSAGES
            written = missed.stream, missed.topic
            await self._services.routes.enter(Identity(missed.user_id), rule, names, written, missed.attempt)
        except ShardError as error:
            _log.debug("request %d refused with %d: %s", code, error.status, error)
            self._engine.reply(connection, error.status)
        except Exception:
            _log.exception("no route for request %d", code)
            self._engine.reply(connection, Status.ERROR)
        else:
            self._engine.resume(connection)
