"""The worker's event loop: asyncio whose selector waits inside the native engine (docs/adr/0001-event-loop.md).

asyncio's own descriptors stay in an epoll set; the engine watches that set with an operation of its own and comes
back when something in it is ready, when an event for Python has happened, or when asyncio's next timer is due. Any
asyncio library works.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections import deque
from collections.abc import Callable
from typing import Protocol

from shardd.engine._native import Engine

Event = tuple[object, ...]  # one of the types ...Event of the engine: what happened, and its facts by name


class StepWatch(Protocol):
    """Who looks how long the steps of a loop take."""

    def begin(self, step: object, /) -> None:
        """The step before has ended. `step`: a callback of asyncio, a list of events; None: what follows is none."""

    def engine_turn(self, longest_us: int, /) -> None:
        """The engine computed for so long between two looks at what is due."""


class EngineSelector(selectors.EpollSelector):
    """`deliver` gets the events of one turn, on the loop thread, before asyncio runs its callbacks."""

    def __init__(self, engine: Engine, deliver: Callable[[list[Event]], None], watch: StepWatch) -> None:
        super().__init__()
        self._engine = engine
        self._deliver = deliver
        self._watch = watch

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Waits at most `timeout` seconds (None: no limit) for descriptors of asyncio; the engine works meanwhile."""
        timeout_ms = -1 if timeout is None else max(0, math.ceil(timeout * 1000))
        self._watch.begin(None)
        ready, events, longest_us = self._engine.turn(self.fileno(), timeout_ms)
        if longest_us:
            self._watch.engine_turn(longest_us)
        if events:
            self._watch.begin(events)
            self._deliver(events)
        self._watch.begin(None)
        return super().select(0) if ready else []


_first = deque[asyncio.Handle].popleft


class _Ready(deque[asyncio.Handle]):
    """The callbacks of asyncio that are due. It takes one and runs it at once: so the one before has ended."""

    def __init__(self, watch: StepWatch) -> None:
        super().__init__()
        self._begin = watch.begin

    def popleft(self) -> asyncio.Handle:
        handle = _first(self)
        # now: a callback may cancel its own handle, which forgets it then
        self._begin(handle._callback)  # type: ignore[attr-defined]
        return handle


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, selector: EngineSelector, watch: StepWatch) -> None:
        super().__init__(selector)
        self._ready = _Ready(watch)  # of asyncio's BaseEventLoop; tests/unit/test_loop_watch.py sees when it is not


def new_event_loop(
    engine: Engine, deliver: Callable[[list[Event]], None], watch: StepWatch
) -> asyncio.SelectorEventLoop:
    """A stock asyncio loop on an EngineSelector; `watch` is told of every step."""
    return _Loop(EngineSelector(engine, deliver, watch), watch)
