"""The loop of a door: a turn of it is bounded, and its progress can be told from another thread.

asyncio's own loop runs everything that is ready before it looks at a timer again: 1,000 connections that each have
something costly are one turn of seconds. Here a turn takes up so many events of sockets as took 10 ms of CPU lately, in
rounds: each socket that has something has its place before any other has its second one."""

from __future__ import annotations

import asyncio
import logging
import selectors
import time
from asyncio import sslproto
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

TURN_S: Final = 0.010  # of the loop thread's CPU time
EVENTS_MAX: Final = 64  # of one turn
CALLBACKS_MAX: Final = 64  # of those that were ready before it
ACCEPTS_MAX: Final = 16  # connections of a listener, each of which is some callbacks of the next turns
READ_BYTES_MAX: Final = 16 << 10  # of a stranger, in one event: parsers take up to 2 us for a byte
_log = logging.getLogger(__name__)


class Progress:
    """Moved by the loop; read by any thread. `is_watched`: long turns are counted; before the door serves, each of its
    imports is one."""

    __slots__ = ("count", "is_watched", "long_turns")

    def __init__(self) -> None:
        self.count = self.long_turns = 0
        self.is_watched = False

    def step(self) -> None:
        self.count += 1


class BoundedSelector(selectors.EpollSelector):
    """Tells a part of what is ready; sockets that still have something are told of again (level-triggered)."""

    def __init__(self, progress: Progress, cpu_s: Callable[[], float] = time.thread_time) -> None:
        super().__init__()
        self._progress = progress
        self._cpu_s = cpu_s
        self._events_max = EVENTS_MAX
        self._began_s = cpu_s()
        self._reported_from_s = TURN_S
        self._told: set[int] = set()  # in this round

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._progress.step()
        self._adapt()
        ready = super().select(timeout)
        if len(ready) > self._events_max:
            ready = self._next_of(ready)
        self._began_s = self._cpu_s()
        return ready

    def _adapt(self) -> None:
        used_s = self._cpu_s() - self._began_s
        if used_s > TURN_S:
            self._events_max = max(1, self._events_max // 2)
            if self._progress.is_watched:
                self._count_long_turn(used_s)
        elif used_s < TURN_S / 2:
            self._events_max = min(EVENTS_MAX, self._events_max + 1)

    def _count_long_turn(self, used_s: float) -> None:
        """A turn that is twice as long as the longest one before it is a line of the log: a few lines in all."""
        self._progress.long_turns += 1
        if used_s >= self._reported_from_s:
            self._reported_from_s = 2 * used_s
            words = "a turn of the door computed for %.0f ms; others waited (turns above %.0f ms so far: %d)"
            _log.info(words, used_s * 1000, TURN_S * 1000, self._progress.long_turns)

    def _next_of(self, ready: list[tuple[selectors.SelectorKey, int]]) -> list[tuple[selectors.SelectorKey, int]]:
        waiting = [each for each in ready if each[0].fd not in self._told]
        if not waiting:
            self._told.clear()
            waiting = ready
        told = waiting[: self._events_max]
        self._told.update(key.fd for key, _ in told)
        return told


class BoundedLoop(asyncio.SelectorEventLoop):
    """A turn runs so many of the callbacks that are ready; the others keep their order and come before newer ones."""

    _ready: deque[asyncio.Handle]

    def _run_once(self) -> None:
        ready = self._ready
        later = [ready.pop() for _ in range(len(ready) - CALLBACKS_MAX)]
        try:
            super()._run_once()  # type: ignore[misc]
        finally:
            ready.extendleft(later)

    def _accept_connection(
        self,
        protocol_factory: Any,
        sock: Any,
        sslcontext: Any = None,
        server: Any = None,
        backlog: int = 100,
        *more: Any,
    ) -> None:
        """asyncio takes as many at once as may wait: a flood has every descriptor before one of its connections was
        looked at, and refused."""
        taken = min(backlog, ACCEPTS_MAX)
        super()._accept_connection(protocol_factory, sock, sslcontext, server, taken, *more)  # type: ignore[misc]


def run_bounded(main: Callable[[Progress], Coroutine[Any, Any, None]]) -> None:
    """As asyncio.run."""
    progress = Progress()
    sslproto.SSLProtocol.max_size = READ_BYTES_MAX  # it takes in and opens so much at once, in a buffer of that size
    with asyncio.Runner(loop_factory=lambda: BoundedLoop(BoundedSelector(progress))) as runner:
        runner.run(main(progress))
