"""Who answers the requests that the engine hands to Python, as a protocol: a transport, which knows what is on the
wire. Whoever starts a worker gives it one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from shardd.engine import Engine
from shardd.metadata import Metadata
from shardd.service.services import Services


class Dispatcher(Protocol):
    """Lives on the loop thread of one worker. Never raises for a request."""

    async def handle(self, connection: int, code: int, payload: bytes, user_id: int, authenticated: bool) -> None:
        """Answers one EVENT_REQUEST."""

    async def route_miss(
        self,
        connection: int,
        code: int,
        stream_identifier: bytes,
        topic_identifier: bytes,
        user_id: int,
        attempt: int,
    ) -> None:
        """Answers one EVENT_ROUTE_MISS."""


MakeDispatcher = Callable[[Engine, Metadata, Services], Dispatcher]
