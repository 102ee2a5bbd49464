"""Who is connected to an ASGI application, by address, and how many may be."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from shardd.doors.forwarded import PROXIES, TrustedProxies
from shardd.doors.taking import Connection, Taking, is_reset, left_of, reset_at_close
from shardd.doors.unread import Unread
from shardd.runtime.networks import network_of_host

INTRODUCTIONS: Final = "introductions"
"""What sockets are counted as whose PROXY protocol header is not whole: not a text that an address has."""
INTRODUCTIONS_MAX: Final = 1024
INTRODUCTIONS_SHARE: Final = 4  # of all connections


class AsgiLimits(msgspec.Struct, frozen=True):
    """`head_timeout_s`: for a whole head, counted from its first byte or from the connection. `slow_reader_timeout_s`:
    for a client that takes nothing of what is written (taking.py). `proxies`: networks whose hosts speak for their
    clients (forwarded.py); `introducing`: networks whose connections begin with a PROXY protocol header
    (introductions.py)."""

    connections_max: int = 1024
    connections_per_address_max: int = 256
    head_bytes_max: int = 32 << 10
    head_timeout_s: float = 10.0
    keep_alive_s: int = 60
    slow_reader_timeout_s: float = 30.0
    proxies: tuple[str, ...] = ()
    introducing: tuple[str, ...] = ()


class AsgiCrowd:
    """Who is connected, by address. A connection counts until its client has what was written to it."""

    def __init__(self, limits: AsgiLimits) -> None:
        self._limits = limits
        self._proxies = TrustedProxies(limits.proxies)
        self._of: Counter[str] = Counter()
        self._all = 0
        self._lingering: dict[socket.socket, tuple[str, Taking, Unread | None]] = {}

    def counted_as(self, host: str) -> str:
        """What `enter` and `leave` call it. Connections of trusted proxies have the places that any address may have
        at most: their clients are told apart by request."""
        return PROXIES if self._proxies.has(host) else network_of_host(host)

    def is_of_proxies(self, counted_as: str) -> bool:
        return counted_as == PROXIES

    def enter(self, host: str) -> bool:
        if self._all >= self._limits.connections_max or self._of[host] >= self._max_of(host):
            return False
        self._all += 1
        self._of[host] += 1
        return True

    def _max_of(self, host: str) -> int:
        if host == PROXIES:
            return _of_proxies(self._limits)
        if host == INTRODUCTIONS:
            return introductions_of(self._limits)
        return self._limits.connections_per_address_max

    def leave(self, host: str, connection: Connection | None = None, unread: Unread | None = None) -> None:
        """`connection`: as its transport closes it. `unread`: what has its room for as long as it counts."""
        if connection is None or not self._lingers(host, connection, unread):
            self._left(host, unread)

    def _lingers(self, host: str, connection: Connection, unread: Unread | None) -> bool:
        """Whether it goes on as a descriptor that is closed once its client has everything. One that was reset
        cannot be shut down: its bytes stay in the kernel, but there is no client for them."""
        descriptor = connection.fileno()
        if descriptor < 0 or not left_of(descriptor) or is_reset(connection):
            return False
        try:
            rest = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            return False
        try:
            rest.shutdown(socket.SHUT_WR)
        except OSError:
            rest.close()
            return False
        self._lingering[rest] = host, Taking(self._limits.slow_reader_timeout_s), unread
        if unread is not None:
            unread.linger(rest, lambda: self._end(rest, late=True))
        return True

    def look(self, now_s: float) -> Iterator[None]:
        """At what is left of connections that are closed, one in each step."""
        for rest, (_, taking, unread) in [*self._lingering.items()]:
            yield
            if rest not in self._lingering:
                continue  # it gave way to another one
            late = taking.is_late(rest, now_s)
            if late or taking.since_s is None:
                self._end(rest, late=late)
            elif unread is not None:
                unread.look(has_everything=False)

    def _end(self, rest: socket.socket, *, late: bool) -> None:
        host, _, unread = self._lingering.pop(rest)
        if late:
            reset_at_close(rest)
        rest.close()
        self._left(host, unread)

    def _left(self, host: str, unread: Unread | None = None) -> None:
        if unread is not None:
            unread.leave()
        self._all -= 1
        self._of[host] -= 1
        if not self._of[host]:
            del self._of[host]


def requests_of_client(limits: AsgiLimits) -> int:
    """That one client behind the proxies may have at work: it leaves others a tenth of their connections."""
    return min(limits.connections_per_address_max, max(1, _of_proxies(limits) * 9 // 10))


def _of_proxies(limits: AsgiLimits) -> int:
    """Connections that all trusted proxies have together at most."""
    return max(limits.connections_per_address_max, limits.connections_max * 9 // 10)


def introductions_of(limits: AsgiLimits) -> int:
    """Sockets whose header is not whole, at a time."""
    return max(1, min(INTRODUCTIONS_MAX, limits.connections_max // INTRODUCTIONS_SHARE))
