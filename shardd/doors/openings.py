"""Handshakes of TLS take turns: one step at a time, then everything else has as long as that took. An address that
opens many in a second comes behind the others, who then have three times as long (native/src/net/conn_queue.c)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from asyncio import sslproto
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from shardd.doors.taking import Connection
from shardd.runtime.networks import network_of_host

PER_ADDRESS: Final = 64  # steps in a second
BEHIND_OTHERS: Final = 3  # times as long as a step of the many took have the others


class Openings:
    """Loop thread only. `cpu_s`: how much of the CPU this thread has used."""

    def __init__(self, cpu_s: Callable[[], float] = time.thread_time) -> None:
        self._cpu_s = cpu_s
        self._few: deque[Callable[[], None]] = deque()
        self._many: deque[Callable[[], None]] = deque()
        self._counts: Counter[str] = Counter()
        self._second_s = 0.0
        self._next_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, host: str, step: Callable[[], None]) -> None:
        """It is called when its turn has come."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._second_s > 1.0:
            self._second_s = loop.time()
            self._counts.clear()
        network = network_of_host(host)  # a network stays what it is
        self._counts[network] += 1
        (self._many if self._counts[network] > PER_ADDRESS else self._few).append(step)
        if self._timer is None:
            self._timer = loop.call_at(self._next_s, self._run)

    def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pause = 1 if self._few else BEHIND_OTHERS
        step = (self._few or self._many).popleft()
        began_s = self._cpu_s()
        try:
            step()
        finally:
            self._next_s = loop.time() + (self._cpu_s() - began_s) * pause
            self._timer = loop.call_at(self._next_s, self._run) if self._few or self._many else None


class Crowd(Protocol):
    """Who is connected, by address."""

    def counted_as(self, host: str) -> str: ...
    def enter(self, host: str) -> bool: ...
    def leave(self, host: str, connection: Connection | None = None) -> None: ...


_Tls: Any = sslproto.SSLProtocol  # what it is made of is not public; tests/doors/test_http_handshakes.py holds it


class PacedTls(_Tls):  # type: ignore[misc]
    """What asyncio takes for TLS, but for the turn of its handshake. Nothing is read while that waits. A connection
    counts from the beginning, not from the end of its handshake."""

    def __init__(self, openings: Openings, crowd: Crowd, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._openings = openings
        self._crowd = crowd
        self._entered = self._waits = False
        self._host = self._counted_as = ""

    def connection_made(self, transport: asyncio.Transport) -> None:
        host = transport.get_extra_info("peername", ("",))[0]
        self._host, self._counted_as = network_of_host(host), self._crowd.counted_as(host)
        self._entered = self._crowd.enter(self._counted_as)
        super().connection_made(transport)
        if not self._entered:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._entered:
            self._entered = False
            self._crowd.leave(self._counted_as, self._transport.get_extra_info("socket"))
        super().connection_lost(exc)

    def _do_handshake(self) -> None:
        if not self._incoming.pending:
            super()._do_handshake()
            return
        if self._waits:
            return
        self._waits = True
        self._transport.pause_reading()
        self._openings.enter(self._host, self._take_turn)

    def _take_turn(self) -> None:
        self._waits = False
        transport = self._transport
        if transport is None or self._state is not sslproto.SSLProtocolState.DO_HANDSHAKE:
            return
        super()._do_handshake()
        if not transport.is_closing():
            with contextlib.suppress(RuntimeError):  # the application has paused it meanwhile
                transport.resume_reading()
