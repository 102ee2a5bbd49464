"""Who waits for the turn of a password over QUIC holds nothing that others need: no place at a worker, no room for
answers. Nothing is measured: it is counted how many of the crowd have their answer when somebody else gets his."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Final

import pytest

from shardd.doors.quic.connection import ANSWER_BYTES, REQUESTS_MAX
from shardd.doors.quic.listener import ADDRESS_SHARE, ALL_ANSWERS_BYTES_MAX
from shardd.transport.door.places import REQUESTS_MAX as PLACES
from tests.doors.quic_server import QuicClient, QuicServer, connected, request_frame
from tests.support import wire
from tests.support.serving import Serving

pytestmark = pytest.mark.usefixtures("hashes_as_served")

CROWD: Final = PLACES * 5 // 2  # for both workers
OF_ADDRESS: Final = ALL_ANSWERS_BYTES_MAX // ADDRESS_SHARE // ANSWER_BYTES
CHANGE_PASSWORD: Final = 37
CREATE_USER: Final = 33
PASSWORD: Final = "attacker-password"


def fill(server: QuicServer) -> None:
    with wire.connect(server.address) as tcp:
        tcp.request(CREATE_USER, wire.str8("attacker") + wire.str8(PASSWORD) + b"\1\0")
        tcp.create_topic(tcp.create_stream("s"), "t", 1)


SERVER: Final = Serving(
    QuicServer, {"SHARDD_SERVER_CONNECTIONS_PER_ADDRESS_MAX": "1000", "SHARDD_QUIC_MAX_IDLE_TIMEOUT": "5 m"}, fill=fill
)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 200))


async def connections(held: contextlib.AsyncExitStack, server: QuicServer, count: int) -> list[QuicClient]:
    return [await held.enter_async_context(connected(server.quic_address)) for _ in range(count)]


def begin(clients: list[QuicClient], frame: bytes) -> list[asyncio.Future[bytes]]:
    """As many requests as may be under way of each connection."""
    return [client._done[client.write(frame)] for client in clients for _ in range(REQUESTS_MAX)]


def answered(requests: list[asyncio.Future[bytes]]) -> int:
    return sum(each.done() for each in requests)


def test_wrong_changes_of_a_password_stop_nobody(server: QuicServer) -> None:
    async def scenario() -> None:
        payload = wire.identifier("attacker") + wire.str8("wrong") + wire.str8("another")
        frame = request_frame(CHANGE_PASSWORD, payload)
        async with contextlib.AsyncExitStack() as held:
            clients = await connections(held, server, CROWD * 2 // REQUESTS_MAX)
            for client in clients:
                assert await client.login("attacker", PASSWORD) == 0
            crowd = begin(clients, frame)
            for _ in range(2):  # one for each worker
                other = await held.enter_async_context(connected(server.quic_address, "127.0.0.2"))
                assert await other.login() == 0
                assert await other.send(0, 0, 0, [b"m"]) == 0
                await other.done(wire.GET_STREAMS)
            assert answered(crowd) < CROWD // 2

    run(scenario())


def test_wrong_logins_keep_no_room_for_answers(server: QuicServer) -> None:
    """So many that all room for answers to their address would be kept, and as many behind them."""

    async def scenario() -> None:
        payload = wire.str8("attacker") + wire.str8("wrong") + wire.str32("") + wire.str32("")
        frame = request_frame(wire.LOGIN_USER, payload)
        async with contextlib.AsyncExitStack() as held:
            other = await held.enter_async_context(connected(server.quic_address))
            assert await other.login() == 0
            crowd = begin(await connections(held, server, 2 * OF_ADDRESS // REQUESTS_MAX), frame)
            await other.done(wire.PING)
            await other.done(wire.GET_STREAMS)
            assert answered(crowd) < OF_ADDRESS // 2

    run(scenario())


def test_logins_of_a_connection_take_none_of_its_places(server: QuicServer) -> None:
    async def scenario() -> None:
        payload = wire.str8("attacker") + wire.str8("wrong") + wire.str32("") + wire.str32("")
        async with connected(server.quic_address, "127.0.0.3") as client:
            assert await client.login() == 0
            frame = request_frame(wire.LOGIN_USER, payload)
            logins = [client._done[client.write(frame)] for _ in range(3 * REQUESTS_MAX)]
            await client.done(wire.GET_STREAMS)
            assert answered(logins) < REQUESTS_MAX

    run(scenario())


@pytest.mark.parametrize(
    ("code", "payload"),
    [
        (wire.LOGIN_USER, wire.str8("iggy") + wire.str8("iggy") + wire.str32("") + wire.str32("x" * 4096)),
        (CHANGE_PASSWORD, wire.identifier("attacker") + bytes(4096)),
        (CREATE_USER, bytes((512 << 10) + 1)),
        (wire.GET_STREAMS, bytes(4097)),
    ],
)
def test_commands_have_the_limits_of_tcp(server: QuicServer, code: int, payload: bytes) -> None:
    """Refused from the head, and the connection goes on."""

    async def scenario() -> None:
        async with connected(server.quic_address) as client:
            assert await client.login() == 0
            stream = client.write(request_frame(code, payload)[:100], end=False)
            assert (await client.answer(stream))[0] == 3
            await client.done(wire.PING)

    run(scenario())
