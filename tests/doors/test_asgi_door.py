"""What bounds an ASGI application on a socket of the supervisor: heads, times, connections, requests that wait."""

from __future__ import annotations

import http.client
import socket
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from shardd.doors.process import NICE
from tests.doors.asgi_door import LIMITS
from tests.doors.door_server import HOST, WAIT_S, DoorServer
from tests.support.serving import Serving

OTHER: Final = "127.0.0.2"
SERVER: Final = Serving(partial(DoorServer, doors=("asgi",)))


def connect(server: DoorServer, source: str = HOST) -> socket.socket:
    return socket.create_connection((HOST, server.ports["asgi"]), timeout=WAIT_S, source_address=(source, 0))


def get(server: DoorServer, path: str = "/", source: str = OTHER) -> bytes:
    connection = http.client.HTTPConnection(HOST, server.ports["asgi"], timeout=WAIT_S, source_address=(source, 0))
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def rest(stream: socket.socket) -> bytes:
    """Everything until the other side closes."""
    found = b""
    while True:
        try:
            data = stream.recv(65_536)
        except ConnectionError:
            return found
        if not data:
            return found
        found += data


def test_requests_of_one_connection_are_answered_in_their_order(server: DoorServer) -> None:
    with connect(server) as stream:
        stream.sendall(
            b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n"
            b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nab"
            b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\ncd\r\n0\r\n\r\n"
            b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        answers = rest(stream)
    assert answers.count(b"HTTP/1.1 200 OK") == 4
    assert [answers.index(body) for body in (b"\r\n\r\nhello", b"\r\n\r\nab", b"\r\n\r\ncd")] == sorted(
        answers.index(body) for body in (b"\r\n\r\nhello", b"\r\n\r\nab", b"\r\n\r\ncd")
    )


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + bytes([97]) * 5000 + b"\r\n\r\n",
        b"GET /" + bytes([97]) * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + bytes([97]) * 9000,
    ],
)
def test_a_head_that_is_too_large_is_refused(server: DoorServer, head: bytes) -> None:
    with connect(server) as stream:
        stream.sendall(head)
        assert rest(stream).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "request_",
    [
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: +2\r\n\r\nab",
        b"POST /echo HTTP/1.1\r\nHost : x\r\nContent-Length: 2\r\n\r\nab",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\r\n c: d\0\r\n\r\n",
        b"GET / HTTP/9.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_what_two_readers_could_understand_differently_is_refused(server: DoorServer, request_: bytes) -> None:
    with connect(server) as stream:
        stream.sendall(request_ + b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answers = rest(stream)
    assert b"hello" not in answers
    assert answers == b"" or answers.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n\r\n",
    ],
)
def test_who_sends_nothing_more_is_closed(server: DoorServer, sent: bytes) -> None:
    """Before a request, inside one, behind one, and behind one with empty lines."""
    with connect(server) as stream:
        stream.sendall(sent)
        answers = rest(stream)
        assert (b"hello" in answers) == sent.endswith(b"\r\n\r\n")


def test_who_reads_nothing_is_closed(server: DoorServer) -> None:
    with connect(server) as stream:
        stream.sendall(b"GET /fill HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while True:
            try:
                stream.send(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")  # until the door has had enough of it
            except ConnectionError:
                break


def test_requests_that_are_sent_ahead_of_a_slow_one_are_all_answered(server: DoorServer) -> None:
    one = b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(server) as stream:
        stream.sendall(one % b"/wait" + one % b"/" * 300)
        assert rest(stream).count(b"hello") == 301


def test_one_address_leaves_room_for_the_others(server: DoorServer) -> None:
    with ExitStack() as held:
        streams = [held.enter_context(connect(server)) for _ in range(LIMITS.connections_per_address_max + 10)]
        assert get(server) == b"hello"
        closed = [stream for stream in streams[LIMITS.connections_per_address_max :] if rest(stream) == b""]
        assert len(closed) == 10


def test_a_killed_door_loses_no_connection_that_waits(server: DoorServer) -> None:
    door = server.door("asgi")
    door.kill()
    assert get(server) == b"hello"  # connected to the socket of the supervisor
    assert server.door("asgi", other_than=door.pid).nice() == NICE


def test_what_is_under_way_is_finished_at_the_end(tmp_path: Path) -> None:
    with DoorServer(tmp_path / "data", doors=("asgi",)) as server, connect(server) as stream:
        stream.sendall(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert get(server) == b"hello"
        assert server.stop() == 0, server.log()
        assert rest(stream).endswith(b"hello")
        assert "Traceback" not in server.log(), server.log()
