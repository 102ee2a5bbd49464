"""Handshakes of TLS take turns: one step at a time, then everything else has as long as that took. An address that
opens many in a second comes behind the others, who then have three times as long (native/src/net/conn_queue.c).
Handshakes that come by trusted proxies have a line of their own, which takes turns with that of the others: behind a
proxy that passes bytes on, all clients are its address, and none of them is told before its handshake is over. Where
the proxy tells them in front of it (introductions.py), each client is an address as any other one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from asyncio import sslproto
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from shardd.doors.introductions import Client, host_of
from shardd.doors.taking import Connection
from shardd.doors.unread import WIRE, Unread
from shardd.runtime.networks import network_of_host

PER_ADDRESS: Final = 64  # steps in a second
WIRE_BYTES_MAX: Final = 16 << 10  # of records that the kernel has not taken: then no more are made
BEHIND_OTHERS: Final = 3  # times as long as a step of the many took have the others


class Openings:
    """Loop thread only. `cpu_s`: how much of the CPU this thread has used."""

    def __init__(self, cpu_s: Callable[[], float] = time.thread_time) -> None:
        self._cpu_s = cpu_s
        self._few: deque[Callable[[], None]] = deque()
        self._of_proxies: deque[Callable[[], None]] = deque()
        self._proxies_next = False
        self._many: deque[Callable[[], None]] = deque()
        self._counts: Counter[str] = Counter()
        self._second_s = 0.0
        self._next_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, host: str, step: Callable[[], None], *, of_proxy: bool = False) -> None:
        """It is called when its turn has come. `of_proxy`: the host is a trusted proxy."""
        loop = asyncio.get_running_loop()
        if of_proxy:
            self._of_proxies.append(step)
        else:
            self._line_of(host, loop).append(step)
        if self._timer is None:
            self._timer = loop.call_at(self._next_s, self._run)

    def _line_of(self, host: str, loop: asyncio.AbstractEventLoop) -> deque[Callable[[], None]]:
        if loop.time() - self._second_s > 1.0:
            self._second_s = loop.time()
            self._counts.clear()
        network = network_of_host(host)  # a network stays what it is
        self._counts[network] += 1
        return self._many if self._counts[network] > PER_ADDRESS else self._few

    def _run(self) -> None:
        loop = asyncio.get_running_loop()
        line = self._next_line()
        pause = BEHIND_OTHERS if line is self._many else 1
        step = line.popleft()
        began_s = self._cpu_s()
        try:
            step()
        finally:
            self._next_s = loop.time() + (self._cpu_s() - began_s) * pause
            self._timer = loop.call_at(self._next_s, self._run) if self._is_waited_for() else None

    def _next_line(self) -> deque[Callable[[], None]]:
        first, second = self._few, self._of_proxies
        if self._proxies_next:
            first, second = second, first
        line = first or second or self._many
        if line is not self._many:
            self._proxies_next = line is self._few
        return line

    def _is_waited_for(self) -> bool:
        return bool(self._few or self._of_proxies or self._many)


class Crowd(Protocol):
    """Who is connected, by address."""

    def counted_as(self, host: str) -> str: ...
    def is_of_proxies(self, counted_as: str) -> bool: ...
    def enter(self, host: str) -> bool: ...
    def leave(self, host: str, connection: Connection | None = None, unread: Unread | None = None) -> None: ...


_Tls: Any = sslproto.SSLProtocol  # what it is made of is not public; tests/doors/test_http_handshakes.py holds it


class PacedTls(_Tls):  # type: ignore[misc]
    """What asyncio takes for TLS, but for the turn of its handshake. Nothing is read while that waits. A connection
    counts from the beginning, not from the end of its handshake."""

    def __init__(self, openings: Openings, crowd: Crowd, client: Client | None, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._client = client
        self._openings = openings
        self._crowd = crowd
        self._entered = self._waits = False
        self._host = self._counted_as = ""

    def connection_made(self, transport: asyncio.Transport) -> None:
        host = host_of(transport, self._client)
        self._host, self._counted_as = network_of_host(host), self._crowd.counted_as(host)
        self._entered = self._crowd.enter(self._counted_as)
        super().connection_made(transport)
        self._extra[WIRE] = transport
        transport.set_write_buffer_limits(WIRE_BYTES_MAX)
        if not self._entered:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._entered:
            self._entered = False
            unread: Unread | None = getattr(self._app_protocol, "unread", None)  # None: its handshake was not over
            self._crowd.leave(self._counted_as, self._transport.get_extra_info("socket"), unread)
        super().connection_lost(exc)

    def _do_handshake(self) -> None:
        if not self._incoming.pending:
            super()._do_handshake()
            return
        if self._waits:
            return
        self._waits = True
        self._transport.pause_reading()
        of_proxy = self._crowd.is_of_proxies(self._counted_as)
        self._openings.enter(self._host, self._take_turn, of_proxy=of_proxy)

    def _take_turn(self) -> None:
        self._waits = False
        transport = self._transport
        if transport is None or self._state is not sslproto.SSLProtocolState.DO_HANDSHAKE:
            return
        super()._do_handshake()
        if not transport.is_closing():
            with contextlib.suppress(RuntimeError):  # the application has paused it meanwhile
                transport.resume_reading()
