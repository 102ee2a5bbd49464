"""Who waits for the turn of a password over HTTP holds nothing that others need. Nothing is measured: it is counted how
many of the crowd have their answer when somebody else gets his."""

from __future__ import annotations

import select
import socket
from contextlib import ExitStack
from typing import Final

import msgspec
import pytest

from shardd.doors.http.endpoint import PASSWORD_BODY_BYTES_MAX
from shardd.transport.door.places import REQUESTS_MAX
from tests.doors.http_server import HttpServer
from tests.hostile import crowd
from tests.support.serving import Serving

pytestmark = pytest.mark.usefixtures("hashes_as_served")

CROWD = REQUESTS_MAX * 5 // 2
SOURCES = [f"127.0.0.{number}" for number in range(10, 18)]  # a login at each: the workers have them in turns


def fill(server: HttpServer) -> None:
    crowd.allow_descriptors(2 * CROWD + 500)
    root = server.root()
    root.done("POST", "/users", {"username": "attacker", "password": "attacker-password"})
    root.close()


SERVER: Final = Serving(HttpServer, fill=fill)


def request(method: str, path: str, body: object, token: str = "") -> bytes:
    data = msgspec.json.encode(body)
    who = f"Authorization: Bearer {token}\r\n" if token else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{who}"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def answered(waiting: list[socket.socket]) -> int:
    """Connections on which something has come."""
    poll = select.poll()
    for each in waiting:
        poll.register(each, select.POLLIN)
    return len(poll.poll(0))


@pytest.mark.parametrize("what", ["changes of a password", "logins"])
def test_wrong_passwords_that_wait_stop_nobody(server: HttpServer, what: str) -> None:
    attacker = server.logged_in("attacker", "attacker-password")
    wrong = request("POST", "/users/login", {"username": "attacker", "password": "wrong"})
    if what == "changes of a password":
        change = {"current_password": "wrong", "new_password": "another"}
        wrong = request("PUT", "/users/attacker/password", change, attacker.token)
    attacker.close()
    with ExitStack() as held:
        waiting: list[socket.socket] = []
        for number in range(2 * CROWD):
            waiting.append(held.enter_context(server.connect(SOURCES[number % len(SOURCES)])))
            waiting[-1].sendall(wrong)
        root = server.root()
        held.callback(root.close)
        root.done("GET", "/streams")
        root.done("GET", "/users")
        assert answered(waiting) < CROWD // 2


def test_a_body_with_a_password_is_small(server: HttpServer) -> None:
    said = {"username": "iggy", "password": "iggy", "context": "x" * (PASSWORD_BODY_BYTES_MAX // 2)}
    with ExitStack() as held:
        client = server.client()
        held.callback(client.close)
        assert client.post("/users/login", said).status == 200
        assert client.post("/users/login", {**said, "context": "x" * PASSWORD_BODY_BYTES_MAX}).status == 413
