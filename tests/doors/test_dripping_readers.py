"""An answer that keeps coming is waited for, however long all of it takes; one that stands still is not."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.hostile.matrix.lines import READER
from tests.hostile.matrix.target import BIG, STREAM, MatrixServer
from tests.support import wire
from tests.support.serving import Serving

SLOW_READER_S: Final = 5
RECEIVE_BYTES: Final = 16 << 10
STEP_S: Final = 0.1
STEP_BYTES: Final = 8 << 10  # five times what it must take in the long run
WAIT_S: Final = 120.0
PINGS: Final = 120_000  # what a connection of NATS has unread ends it at 1 MiB


def served(data: Path) -> MatrixServer:
    server = MatrixServer(data, ["http", "nats"])
    server.change({"SHARDD_SERVER_SLOW_READER_TIMEOUT": f"{SLOW_READER_S} s"})
    return server


SERVER: Final = Serving(served)


def of_http(server: MatrixServer) -> tuple[bytes, bytes]:
    """What is sent, and what the last answer ends with."""
    path = f"/streams/{STREAM}/topics/{BIG}/messages?consumer_id=1&partition_id=0&kind=offset&value=0&count=3"
    shown = f"Authorization: Bearer {server.target.bearers[READER]}"
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{shown}\r\n\r\n".encode(), b"]}\r\n0\r\n\r\n"


def of_openapi(_: MatrixServer) -> tuple[bytes, bytes]:
    page, last = (b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path for path in (b"openapi.json", b"ping"))
    return page * 15 + last, b"\r\n\r\npong"


def of_nats(server: MatrixServer) -> tuple[bytes, bytes]:
    token = server.target.tokens[READER].encode()
    begin = b'CONNECT {"verbose":false,"auth_token":"%b"}\r\nSUB _INBOX.end 1\r\n' % token
    return begin + b"PING\r\n" * PINGS + b"PUB _INBOX.end 4\r\ndone\r\n", b"\r\ndone\r\n"


class Reader:
    """It sends `requests` as the server takes them. `last`: the last bytes that have come."""

    def __init__(self, address: str, requests: bytes) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        self.socket.settimeout(WAIT_S)
        self.socket.connect(wire.host_and_port(address))
        self.socket.setblocking(False)
        self.last = b""
        self._left = memoryview(requests)
        self._poll = select.poll()
        self._poll.register(self.socket, 0)  # errors are told without being asked for

    def push(self) -> None:
        try:
            while self._left:
                self._left = self._left[self.socket.send(self._left) :]
        except BlockingIOError:
            pass

    def take(self, size: int) -> None:
        """What is there; ConnectionError: the server has closed it."""
        try:
            data = self.socket.recv(size)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError("it has been closed")
        self.last = (self.last + data)[-64:]

    def is_reset(self) -> bool:
        return bool(self._poll.poll(0))


@pytest.mark.parametrize(("door", "asked"), [("http", of_http), ("http", of_openapi), ("nats", of_nats)])
def test_answer_that_keeps_coming_is_waited_for_and_one_that_stands_still_is_not(
    server: MatrixServer, door: str, asked: Callable[[MatrixServer], tuple[bytes, bytes]]
) -> None:
    requests, end = asked(server)
    address = server.target.addresses[door]
    with ExitStack() as held:
        dripping, standing = (Reader(address, requests) for _ in range(2))
        for reader in (dripping, standing):
            held.callback(reader.socket.close)
            reader.push()
        ended_at_s = time.monotonic() + WAIT_S
        while not standing.is_reset():
            assert time.monotonic() < ended_at_s, "an answer that stands still is waited for"
            dripping.push()
            if not dripping.last.endswith(end):
                dripping.take(STEP_BYTES)
            time.sleep(STEP_S)
        while not dripping.last.endswith(end):
            assert time.monotonic() < ended_at_s
            dripping.push()
            select.select([dripping.socket], (), (), STEP_S)
            dripping.take(1 << 20)
