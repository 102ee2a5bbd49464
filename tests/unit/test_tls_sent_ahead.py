"""What a client of HTTPS sends ahead stays in the kernel: asyncio would keep 256 KiB of each connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from asyncio import sslproto
from typing import Any, Final

import pytest

from shardd.doors import openings
from shardd.doors.asgi import Receive, Scope, Send, serve_app
from shardd.doors.asgi_crowd import AsgiLimits
from shardd.doors.hosts import AllowedHosts
from shardd.runtime.bounded_loop import READ_BYTES_MAX
from tests.support.on_loop import on_loop, until
from tests.unit.test_connections_that_ended import Contexts, contexts  # noqa: F401

COUNT: Final = 20_000
REQUEST: Final = b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n"
PATIENT_S: Final = 60.0
ANSWERS: Final = 200
STEP_S: Final = 0.1


def crowd(stream: ssl.SSLSocket, seen: threading.Event) -> None:
    """Sends until the server takes no more, and it was seen what it keeps; then reads some answers."""
    left = memoryview(b"".join(REQUEST % number for number in range(COUNT)))
    stream.settimeout(STEP_S)
    while left and not seen.is_set():
        with contextlib.suppress(TimeoutError):
            left = left[stream.send(left[:READ_BYTES_MAX]) :]
    stream.settimeout(PATIENT_S)
    found = b""
    while found.count(b"200 OK") < ANSWERS:
        data = stream.recv(65_536)
        assert data, "the server has closed"
        found += data


@on_loop
async def test_requests_sent_ahead_over_tls_are_not_read(
    contexts: Contexts,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may, ready, seen, made = asyncio.Event(), asyncio.Event(), threading.Event(), list[Any]()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await may.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    class Noted(openings.PacedTls):
        def connection_made(self, transport: asyncio.Transport) -> None:
            made.append(self)
            super().connection_made(transport)

    monkeypatch.setattr("shardd.doors.asgi.PacedTls", Noted)
    monkeypatch.setattr(sslproto.SSLProtocol, "max_size", READ_BYTES_MAX)
    serving, opening = contexts
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    hosts = AllowedHosts("tests.allowed_hosts", (), listener)
    served = asyncio.ensure_future(serve_app(application, hosts, listener, AsgiLimits(), ready.set, serving))
    async with asyncio.timeout(2 * PATIENT_S):
        await ready.wait()
        plain = await asyncio.to_thread(socket.create_connection, listener.getsockname(), PATIENT_S)
        stream = await asyncio.to_thread(opening.wrap_socket, plain, server_hostname="localhost")
        reading = asyncio.ensure_future(asyncio.to_thread(crowd, stream, seen))
        [tls] = made
        await until(lambda: bool(tls._ssl_reading_paused))  # sooner or later
        kept = tls._incoming.pending + len(tls._app_protocol._ahead)
        assert kept <= 4 * READ_BYTES_MAX, f"{kept} bytes are kept"
        may.set()
        seen.set()
        await reading
        stream.close()
    served.cancel()
    await asyncio.gather(served, return_exceptions=True)
