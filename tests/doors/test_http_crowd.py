"""1,500 connections of one address that say nothing, or drip: others are served beside them, and they end."""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.doors.http_server import HttpServer
from tests.hostile import crowd
from tests.support.serving import Serving
from tests.support.wide import wide

COUNT: Final = 1_500
TIMEOUT_S: Final = 5
RESIDENT_BYTES_MAX: Final = 300 << 20
SETTINGS: Final = {
    "SHARDD_SERVER_PARTIAL_FRAME_TIMEOUT": f"{TIMEOUT_S} s",
    "SHARDD_SERVER_CONNECTIONS_MAX": "10000",
    "SHARDD_SERVER_CONNECTIONS_PER_ADDRESS_MAX": "10000",
}
HEAD: Final = b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SERVER: Final = Serving(HttpServer, SETTINGS, fill=lambda _: crowd.allow_descriptors(COUNT + 500))


class Crowd:
    """So many connections; each sends the pieces of `drip` one by one, then begins anew."""

    def __init__(self, server: HttpServer, held: ExitStack, first: bytes, drip: bytes) -> None:
        self._streams = [held.enter_context(server.connect()) for _ in range(COUNT)]
        self._drip = drip
        self._at = 0
        self._selector = held.enter_context(selectors.DefaultSelector())
        self.open = COUNT
        for stream in self._streams:
            stream.setblocking(False)
            self._selector.register(stream, selectors.EVENT_READ)
            if first:
                self._send(stream, first)

    def turn(self) -> None:
        """One byte of each, and what has ended is counted."""
        for key, _ in self._selector.select(0):
            stream: socket.socket = key.fileobj  # type: ignore[assignment]
            try:
                ended = not stream.recv(65_536)
            except OSError:
                ended = True
            if ended:
                self._selector.unregister(stream)
                self._streams.remove(stream)
                self.open -= 1
        if self._drip:
            piece = self._drip[self._at % len(self._drip)].to_bytes(1, "big")
            self._at += 1
            for stream in self._streams:
                self._send(stream, piece)

    @staticmethod
    def _send(stream: socket.socket, data: bytes) -> None:
        try:
            stream.send(data)
        except OSError:
            return


@pytest.mark.parametrize(
    ("first", "drip"),
    [
        (b"", b""),
        wide(b"GET /", b"a"),
        (HEAD, b"X: y\r\n"),
        wide(HEAD + b"Content-Length: 1000000\r\n\r\n", b"{"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n{\r\n"),
    ],
    ids=["idle", "dripping lines", "dripping heads", "dripping bodies", "dripping chunks"],
)
def test_others_are_served_beside_them_and_they_end(server: HttpServer, first: bytes, drip: bytes) -> None:
    door = psutil.Process(server.door().pid)
    with ExitStack() as held:
        client = server.client(source="127.0.0.2")
        client.token = server.root().token
        held.callback(client.close)
        strangers = Crowd(server, held, first, drip)
        deadline = time.monotonic() + TIMEOUT_S + 120
        served = 0
        while strangers.open:
            assert time.monotonic() < deadline, f"{strangers.open} are open yet"
            strangers.turn()
            assert client.get("/streams").status == 200
            served += 1
            assert door.memory_info().rss < RESIDENT_BYTES_MAX
            time.sleep(0.2)
        assert served >= 3
    assert server.door().pid == door.pid and "Traceback" not in server.log()


def test_the_settings_bound_what_one_address_has(tmp_path: Path) -> None:
    """Those above them are closed at once, and another address has room."""
    limits = {"SHARDD_SERVER_CONNECTIONS_MAX": "1000", "SHARDD_SERVER_CONNECTIONS_PER_ADDRESS_MAX": "200"}
    with HttpServer(tmp_path / "data", limits) as server, ExitStack() as held:
        strangers = Crowd(server, held, b"", b"")
        deadline = time.monotonic() + 60
        while strangers.open > 200:
            assert time.monotonic() < deadline, f"{strangers.open} are open yet"
            strangers.turn()
            time.sleep(0.1)
        assert server.client(source="127.0.0.2").get("/ping").status == 200
