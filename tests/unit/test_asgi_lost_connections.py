"""A connection over HTTP that is lost, or has given way: each request that is under way on it hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
import uvicorn
from starlette.responses import Response, StreamingResponse
from uvicorn.server import ServerState

from shardd.doors.asgi import PEER, Receive, Scope, Send, _BoundedProtocol
from shardd.doors.asgi_crowd import AsgiCrowd, AsgiLimits
from shardd.doors.http.polls import Polls
from shardd.doors.unread import Answers, CountedAnswers
from tests.support.on_loop import on_loop

STREAM: Final = b"GET /events HTTP/1.1\r\nhost: a\r\n\r\n"
NEXT: Final = b"GET /ping HTTP/1.1\r\nhost: a\r\n\r\n"
PATIENT_S: Final = 10.0


class Wire(asyncio.Transport):
    """A transport whose client takes all at once. It tells of its loss as transports do: in the next turn of the
    loop."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Any = None
        self.closing = False
        self.written = bytearray()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("10.0.0.1", 5), "sockname": ("10.0.0.9", 80)}.get(name, default)

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def connected(application: Any) -> tuple[Any, Wire]:
    limits = AsgiLimits()
    shared = {"limits": limits, "crowd": AsgiCrowd(limits), "answers": Answers()}
    kind = type("BoundedProtocol", (_BoundedProtocol,), shared)
    config = uvicorn.Config(CountedAnswers(application), http=kind, ws="none", lifespan="off", log_config=None)
    config.load()
    protocol: Any = kind(config=config, server_state=ServerState(), app_state={})
    wire = Wire()
    wire.protocol = protocol
    protocol.connection_made(wire)
    return protocol, wire


class Service:
    """A stream of events with a place, and a small answer."""

    def __init__(self) -> None:
        self.polls = Polls()
        self.began = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/events":
            await Response(b"pong")(scope, receive, send)
            return
        place = self.polls.follow("user", "10.0.0.1", scope[PEER])
        try:
            await StreamingResponse(self._events(), media_type="text/event-stream")(scope, receive, send)
        finally:
            place.leave()
            self.ended.set()

    async def _events(self) -> AsyncIterator[bytes]:
        while True:
            yield b": nothing new\n\n"
            self.began.set()
            await asyncio.sleep(0.01)


async def lose(behind: bytes, *, gives_way: bool) -> None:
    service = Service()
    protocol, wire = connected(service)
    protocol.data_received(STREAM)
    await service.began.wait()
    if behind:
        protocol.data_received(behind)
    if gives_way:
        protocol._peer.abort()
    else:
        wire.closing = True
        protocol.connection_lost(ConnectionResetError())
    await service.ended.wait()
    assert service.polls._streams.used == 0
    assert b"pong" not in wire.written


@pytest.mark.parametrize("gives_way", [False, True], ids=["lost", "gives way"])
@pytest.mark.parametrize("behind", [b"", NEXT, NEXT * 3, NEXT[:10]], ids=["alone", "one", "three", "a part"])
@on_loop
async def test_stream_of_a_lost_connection_with_requests_behind_it_gives_its_place_back(
    behind: bytes, gives_way: bool
) -> None:
    async with asyncio.timeout(PATIENT_S):
        await lose(behind, gives_way=gives_way)


@on_loop
async def test_body_of_a_lost_connection_that_is_read_ends() -> None:
    heard: list[str] = []

    async def read(_scope: Scope, receive: Receive, _send: Send) -> None:
        while not heard or heard[-1] != "http.disconnect":
            heard.append((await receive())["type"])

    protocol, wire = connected(read)
    protocol.data_received(b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nabc")
    async with asyncio.timeout(PATIENT_S):
        await asyncio.sleep(0)
        wire.abort()
        await asyncio.gather(*protocol.tasks)
    assert heard[-1] == "http.disconnect"
