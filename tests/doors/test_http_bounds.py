"""What the door for HTTP gives to strangers: little, and not for long."""

from __future__ import annotations

import urllib.error
import urllib.request
from contextlib import ExitStack
from typing import Final

import psutil
import pytest

from tests.doors.http_server import HttpServer
from tests.support.serving import Serving

QUICK = {"SHARDD_SERVER_PARTIAL_FRAME_TIMEOUT": "1 s", "SHARDD_SERVER_CONNECTIONS_MAX": "400"}
HEAD = "Host: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer"
SERVER: Final = Serving(HttpServer, QUICK)


def test_a_body_that_does_not_come_is_not_waited_for(server: HttpServer) -> None:
    token = server.root().token
    for sent in (b"", b"{"):
        with server.connect() as stream:
            stream.sendall(f"POST /streams HTTP/1.1\r\n{HEAD} {token}\r\nContent-Length: 9\r\n\r\n".encode() + sent)
            assert stream.makefile("rb").read().startswith(b"HTTP/1.1 408 ")


def test_a_body_without_a_length_has_the_same_bounds(server: HttpServer) -> None:
    token = server.root().token
    with server.connect() as stream:
        head = f"POST /streams HTTP/1.1\r\n{HEAD} {token}\r\nTransfer-Encoding: chunked\r\n\r\n"
        stream.sendall(head.encode())
        try:
            for _ in range(64):
                stream.sendall(b"10000\r\n" + bytes(65_536) + b"\r\n")
        except ConnectionError:
            return
        assert stream.recv(100).startswith(b"HTTP/1.1 413 ")


def test_client_that_writes_all_of_a_large_body_reads_413(server: HttpServer) -> None:
    """As urllib does: the answer of a connection that is closed on what it writes is lost in a reset."""
    with server.connect() as stream:
        host, port = stream.getpeername()[:2]
    headers = {"Authorization": f"Bearer {server.root().token}", "Content-Type": "application/json"}
    for size in (3 << 20, 8 << 20, 15 << 20):
        request = urllib.request.Request(f"http://{host}:{port}/streams", bytes(size), headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60)
        assert refused.value.code == 413


def test_strangers_send_no_body_anywhere_but_to_logins(server: HttpServer) -> None:
    """They are refused by their head."""
    with server.connect() as stream:
        stream.sendall(f"POST /streams HTTP/1.1\r\n{HEAD} x\r\nContent-Length: 2000000\r\n\r\n".encode())
        assert stream.recv(100).startswith(b"HTTP/1.1 401 ")


def test_idle_connections_of_one_address_leave_room_for_others(server: HttpServer) -> None:
    with ExitStack() as held:
        for _ in range(300):
            stream = held.enter_context(server.connect())
            stream.sendall(b"GET / HTTP/1.1\r\n")
        client = server.client(source="127.0.0.2")
        assert client.get("/ping").status == 200
    assert psutil.Process(server.door().pid).memory_info().rss < 300 << 20


def test_wrong_tokens_leave_no_client_behind(server: HttpServer) -> None:
    root = server.root()
    for number in range(450):  # more than there may be
        assert server.client(f"{number}.b.c", "127.0.0.3").get("/streams").status == 401
    assert root.get("/streams").status == 200


def test_many_tokens_share_what_a_door_may_have(server: HttpServer) -> None:
    root = server.root()
    tokens = []
    for number in range(90):
        answer = root.post("/personal-access-tokens", {"name": f"door{number}", "expiry": 0})
        tokens.append(answer.json["token"])
    for source in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
        for token in tokens:
            client = server.client(token, source)
            assert client.get("/streams").status == 200
            client.close()
    for number in range(90):
        assert root.delete(f"/personal-access-tokens/door{number}").status == 204
