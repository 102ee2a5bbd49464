"""What one connection of HTTP sends ahead: nothing is parsed before its turn, little is kept, and nothing is read."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from shardd.doors.asgi import HEAD_FIELDS_MAX, UNTAKEN_BODY_BYTES_MAX, Receive, Scope, Send
from shardd.runtime.bounded_loop import READ_BYTES_MAX
from tests.support.on_loop import on_loop, until
from tests.unit.test_asgi_lost_connections import Wire, connected

PATIENT_S: Final = 10.0
GET: Final = b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n"
LENGTH: Final = b"POST /%d HTTP/1.1\r\nhost: a\r\ncontent-length: 40\r\n\r\n" + b"GET / HTTP/1.1\r\n\r\n" * 2 + b"...."
CHUNKED: Final = (
    b"POST /%d HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    b"15\r\n GET / HTTP/1.1\r\n\r\nx\n\r\n5\r\nabcde\r\n0\r\n\r\n"
)
H2C: Final = b"host: a\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAA"
WEBSOCKET: Final = b"host: a\r\nconnection: Upgrade\r\nupgrade: websocket"
SHAPES: Final = {
    "get": GET,
    "length": LENGTH,
    "chunked": CHUNKED,
    "empty lines": b"\r\n\r\n" + GET,
    **{
        f"{shape} that offers {offer}": request.replace(b"host: a", fields)
        for offer, fields in (("HTTP/2", H2C), ("WebSocket", WEBSOCKET))
        for shape, request in (("get", GET), ("length", LENGTH), ("chunked", CHUNKED))
    },
}
BODIES: Final = {"get": b"", "empty lines": b"", "length": LENGTH[-40:], "chunked": b" GET / HTTP/1.1\r\n\r\nx\nabcde"}


class Service:
    """Answers one request after the other, when it may."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.bodies: list[bytes] = []
        self.may = asyncio.Semaphore(0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun.append(scope["path"])
        await self.may.acquire()
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


class Reading:
    """Whether the connection is read, and what one event of the loop brings while it is."""

    def __init__(self, protocol: Any, wire: Wire, sent: bytes, step: int) -> None:
        self.protocol, self.left, self.step = protocol, sent, step
        self.is_paused = False
        wire.pause_reading = lambda: setattr(self, "is_paused", True)  # type: ignore[method-assign]
        wire.resume_reading = lambda: setattr(self, "is_paused", False)  # type: ignore[method-assign]

    def go_on(self) -> None:
        while self.left and not self.is_paused:
            data, self.left = self.left[: self.step], self.left[self.step :]
            self.protocol.data_received(data)


def parsed_ahead(protocol: Any) -> int:
    return len(protocol.pipeline)


@pytest.mark.parametrize("step", [1, 7, 61, READ_BYTES_MAX])
@pytest.mark.parametrize("shape", SHAPES)
@on_loop
async def test_requests_behind_one_under_way_are_parsed_one_after_the_other(shape: str, step: int) -> None:
    service, count = Service(), 40
    protocol, wire = connected(service)
    reading = Reading(protocol, wire, b"".join(SHAPES[shape] % number for number in range(count)), step)
    async with asyncio.timeout(PATIENT_S):
        for number in range(count):
            reading.go_on()
            await until(lambda: len(service.begun) > number)  # noqa: B023  # awaited at once
            assert parsed_ahead(protocol) <= 1 and len(protocol._ahead) <= READ_BYTES_MAX
            assert not protocol._ahead or protocol._timer is None, "what waits is not late"
            service.may.release()
            await until(lambda: len(service.bodies) > number)  # noqa: B023
    assert service.begun == [f"/{number}" for number in range(count)]
    assert {*service.bodies} == {BODIES[shape.partition(" that ")[0]]}
    assert not wire.closing and wire.written.count(b"200 OK") == count


@on_loop
async def test_connection_with_a_request_under_way_is_not_read_on() -> None:
    """Also not when its application waits for its client."""
    service = Service()
    protocol, wire = connected(service)
    reading = Reading(protocol, wire, GET % 0 * 100_000, READ_BYTES_MAX)
    async with asyncio.timeout(PATIENT_S):
        reading.go_on()
        await asyncio.sleep(0)
        left = len(reading.left)
        assert left >= len(GET % 0) * 100_000 - 2 * READ_BYTES_MAX
        protocol._begun.message_event.clear()
        waiting = asyncio.ensure_future(protocol._begun.receive())
        await asyncio.sleep(0)
        reading.go_on()
        assert len(reading.left) == left and parsed_ahead(protocol) == 0
        waiting.cancel()


@on_loop
async def test_body_that_its_application_does_not_take_is_not_read_on() -> None:
    service = Service()
    protocol, wire = connected(service)
    size = 1 << 20
    head = b"POST /0 HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size
    reading = Reading(protocol, wire, head + bytes(size) + GET % 1, READ_BYTES_MAX)
    async with asyncio.timeout(PATIENT_S):
        reading.go_on()
        await asyncio.sleep(0)
        assert len(protocol._begun.body) <= UNTAKEN_BODY_BYTES_MAX + READ_BYTES_MAX
        service.may.release()
        while not service.bodies:
            await asyncio.sleep(0)
            reading.go_on()
        while len(service.begun) < 2:
            await asyncio.sleep(0)
            reading.go_on()
    assert service.bodies == [bytes(size)]


@pytest.mark.parametrize("count", [HEAD_FIELDS_MAX, HEAD_FIELDS_MAX + 1])
@on_loop
async def test_head_of_more_fields_than_there_may_be_is_refused(count: int) -> None:
    service = Service()
    protocol, wire = connected(service)
    service.may.release()
    protocol.data_received(b"GET / HTTP/1.1\r\nhost: a\r\n" + b"a:\r\n" * (count - 1) + b"\r\n")
    async with asyncio.timeout(PATIENT_S):
        await until(lambda: bool(wire.written))
    assert wire.written.startswith(b"HTTP/1.1 200 " if count <= HEAD_FIELDS_MAX else b"HTTP/1.1 431 ")
