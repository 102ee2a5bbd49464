"""What one user has of the door's shared places, from however many addresses: others are served beside it."""

from __future__ import annotations

import json
import select
import socket
import time
from contextlib import ExitStack
from typing import Final

import pytest

from shardd.doors.http.bodies import ALL_BODIES_BYTES_MAX
from shardd.doors.http.polls import STREAMS_MAX, STREAMS_OF_ADDRESS_MAX
from tests.doors.http_server import WAIT_S, HttpClient, HttpServer
from tests.doors.test_http_events import Events
from tests.support import wire
from tests.support.serving import Serving
from tests.support.wide import wide

OTHER: Final = "127.0.0.2"
ADDRESSES: Final = tuple(f"127.0.1.{number}" for number in range(1, 1 + STREAMS_MAX // STREAMS_OF_ADDRESS_MAX))
MESSAGES_PATH: Final = "/streams/s/topics/t/messages"
MESSAGE_BYTES: Final = 1_000_000
MESSAGES: Final = 7
BATCH: Final = "application/vnd.shardd.batch"
RIGHTS: Final = {"global": {"read_streams": True, "read_topics": True, "poll_messages": True, "read_servers": True}}
RECEIVE_BYTES: Final = 8192
BODY_BYTES: Final = 1_000_000
LOOK_S: Final = 8.0
CONTROLS: Final = 4
LEFT: Final = 300
GROWTH_BYTES_MAX: Final = 300 << 20


def fill(server: HttpServer) -> None:
    with wire.connect(server.address) as tcp:
        tcp.create_topic(tcp.create_stream("s"), "t", 2)
        for _ in range(MESSAGES):
            tcp.send("s", "t", wire.to_partition(0), [wire.message(b"x" * MESSAGE_BYTES)])
    root = server.root()
    for name in ("greedy", "modest"):
        root.done("POST", "/users", {"username": name, "password": "secret", "permissions": RIGHTS})
    root.close()


SERVER: Final = Serving(HttpServer, fill=fill)


def token_of(server: HttpServer, name: str) -> str:
    client = server.logged_in(name, "secret")
    client.close()
    return client.token


def ask_and_read_nothing(server: HttpServer, token: str, source: str, accept: str) -> socket.socket:
    """A connection whose client asks for all messages and takes no byte of them."""
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    stream.bind((source, 0))
    stream.connect(server.http_address)
    query = f"?partition_id=0&kind=first&count={MESSAGES}"
    head = f"GET {MESSAGES_PATH}{query} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n"
    stream.sendall(f"{head}Authorization: Bearer {token}\r\n\r\n".encode())
    return stream


def polls(client: HttpClient) -> int:
    """How many messages a poll of all finds."""
    answer = client.get(f"{MESSAGES_PATH}?partition_id=0&kind=first&count={MESSAGES}")
    assert answer.status == 200, answer.body[:200]
    return len(json.loads(answer.body)["messages"])


def test_streams_of_one_user_from_many_addresses_leave_places_to_another_user(server: HttpServer) -> None:
    greedy, modest = token_of(server, "greedy"), token_of(server, "modest")
    with ExitStack() as held, wire.connect(server.address) as tcp:
        for source in ADDRESSES:
            for _ in range(STREAMS_OF_ADDRESS_MAX):
                stream = held.enter_context(Events(server, greedy, "partition_id=1", source=source))
                assert stream.answer.status == 200, "one user may have all of them while no other needs one"
        follower = held.enter_context(Events(server, modest, "partition_id=1", source=OTHER))
        assert follower.answer.status == 200
        tcp.send("s", "t", wire.to_partition(1), [wire.message(b"to all")])
        assert follower.take()[1] == b"to all"
        with pytest.raises((EOFError, OSError)):
            while True:
                stream.take()  # the newest of the greedy user has given way


def test_users_of_one_address_have_streams_of_their_own(server: HttpServer) -> None:
    greedy, modest = token_of(server, "greedy"), token_of(server, "modest")
    with ExitStack() as held:
        for _ in range(STREAMS_OF_ADDRESS_MAX):
            assert held.enter_context(Events(server, greedy, source=OTHER)).answer.status == 200
        assert held.enter_context(Events(server, greedy, source=OTHER)).answer.status == 503
        assert held.enter_context(Events(server, modest, source=OTHER)).answer.status == 200


@pytest.mark.parametrize("accept", [wide("application/json"), BATCH])
def test_answers_that_one_user_never_reads_hold_up_no_poll_of_another(server: HttpServer, accept: str) -> None:
    """128 of them from 4 addresses are 900 MB: the door keeps what it has room for, and others poll as before."""
    greedy, modest = token_of(server, "greedy"), token_of(server, "modest")
    with ExitStack() as held:
        other = server.client(modest, OTHER)
        held.callback(other.close)
        assert polls(other) == MESSAGES, "the control"
        before = server.door().memory_info().rss
        for source in ADDRESSES:
            for _ in range(32):
                held.enter_context(ask_and_read_nothing(server, greedy, source, accept))
        ended_at_s = time.monotonic() + LOOK_S
        while time.monotonic() < ended_at_s:
            assert polls(other) == MESSAGES
            assert server.door().memory_info().rss - before < GROWTH_BYTES_MAX
    assert "Traceback" not in server.log()


def test_bodies_that_one_user_drips_leave_room_for_those_of_another(server: HttpServer) -> None:
    """Each lacks its last byte; together they are all that two addresses may have."""
    greedy, modest = token_of(server, "greedy"), token_of(server, "modest")
    head = (
        f"POST {MESSAGES_PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {greedy}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
    ).encode()
    with ExitStack() as held:
        for source in ADDRESSES[:2]:
            for _ in range(ALL_BODIES_BYTES_MAX // 2 // BODY_BYTES):
                stream = held.enter_context(server.connect(source))
                stream.sendall(head + b" " * (BODY_BYTES - 1))
        other = server.client(modest, OTHER)
        held.callback(other.close)
        body = b'{"partitioning": {"kind": "balanced"}, "messages": []}' + b" " * (BODY_BYTES + BODY_BYTES // 2)
        assert other.post(MESSAGES_PATH, body).status not in (413, 503)


def ask_for_snapshot(server: HttpServer, token: str, source: str) -> socket.socket:
    """The connection, whose answer is not read."""
    body = b'{"compression": "Xz", "snapshot_types": ["All"]}'
    head = (
        f"POST /snapshot HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    stream = server.connect(source)
    stream.sendall(head.encode() + body)
    return stream


def test_snapshots_asked_for_and_left_keep_nobody_waiting(server: HttpServer) -> None:
    """Another user's is made as if they were a few: each takes about as long as that of the control."""
    greedy, modest = token_of(server, "greedy"), token_of(server, "modest")
    other = server.client(modest, OTHER)
    try:
        began_s = time.monotonic()
        for _ in range(CONTROLS):
            assert other.post("/snapshot", {"compression": "Xz"}).status == 200
        control_s = (time.monotonic() - began_s) / CONTROLS
        asked = [ask_for_snapshot(server, greedy, ADDRESSES[at % len(ADDRESSES)]) for at in range(LEFT)]
        select.select(asked, (), (), WAIT_S)  # one has its answer: the others have been heard
        for stream in asked:
            stream.close()
        began_s = time.monotonic()
        assert other.get("/stats").status == 200
        assert other.post("/snapshot", {"compression": "Xz"}).status == 200
        assert time.monotonic() - began_s < control_s * LEFT / 6
    finally:
        other.close()
