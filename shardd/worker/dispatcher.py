"""The dispatcher of a worker, as a protocol: it answers the requests that the engine hands to Python. Implementations
know the bytes on the wire (`shardd/dispatch`); the entry point of a worker makes one and passes it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from shardd.engine import Engine, RequestEvent, RouteMissEvent
from shardd.metadata import Metadata
from shardd.service.services import Services


class RequestHandler(Protocol):
    """Lives on the loop thread of one worker. Never raises for a request."""

    def handle(self, request: RequestEvent) -> Coroutine[Any, Any, None]:
        """Answers a request."""


class Dispatcher(RequestHandler, Protocol):
    """The one of a worker."""

    def route_miss(self, missed: RouteMissEvent) -> Coroutine[Any, Any, None]:
        """Answers a request that has no route, or lets the engine do it."""


MakeDispatcher = Callable[[Engine, Metadata, Services], Dispatcher]
