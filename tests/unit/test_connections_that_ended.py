"""A connection of HTTP or HTTPS that has ended keeps no memory until the collector of Python looks for it, also where
an application has left a cycle with its request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import struct
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from shardd.doors import asgi, openings
from shardd.doors.asgi import PEER, Receive, Scope, Send, serve_app
from shardd.doors.asgi_crowd import AsgiLimits
from shardd.doors.hosts import AllowedHosts
from tests.support.certificates import Authority
from tests.support.on_loop import on_loop, until

CONNECTIONS: Final = 3
LIMITS: Final = AsgiLimits(keep_alive_s=300)
PATIENT_S: Final = 60.0
UNREAD_PIECES: Final = 256
PIECE: Final = bytes(64 << 10)
REQUEST: Final = b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n"
RESET: Final = struct.pack("ii", 1, 0)
Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    scope["cycle"] = scope
    if scope["path"] == "/aborted":
        scope[PEER].abort()
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(UNREAD_PIECES if scope["path"] == "/unread" else 0):
        await send({"type": "http.response.body", "body": PIECE, "more_body": True})
    await send({"type": "http.response.body", "body": b"hello"})


def close(stream: socket.socket) -> None:
    stream.close()


def reset(stream: socket.socket) -> None:
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    stream.close()


def wait_for_end(stream: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while stream.recv(65_536):
            pass
    stream.close()


ENDS: Final[dict[str, tuple[bytes, Callable[[socket.socket], None]]]] = {
    "closed": (b"", close),
    "reset": (b"", reset),
    "closed, unread": (b"unread", close),
    "reset, unread": (b"unread", reset),
    "aborted by the server": (b"aborted", wait_for_end),
}


def crowd(address: tuple[str, int], context: ssl.SSLContext | None, end: str) -> None:
    path, leave = ENDS[end]
    for _ in range(CONNECTIONS):
        stream = socket.create_connection(address, timeout=PATIENT_S)
        if context is not None:
            stream = context.wrap_socket(stream, server_hostname="localhost")
        stream.sendall(REQUEST % path)
        if path != b"aborted":
            assert stream.recv(1)
        leave(stream)


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    authority = Authority.make(tmp_path_factory.mktemp("tls"))
    certificate = authority.sign("server", names="DNS:localhost")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, certificate.with_suffix(".key"))
    return serving, ssl.create_default_context(cafile=str(authority.certificate))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[Any]]]:
    """What each connection has, as long as something refers to it: the collector finds no cycle meanwhile."""
    found: list[weakref.ref[Any]] = []

    def noted(kind: Any, part: Callable[[Any], object]) -> None:
        made = kind.connection_made

        def connection_made(self: Any, transport: Any) -> None:
            found.append(weakref.ref(part(self)))
            made(self, transport)

        monkeypatch.setattr(kind, "connection_made", connection_made)

    noted(asgi._BoundedProtocol, lambda protocol: protocol)
    noted(openings.PacedTls, lambda protocol: protocol._sslobj)
    gc.collect()
    gc.disable()
    try:
        yield found
    finally:
        gc.enable()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("over", ["http", "https"])
@on_loop
async def test_connection_that_has_ended_keeps_nothing_for_the_collector(
    over: str, end: str, contexts: Contexts, kept: list[weakref.ref[Any]]
) -> None:
    serving, opening = contexts if over == "https" else (None, None)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    ready = asyncio.Event()
    hosts = AllowedHosts("tests.allowed_hosts", (), listener)
    served = asyncio.ensure_future(serve_app(application, hosts, listener, LIMITS, ready.set, serving))
    async with asyncio.timeout(2 * PATIENT_S):
        await ready.wait()
        await asyncio.to_thread(crowd, listener.getsockname(), opening, end)
        count = CONNECTIONS * (2 if over == "https" else 1)
        await until(lambda: len(kept) >= count and not any(each() is not None for each in kept))
    served.cancel()
    await asyncio.gather(served, return_exceptions=True)
