"""The worker's event loop: asyncio whose selector waits inside the native engine (docs/adr/0001-event-loop.md).

asyncio's own descriptors stay in an epoll set; the engine watches that set with an operation of its own and comes
back when something in it is ready, when an event for Python has happened, or when asyncio's next timer is due. Any
asyncio library works.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable

from shardd.engine._native import Engine

Event = tuple[object, ...]  # one of the types ...Event of the engine: what happened, and its facts by name


class EngineSelector(selectors.EpollSelector):
    """`deliver` gets the events of one turn, on the loop thread, before asyncio runs its callbacks."""

    def __init__(self, engine: Engine, deliver: Callable[[list[Event]], None]) -> None:
        super().__init__()
        self._engine = engine
        self._deliver = deliver

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Waits at most `timeout` seconds (None: no limit) for descriptors of asyncio; the engine works meanwhile."""
        timeout_ms = -1 if timeout is None else max(0, math.ceil(timeout * 1000))
        ready, events = self._engine.turn(self.fileno(), timeout_ms)
        if events:
            self._deliver(events)
        return super().select(0) if ready else []


def new_event_loop(engine: Engine, deliver: Callable[[list[Event]], None]) -> asyncio.SelectorEventLoop:
    """A stock asyncio loop on an EngineSelector."""
    return asyncio.SelectorEventLoop(EngineSelector(engine, deliver))
