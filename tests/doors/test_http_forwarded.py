"""Clients behind a trusted proxy of the HTTP door: X-Forwarded-For of named networks says whose a request is."""

from __future__ import annotations

import select
import socket
from typing import Final

import msgspec
import pytest

from tests.doors.http_server import WAIT_S, HttpServer
from tests.support import proxy
from tests.support.serving import Serving
from tests.support.stalls import wait_until

ONE: Final = "192.0.2.1"
TWO: Final = "2001:db8:0:2::7"
ATTEMPTS: Final = 20
PLACES: Final = 4
SETTINGS: Final = proxy.TRUSTED | {
    "SHARDD_HTTP_FORWARDED_FOR": "true",
    "SHARDD_HTTP_ACCESS_LOG": "true",
    "SHARDD_SERVER_LOGIN_TIMEOUT": "10 m",
}
RIGHT: Final = {"username": "iggy", "password": "iggy"}
WRONG: Final = {"username": "iggy", "password": "wrong"}
SERVER: Final = Serving(HttpServer, SETTINGS)


def head(method: str, path: str, forwarded: tuple[str, ...], token: str = "", body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(body)}"]
    lines += [f"X-Forwarded-For: {each}" for each in forwarded]
    lines += ["Content-Type: application/json"] if body else []
    lines += [f"Authorization: Bearer {token}"] if token else []
    return "\r\n".join([*lines, "", ""]).encode() + body


def login(server: HttpServer, said: dict[str, str], *forwarded: str, source: str = proxy.PROXY_HOST) -> socket.socket:
    stream = server.connect(source)
    stream.sendall(head("POST", "/users/login", forwarded, body=msgspec.json.encode(said)))
    return stream


def answer_of(stream: socket.socket) -> tuple[int, bytes]:
    """Status and body."""
    stream.settimeout(WAIT_S)
    data = b""
    while part := stream.recv(1 << 16):
        data += part
    stream.close()
    return int(data.split(b" ", 2)[1]), data.partition(b"\r\n\r\n")[2]


def seen_as(server: HttpServer, path: str, *forwarded: str, source: str = proxy.PROXY_HOST) -> str:
    """What the access log calls the client of such a request."""
    with server.connect(source) as stream:
        stream.sendall(head("GET", path, forwarded))
        answer_of(stream)

    def line() -> str:
        found = [each for each in server.log().splitlines() if f"GET {path} " in each]
        return found[-1].partition(" GET ")[0].split()[-1] if found else ""

    wait_until(lambda: line() != "", f"a line for {path}", WAIT_S)
    return line().rpartition(":")[0]


def test_the_last_entry_that_is_not_of_a_trusted_proxy_is_the_client(server: HttpServer) -> None:
    inner = proxy.PROXY_HOST
    assert seen_as(server, "/a1", ONE) == ONE
    assert seen_as(server, "/a2", TWO) == TWO
    assert seen_as(server, "/a3", f"203.0.113.9, {ONE}") == ONE  # what stands left is the client's own claim
    assert seen_as(server, "/a4", f"203.0.113.9,{ONE}, {inner}") == ONE
    assert seen_as(server, "/a5", "203.0.113.9", f"{ONE}:4711", f" {inner} ,{inner}:80") == ONE  # fields are one list
    assert seen_as(server, "/a6", f"[{TWO}]:443") == TWO
    assert seen_as(server, "/a7", f"::ffff:{ONE}") == ONE
    assert seen_as(server, "/a8", f"{inner}, {inner}") == inner


def test_what_is_not_an_address_leaves_the_proxy_that_told_it(server: HttpServer) -> None:
    inner = proxy.PROXY_HOST
    for number, entry in enumerate(
        ("unknown", "", ",", "_hidden", "192.0.2", f"{ONE} x", f"{ONE}:x", f"{ONE}:65536", "fe80::1%lo", "[::1", "\xff")
    ):
        assert seen_as(server, f"/b{number}", f"{ONE}, {entry}") == inner, entry
    assert seen_as(server, "/c") == inner
    assert seen_as(server, "/d", ", ".join([ONE, *([inner] * 5000)])[:20_000]) == inner  # a bounded walk


def test_the_field_of_an_untrusted_peer_is_ignored(server: HttpServer) -> None:
    assert seen_as(server, "/e", ONE, source="127.0.0.3") == "127.0.0.3"
    with server.connect("127.0.0.3") as stream:
        token = server.root().token
        stream.sendall(head("GET", "/clients", (ONE,), token))
        status, body = answer_of(stream)
    assert status == 200 and ONE.encode() not in body


def test_clients_are_listed_by_the_address_that_the_proxy_tells(server: HttpServer) -> None:
    status, body = answer_of(login(server, RIGHT, ONE))
    assert status == 200
    token = msgspec.json.decode(body)["access_token"]["token"]
    with server.connect(proxy.PROXY_HOST) as stream:
        stream.sendall(head("GET", "/clients", (ONE,), token))
        status, body = answer_of(stream)
    assert status == 200 and f"{ONE}:".encode() in body and proxy.PROXY_HOST.encode() not in body


def test_wrong_passwords_of_one_client_behind_a_proxy_do_not_hold_up_another(server: HttpServer) -> None:
    """A client whose address is known for the account is not in the line of those that guess from another one."""
    assert answer_of(login(server, RIGHT, TWO))[0] == 200
    guessing = [login(server, WRONG, "198.51.100.9") for _ in range(ATTEMPTS)]
    assert answer_of(guessing[0])[0] == 400  # they are at it
    assert answer_of(login(server, RIGHT, TWO))[0] == 200
    answered, _, _ = select.select(guessing[1:], [], [], 0)
    assert len(answered) < ATTEMPTS - 1
    for each in guessing[1:]:
        each.close()


def test_clients_behind_one_proxy_have_their_own_places(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Connections of the proxy are more than one address may have; each client has as many requests at work."""
    settings = SETTINGS | {"SHARDD_SERVER_CONNECTIONS_PER_ADDRESS_MAX": str(PLACES)}
    with HttpServer(tmp_path_factory.mktemp("places") / "data", settings) as server:
        half = head("POST", "/users/login", (ONE,), body=msgspec.json.encode(RIGHT))[:-1]
        waiting = [server.connect(proxy.PROXY_HOST) for _ in range(PLACES)]
        for stream in waiting:
            stream.sendall(half)  # its body is waited for

        def is_refused() -> bool:
            return answer_of(login(server, RIGHT, ONE))[0] == 503

        wait_until(is_refused, "the places of the client are taken", WAIT_S)
        assert [answer_of(login(server, RIGHT, TWO))[0] for _ in range(PLACES)] == [200] * PLACES
        line = f" {ONE}:0 POST /users/login 503 "
        wait_until(lambda: line in server.log(), "the refusal is a line of the access log", WAIT_S)
        direct = [server.connect("127.0.0.3") for _ in range(PLACES)]  # who connects itself has no more than before
        with server.connect("127.0.0.3") as more:
            more.settimeout(WAIT_S)
            assert is_ended(more)
        for stream in waiting + direct:
            stream.close()
        wait_until(lambda: not is_refused(), "the places of the client are free", WAIT_S)


def is_ended(stream: socket.socket) -> bool:
    try:
        return stream.recv(1) == b""
    except ConnectionResetError:
        return True


def test_the_field_is_ignored_without_the_switch(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = SETTINGS | {"SHARDD_HTTP_FORWARDED_FOR": "false", "SHARDD_TCP_PROXY_PROTOCOL": "true"}
    with HttpServer(tmp_path_factory.mktemp("off") / "data", settings) as server:
        assert seen_as(server, "/a", ONE) == proxy.PROXY_HOST
