"""A door for tests that serves an ASGI application on the socket of its specification: "/" says hello, "/echo" gives
the body back, "/wait" answers after a second, "/fill" sends without an end."""

from __future__ import annotations

import asyncio
from typing import Final

from shardd.doors.asgi import Receive, Scope, Send, serve_app
from shardd.doors.asgi_crowd import AsgiLimits
from shardd.doors.door import Door
from shardd.doors.hosts import AllowedHosts
from shardd.doors.process import run_door

LIMITS: Final = AsgiLimits(
    connections_max=40,
    connections_per_address_max=30,
    head_bytes_max=4096,
    head_timeout_s=1.0,
    keep_alive_s=1,
    slow_reader_timeout_s=1.0,
)


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    path, body = scope["path"], b"hello"
    if path == "/echo":
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message.get("more_body", False)
    if path == "/wait":
        await asyncio.sleep(1.0)
    headers = [] if path == "/fill" else [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    while path == "/fill":
        await send({"type": "http.response.body", "body": bytes(65_536), "more_body": True})
    await send({"type": "http.response.body", "body": body})


async def serve(door: Door) -> None:
    hosts = AllowedHosts("tests.allowed_hosts", (), door.listeners[0])
    await serve_app(application, hosts, door.listeners[0], LIMITS, door.ready)


if __name__ == "__main__":
    run_door(serve)
