"""PROXY protocol headers in front of connections of a door."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardd.doors.asgi_crowd import INTRODUCTIONS, AsgiCrowd, AsgiLimits, introductions_of
from shardd.doors.forwarded import TrustedProxies
from shardd.doors.introductions import HEADER_BYTES_MAX, Client, Introduction, Introductions, read_header
from shardd.doors.openings import Entry, Openings, PacedTls
from tests.server.test_tls_handshakes import hello
from tests.support import proxy
from tests.support.on_loop import on_loop

V4 = proxy.header("192.0.2.1", b"tlv")
V6 = proxy.header("2001:db8::7")


def changed(header: bytes, at: int, to: bytes) -> bytes:
    return header[:at] + to + header[at + len(to) :]


@pytest.mark.parametrize(
    ("header", "client"),
    [
        (V4, ("192.0.2.1", proxy.CLIENT_PORT)),
        (V6, ("2001:db8::7", proxy.CLIENT_PORT)),
        (proxy.header("::ffff:192.0.2.1"), ("192.0.2.1", proxy.CLIENT_PORT)),
        (proxy.LOCAL, None),
        (changed(V4, 12, b"\x20"), None),
        (changed(V4, 13, b"\x00"), None),
        (changed(V4, 13, b"\x10"), None),
        (changed(V4, 13, b"\x31"), None),
        (proxy.header("192.0.2.1", bytes(HEADER_BYTES_MAX - 28)), ("192.0.2.1", proxy.CLIENT_PORT)),
    ],
)
def test_header_tells_the_client_when_it_is_whole(header: bytes, client: Client | None) -> None:
    for length in range(len(header)):
        wanted, told = read_header(header[:length])
        assert length < wanted <= len(header) and told is None
    assert read_header(header) == (len(header), client)


@pytest.mark.parametrize(
    "header",
    [
        b"GET / HTTP/1.1\r\n",
        b"PROXY TCP4 192.0.2.1",
        changed(V4, 12, b"\x31"),
        changed(V4, 12, b"\x22"),
        changed(V4, 13, b"\x41"),
        changed(V4, 13, b"\x13"),
        changed(V4, 13, b"\x12"),
        changed(V4, 14, b"\x00\x0b"),
        changed(V6, 14, b"\x00\x23"),
        proxy.header("192.0.2.1", bytes(HEADER_BYTES_MAX - 27)),
    ],
)
def test_malformed_header_is_refused(header: bytes) -> None:
    with pytest.raises(ValueError, match=r"header|command"):
        read_header(header[:16])


@given(st.binary(max_size=64), st.booleans())
def test_header_of_any_bytes_asks_for_more_or_ends(data: bytes, signed: bool) -> None:
    data = proxy.SIGNATURE + data if signed else data
    try:
        wanted, client = read_header(data)
    except ValueError:
        return
    assert wanted <= HEADER_BYTES_MAX and (client is None or wanted <= len(data))


class Transport(asyncio.Transport):
    """Of a peer that sends what a test says."""

    def __init__(self, host: str) -> None:
        super().__init__({"peername": (host, 1), "socket": None})
        self.protocol: asyncio.BaseProtocol | None = None
        self.max_size = 0
        self.closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        """Until the handshake has its turn, which is noted only."""


def introduced(introductions: Introductions, host: str = proxy.PROXY_HOST) -> tuple[Any, Transport]:
    connection, transport = introductions.accept(), Transport(host)
    connection.connection_made(transport)
    return connection, transport


def introductions_for(limits: AsgiLimits, begun: list[Client | None]) -> tuple[Introductions, AsgiCrowd]:
    def begin(client: Client | None) -> asyncio.BaseProtocol:
        begun.append(client)
        return asyncio.Protocol()

    crowd = AsgiCrowd(limits)
    return Introductions(TrustedProxies((f"{proxy.PROXY_HOST}/32",)), crowd, 600.0, begin), crowd


@on_loop
async def test_connection_begins_behind_the_last_byte_of_its_header() -> None:
    begun = list[Client | None]()
    introductions, _ = introductions_for(AsgiLimits(), begun)
    connection, transport = introduced(introductions)
    assert transport.max_size == 16
    connection.data_received(V4[:16])
    assert transport.max_size == len(V4) - 16 and not begun
    connection.data_received(V4[16:])
    assert begun == [("192.0.2.1", proxy.CLIENT_PORT)] and transport.protocol is not connection
    _, other = introduced(introductions, "127.0.0.3")
    assert begun[1:] == [None] and other.protocol is not None


@on_loop
async def test_longest_wait_for_a_header_ends_when_places_are_wanted() -> None:
    begun, limits = list[Client | None](), AsgiLimits(connections_max=16)
    introductions, crowd = introductions_for(limits, begun)
    places = introductions_of(limits)
    waiting = [introduced(introductions) for _ in range(3 * places)]
    assert [transport.closed for _, transport in waiting] == [True] * 2 * places + [False] * places
    while crowd.enter("192.0.2.9"):
        pass
    late, transport = introduced(introductions)
    assert not transport.closed and waiting[2 * places][1].closed
    late.data_received(V4)
    assert begun == [("192.0.2.1", proxy.CLIENT_PORT)]
    for connection, _ in waiting:
        connection.connection_lost(None)
    assert crowd._of[INTRODUCTIONS] == 0


@on_loop
async def test_handshake_counts_for_the_client_that_a_header_tells() -> None:
    entered = list[tuple[str, bool]]()

    class Noted(Openings):
        def enter(self, host: str, step: Any, *, of_proxy: bool = False) -> Entry:
            entered.append((host, of_proxy))
            return super().enter(host, lambda: None, of_proxy=of_proxy)

    crowd = AsgiCrowd(AsgiLimits(proxies=(f"{proxy.PROXY_HOST}/32",)))
    context, first = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), hello(ssl.create_default_context())
    for client in (None, ("192.0.2.1", 1), ("2001:db8:0:2::7", 1)):
        loop = asyncio.get_running_loop()
        tls = PacedTls(Noted(), crowd, client, loop, asyncio.Protocol(), context, None, server_side=True)
        tls.connection_made(Transport(proxy.PROXY_HOST))
        tls.get_buffer(-1)[: len(first)] = first
        tls.buffer_updated(len(first))
        tls.connection_lost(None)
    assert entered == [(proxy.PROXY_HOST, True), ("192.0.2.1", False), ("2001:db8:0:2::/64", False)]
    assert isinstance(introductions_for(AsgiLimits(), [])[0].accept(), Introduction)
