"""Handshakes of TLS take turns: one step at a time, then everything else has as long as that took. Networks take turns
among themselves, whichever has how many waiting. A network that takes much in a second comes behind the others: it
has one of four turns while others wait, and everything else then has three times as long
(native/src/net/conn/queue.c).
Handshakes that come by trusted proxies have a line of their own, which takes turns with that of the others: behind a
proxy that passes bytes on, all clients are its address, and none of them is told before its handshake is over. Where
the proxy tells them in front of it (introductions.py), each client is an address as any other one."""

from __future__ import annotations

import asyncio
import ssl
import time
from asyncio import sslproto
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Protocol

from shardd.doors.handshake_counts import HandshakeCounts
from shardd.doors.introductions import Client, host_of
from shardd.doors.taking import Connection
from shardd.doors.unread import WIRE, Unread
from shardd.runtime.networks import network_of_host

PER_ADDRESS: Final = 64  # steps in a second
CPU_PER_ADDRESS_S: Final = 0.25  # that they may take in a second: steps of a hostile client take longer than others
MANY_EVERY: Final = 4  # one of so many turns has the line of the many, so that no line stands for ever
WIRE_BYTES_MAX: Final = 16 << 10  # of records that the kernel has not taken: then no more are made
BEHIND_OTHERS: Final = 3  # times as long as a step of the many took have the others


class Entry:
    """A step that waits for its turn."""

    __slots__ = ("network", "step")

    def __init__(self, network: _Network, step: Callable[[], None]) -> None:
        self.network = network
        self.step = step


_Key = tuple[str, bool]  # the network, and whether it is a trusted proxy
_Line = OrderedDict[_Key, "_Network"]


class _Network:
    """What waits of one network, in the order in which it came. It is in one line as long as something waits."""

    __slots__ = ("entries", "key", "line")

    def __init__(self, key: _Key, line: _Line) -> None:
        self.key = key
        self.entries: OrderedDict[Entry, None] = OrderedDict()
        self.line = line
        line[key] = self

    def move(self, line: _Line) -> None:
        """To the end of that line."""
        del self.line[self.key]
        self.line = line
        line[self.key] = self


class Openings:
    """Loop thread only. `cpu_s`: how much of the CPU this thread has used."""

    def __init__(self, cpu_s: Callable[[], float] = time.thread_time) -> None:
        self.counts = HandshakeCounts()
        self._cpu_s = cpu_s
        self._few: _Line = OrderedDict()
        self._of_proxies: _Line = OrderedDict()
        self._many: _Line = OrderedDict()
        self._waiting: dict[_Key, _Network] = {}
        self._proxies_next = False
        self._before_many = 0  # turns of the others while the many wait
        self._taken: dict[_Key, tuple[int, float]] = {}  # in this second: steps, and their CPU time
        self._second_s = 0.0
        self._next_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Steps without a turn yet."""
        return sum(len(network.entries) for network in self._waiting.values())

    def enter(self, host: str, step: Callable[[], None], *, of_proxy: bool = False) -> Entry:
        """It is called when its turn has come, unless it is left before. `of_proxy`: the host is a trusted proxy."""
        loop = asyncio.get_running_loop()
        key = (network_of_host(host), of_proxy)  # a network stays what it is
        network = self._waiting.get(key)
        if network is None:
            network = self._waiting[key] = _Network(key, self._line_of(key, loop.time()))
        entry = Entry(network, step)
        network.entries[entry] = None
        if self._timer is None:
            self._timer = loop.call_at(self._next_s, self._run)
        return entry

    def leave(self, entry: Entry) -> None:
        """The line keeps nothing of it: what its step holds is as large as a connection."""
        network = entry.network
        if entry in network.entries:
            del network.entries[entry]
            self._drop_if_empty(network)

    def _drop_if_empty(self, network: _Network) -> None:
        if not network.entries:
            del network.line[network.key]
            del self._waiting[network.key]

    def _line_of(self, key: _Key, now_s: float) -> _Line:
        if key[1]:
            return self._of_proxies
        if now_s - self._second_s > 1.0:
            self._second_s = now_s
            self._taken.clear()
        steps, cpu_s = self._taken.get(key, (0, 0.0))
        return self._many if steps >= PER_ADDRESS or cpu_s >= CPU_PER_ADDRESS_S else self._few

    def _run(self) -> None:
        line = self._next_line()
        if not line:  # all have left
            self._timer = None
            return
        loop = asyncio.get_running_loop()
        pause = BEHIND_OTHERS if line is self._many else 1
        key, network = next(iter(line.items()))
        entry, _ = network.entries.popitem(last=False)
        self._drop_if_empty(network)
        began_s = self._cpu_s()
        try:
            entry.step()
        finally:
            took_s = self._cpu_s() - began_s
            if line is not self._of_proxies:
                steps, cpu_s = self._taken.get(key, (0, 0.0))
                self._taken[key] = (steps + 1, cpu_s + took_s)
            if (left := self._waiting.get(key)) is not None:
                left.move(self._line_of(key, loop.time()))
            self._next_s = loop.time() + took_s * pause
            self._timer = loop.call_at(self._next_s, self._run) if self._waiting else None

    def _next_line(self) -> _Line:
        first, second = self._few, self._of_proxies
        if self._proxies_next:
            first, second = second, first
        line = first or second
        if not line or (self._many and self._before_many >= MANY_EVERY - 1):
            self._before_many = 0
            return self._many
        self._before_many = self._before_many + 1 if self._many else 0
        self._proxies_next = line is self._few
        return line


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
        self._entered = self._is_whole = False
        self._waits: Entry | None = None
        self._ssl_reading_paused: bool
        self._sslobj: Any
        self._host = self._counted_as = ""

    def connection_made(self, transport: asyncio.Transport) -> None:
        host = host_of(transport, self._client)
        self._host, self._counted_as = network_of_host(host), self._crowd.counted_as(host)
        self._entered = self._crowd.enter(self._counted_as)
        if self._entered:
            self._openings.counts.begun += 1
        else:
            self._openings.counts.refused += 1
        super().connection_made(transport)
        self._extra[WIRE] = transport
        transport.set_write_buffer_limits(WIRE_BYTES_MAX)
        if not self._entered:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waits is not None:
            self._openings.leave(self._waits)
            self._waits = None
        if self._entered:
            self._entered = False
            self._openings.counts.failed += not self._is_whole
            unread: Unread | None = getattr(self._app_protocol, "unread", None)  # None: its handshake was not over
            self._crowd.leave(self._counted_as, self._transport.get_extra_info("socket"), unread)
        super().connection_lost(exc)
        self._free()

    def _free(self) -> None:
        """What TLS has of the connection goes at once: requests that were under way may refer to it, and be a cycle
        that only the collector finds."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl_buffer, self._ssl_buffer_view = bytearray(), memoryview(b"")
        self._sslobj = None
        self._extra.clear()

    def _do_handshake(self) -> None:
        if not self._incoming.pending:
            super()._do_handshake()
            return
        if self._waits is not None:
            return
        self._transport.pause_reading()
        of_proxy = self._crowd.is_of_proxies(self._counted_as)
        self._waits = self._openings.enter(self._host, self._take_turn, of_proxy=of_proxy)

    def _on_handshake_complete(self, handshake_exc: Exception | None) -> None:
        if handshake_exc is None:
            self._is_whole = True
            self._openings.counts.handshakes += 1
            self._openings.counts.resumed += self._sslobj.session_reused
        super()._on_handshake_complete(handshake_exc)

    def _take_turn(self) -> None:
        self._waits = None
        transport = self._transport
        if transport is None or self._state is not sslproto.SSLProtocolState.DO_HANDSHAKE:
            return
        super()._do_handshake()
        if not transport.is_closing() and not self._ssl_reading_paused:  # by the application, meanwhile
            transport.resume_reading()

    def _control_ssl_reading(self) -> None:
        """While the application reads nothing, nothing is read for it: asyncio would keep 256 KiB of each client."""
        if not self._app_reading_paused or self._state is not sslproto.SSLProtocolState.WRAPPED:
            super()._control_ssl_reading()
        elif not self._ssl_reading_paused:
            self._ssl_reading_paused = True
            self._transport.pause_reading()
