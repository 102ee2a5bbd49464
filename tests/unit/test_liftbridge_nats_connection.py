"""What a connection of a NATS client is not closed for."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Final

from shardd.doors.liftbridge.nats.connection import PING_INTERVAL_S, PINGS_MAX, READ_BYTES, NatsConnection
from shardd.doors.liftbridge.nats.house import NatsLimits
from shardd.runtime.crowds import SharedRoom
from tests.support.on_loop import on_loop, until

LIMIT_S: Final = 30.0


class Waiting:
    """A server whose turns come when the test says so."""

    limits = NatsLimits(1 << 20, 10, 10, partial_frame_timeout_s=LIMIT_S, slow_reader_timeout_s=LIMIT_S)

    def __init__(self) -> None:
        self.unread, self.unsent = SharedRoom(1 << 20), SharedRoom(1 << 20)
        self.buffer = bytearray(READ_BYTES)
        self.busy: deque[NatsConnection] = deque()

    def admit(self, connection: NatsConnection) -> bool:
        return True

    def knows(self, connection: NatsConnection) -> None:
        pass

    def left(self, connection: NatsConnection) -> None:
        pass

    def is_busy(self, connection: NatsConnection) -> None:
        self.busy.append(connection)

    def info(self, connection: NatsConnection) -> bytes:
        return b"INFO {}\r\n"


@on_loop
async def test_what_has_waited_behind_a_request_is_not_half_sent() -> None:
    """A message that waits for room holds up what comes behind it, for as long as a worker stands still."""
    house, loop, room = Waiting(), asyncio.get_running_loop(), asyncio.Event()
    made: list[NatsConnection] = []

    def connect() -> NatsConnection:
        made.append(NatsConnection(house))  # type: ignore[arg-type]
        return made[-1]

    async def wait() -> None:
        await room.wait()

    server = await loop.create_server(connect, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()[:2], 10) as client:
        await until(lambda: bool(made) and made[0].is_open)
        connection = made[0]
        connection.user_id = 1
        connection._wait_for(wait())
        client.sendall(b"PING\r\n")
        await until(lambda: connection._half_sent_since_s is not None)
        assert connection._half_sent_since_s
        connection._half_sent_since_s -= 2 * LIMIT_S  # so long ago
        connection.look(loop.time())
        assert connection.is_open, "it waits"
        room.set()
        await until(lambda: connection in house.busy)
        connection.look(loop.time())
        assert connection.is_open, "its turn has not come yet"
        assert not connection.take_turn(loop.time() + 10)
        client.sendall(b"PIN")
        await until(lambda: connection._half_sent_since_s is not None)
        connection.look(loop.time() + LIMIT_S - 10)
        assert connection.is_open
        connection.look(loop.time() + LIMIT_S + 10)
        assert not connection.is_open, "this is half sent"
    server.close()


@on_loop
async def test_silent_client_is_asked_twice_and_ends_without_an_answer() -> None:
    house, loop = Waiting(), asyncio.get_running_loop()
    made: list[NatsConnection] = []

    def connect() -> NatsConnection:
        made.append(NatsConnection(house))  # type: ignore[arg-type]
        return made[-1]

    server = await loop.create_server(connect, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()[:2], 10) as client:
        await until(lambda: bool(made) and made[0].is_open)
        connection = made[0]
        connection.user_id = 1
        heard_s = connection._heard_at_s
        for count in range(PINGS_MAX):
            connection.look(heard_s + PING_INTERVAL_S * (count + 1) - 1)
            assert connection._pings == count
            connection.look(heard_s + PING_INTERVAL_S * (count + 1) + 1)
            assert connection._pings == count + 1 and connection.is_open
        connection.look(heard_s + PING_INTERVAL_S * (PINGS_MAX + 1) + 1)
        assert not connection.is_open
        client.settimeout(10)
        said = b""
        while part := await asyncio.to_thread(client.recv, 1 << 16):
            said += part
        assert said == b"INFO {}\r\n" + b"PING\r\n" * PINGS_MAX + b"-ERR 'Stale Connection'\r\n"
    server.close()
