"""A server with WebSocket, and a client of it, for the files that test it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Final

import pytest

from tests.support import wire
from tests.support.server import Server
from tests.support.serving import Serving
from tests.support.websocket import BINARY, WebSocket

ON = {"SHARDD_WEBSOCKET_ENABLED": "true", "SHARDD_WEBSOCKET_ADDRESS": "127.0.0.1:0"}
LIMITS = {"SHARDD_WEBSOCKET_MAX_FRAME_SIZE": "1 MiB", "SHARDD_WEBSOCKET_MAX_MESSAGE_SIZE": "2 MiB"}


def address_of(server: Server) -> str:
    return str(tomllib.loads(server.runtime_config.read_text())["websocket"]["address"])


def fill(server: Server) -> None:
    with wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("s"), "t", 4)


SERVER: Final = Serving(env=ON | LIMITS, fill=fill)


@pytest.fixture
def client(server: Server) -> Iterator[WebSocket]:
    with WebSocket(address_of(server)) as connection:
        yield connection


def serves(client: WebSocket) -> bool:
    return client.request(wire.PING) == (0, b"")


def send_payload(size: int, partition: int = 0) -> bytes:
    return wire.batch(0, 0, wire.to_partition(partition), [wire.message(b"x" * size)])


def pongs(client: WebSocket, count: int) -> None:
    """So many answers to PING, in however many messages."""
    data = b""
    while len(data) < 8 * count:
        opcode, more = client.receive()
        assert opcode == BINARY
        data += more
    assert data == bytes(8 * count)
