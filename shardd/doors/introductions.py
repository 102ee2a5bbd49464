"""Connections of trusted proxies before their PROXY protocol header is there: version 2, by the rules of
native/src/wire/proxy_header.c. The header is read to its last byte and no further, in front of everything else, also of
TLS. Then the connection begins as any other one, with the address that was told: clients of a proxy are counted, and
their handshakes paced, as if each of them had come itself.

A place is bounded in number and in time, and the longest wait ends first: proxies send the header with the
connection."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from shardd.doors.asgi_crowd import INTRODUCTIONS

if TYPE_CHECKING:
    from shardd.doors.asgi_crowd import AsgiCrowd
    from shardd.doors.forwarded import TrustedProxies

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
FIXED: Final = struct.Struct(">12sBBH")  # signature, version and command, family and transport, length of the rest
HEADER_BYTES_MAX: Final = 1024  # with what is behind the addresses
REPORT_S: Final = 10.0
_LOCAL: Final = 0x20
_PROXY: Final = 0x21
_ADDRESS_BYTES: Final = (0, 4, 16, 0)  # by family: unspecified, IPv4, IPv6, Unix
_PORT: Final = struct.Struct(">H")
_DATAGRAM: Final = 2
_log = logging.getLogger(__name__)

Client = tuple[str, int]
"""Address and port."""


def read_header(data: bytes) -> tuple[int, Client | None]:
    """How many bytes the header has, as far as `data` tells, and whose the connection is when they are all there; None:
    the proxy's. ValueError: no header begins so."""
    if not SIGNATURE.startswith(data[: len(SIGNATURE)]):
        raise ValueError("not a PROXY protocol header of version 2")
    if len(data) < FIXED.size:
        return FIXED.size, None
    _, command, kind, rest = FIXED.unpack_from(data)
    family, transport, length = kind >> 4, kind & 15, FIXED.size + rest
    if command not in (_LOCAL, _PROXY) or family >= len(_ADDRESS_BYTES) or transport > _DATAGRAM:
        raise ValueError("an unknown command, family or transport")
    size = _ADDRESS_BYTES[family] if command == _PROXY and transport else 0
    addresses_end = FIXED.size + (2 * (size + _PORT.size) if size else 0)
    if not addresses_end <= length <= HEADER_BYTES_MAX or (size and transport == _DATAGRAM):
        raise ValueError("a header that is too short or too long, or of a datagram")
    if not size or len(data) < length:
        return length, None
    source = ipaddress.ip_address(data[FIXED.size : FIXED.size + size])
    mapped = source.ipv4_mapped if isinstance(source, ipaddress.IPv6Address) else None
    return length, (str(mapped or source), _PORT.unpack_from(data, FIXED.size + 2 * size)[0])


def host_of(transport: asyncio.BaseTransport, client: Client | None) -> str:
    """Of the client that was told, else of the peer."""
    peer: tuple[str, ...] = transport.get_extra_info("peername", ("",))
    return peer[0] if client is None else client[0]


class Introductions:
    """Loop thread only. `begin`: makes what serves a connection whose address is known; None: its own one."""

    def __init__(
        self,
        proxies: TrustedProxies,
        crowd: AsgiCrowd,
        timeout_s: float,
        begin: Callable[[Client | None], asyncio.BaseProtocol],
    ) -> None:
        self.proxies = proxies
        self.timeout_s = timeout_s
        self.begin = begin
        self._crowd = crowd
        self._waiting: dict[Introduction, None] = {}
        self._refused = 0
        self._reported_s = 0.0

    def accept(self) -> asyncio.BaseProtocol:
        return Introduction(self) if self.proxies else self.begin(None)

    def enter(self, introduction: Introduction) -> bool:
        """False: all connections are taken, and none of them waits here."""
        while not self._crowd.enter(INTRODUCTIONS):
            if not self._waiting:
                return False
            next(iter(self._waiting)).refuse()
        self._waiting[introduction] = None
        return True

    def leave(self, introduction: Introduction) -> None:
        if introduction in self._waiting:
            del self._waiting[introduction]
            self._crowd.leave(INTRODUCTIONS)

    def refused(self) -> None:
        self._refused += 1

    def report(self, now_s: float) -> None:
        """Every now and then: one line for many of them."""
        if self._refused and now_s - self._reported_s >= REPORT_S:
            _log.warning(
                "%d connections of trusted proxies closed: no PROXY protocol header, version 2, came in time",
                self._refused,
            )
            self._refused, self._reported_s = 0, now_s


class Introduction(asyncio.Protocol):
    """One connection, until its address is known."""

    def __init__(self, introductions: Introductions) -> None:
        self._all = introductions
        self._header = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        if not self._all.proxies.has(host_of(transport, None)):
            self._begin(None)
        elif self._all.enter(self):
            self._timer = asyncio.get_running_loop().call_later(self._all.timeout_s, self.refuse)
            self._want(FIXED.size)
        else:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._header += data
        try:
            length, client = read_header(self._header)
        except ValueError:
            self.refuse()
            return
        if len(self._header) < length:
            self._want(length - len(self._header))
        else:
            self._leave()
            self._begin(client)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def refuse(self) -> None:
        """Without an answer."""
        self._all.refused()
        self._leave()
        self._transport.abort()

    def _want(self, size: int) -> None:
        self._transport.max_size = size  # type: ignore[attr-defined]  # of what is read at once

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._all.leave(self)

    def _begin(self, client: Client | None) -> None:
        protocol = self._all.begin(client)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
