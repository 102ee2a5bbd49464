"""Clients of the embedded NATS server that mean no good, and what the others notice of them: nothing."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from shardd.doors.liftbridge.nats import audience as nats_audience
from shardd.doors.liftbridge.nats import server as nats_server
from shardd.protocol.nats import CONTROL_LINE_BYTES_MAX
from tests.doors.door_server import HOST
from tests.doors.nats_peers import NatsDoor, envelope, nats_client, next_ack, wait_until
from tests.support.on_loop import on_loop

MEMORY_MAX_BYTES = 400 << 20
CONNECT = b"CONNECT {}\r\n"


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsDoor]:
    with NatsDoor(tmp_path_factory.mktemp("nats") / "data") as each:
        each.make_writer()
        each.make_writer("victim")
        each.make_stream("busy")
        yield each


@contextlib.contextmanager
def sockets(door: NatsDoor, count: int, said: bytes) -> Iterator[list[socket.socket]]:
    """So many connections that have sent this, as far as the door reads."""
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            each = stack.enter_context(socket.create_connection((HOST, door.nats_port), timeout=30))
            made.append(each)
            each.sendall(CONNECT)
            each.settimeout(0.05)
            with contextlib.suppress(OSError):
                each.sendall(said)
        yield made


def serves(door: NatsDoor) -> None:
    """Somebody else logs in, publishes and hears of it."""

    @on_loop
    async def publish() -> None:
        async with nats_client(door.url, user="victim", password="secret") as client:
            acks = await client.subscribe("acks.victim")
            for _ in range(20):
                await client.publish("busy", envelope(b"x" * 1_000, "acks.victim"))
            for _ in range(20):
                assert (await next_ack(acks)).ackError == 0

    publish()


def ending(said: bytes, door: NatsDoor) -> bytes:
    """What a client hears that sends this and then waits for the end of its connection."""
    with socket.create_connection((HOST, door.nats_port), timeout=30) as client:
        client.sendall(said)
        heard = b""
        with contextlib.suppress(ConnectionError):
            while data := client.recv(65_536):
                heard += data
        return heard


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (b"PUB busy 1\r\nx\r\n", b"Authorization Violation"),
        (b"SUB > 1\r\n", b"Authorization Violation"),
        (b"GET / HTTP/1.1\r\n", b"Unknown Protocol Operation"),
        (CONNECT + CONNECT, b"Unknown Protocol Operation"),
        (CONNECT + b"PUB busy 2000000\r\n", b"Maximum Payload Violation"),
        (b"x" * (CONTROL_LINE_BYTES_MAX + 1), b"Maximum Control Line Exceeded"),
        (
            CONNECT + b"".join(b"SUB a.%d %d\r\n" % (n, n) for n in range(300)),
            b"Maximum Subscriptions Exceeded",
        ),
    ],
)
def test_who_breaks_the_protocol_hears_why_and_ends(said: bytes, text: bytes, door: NatsDoor) -> None:
    assert f"-ERR '{text.decode()}'\r\n".encode() in ending(said, door)
    serves(door)


def test_half_sent_messages_of_many_cost_a_bounded_part(door: NatsDoor) -> None:
    with sockets(door, 200, b"PUB busy 1000000\r\n" + b"x" * 999_999) as many:
        serves(door)
        assert door.figures()["unread"] <= nats_server.UNREAD_BYTES_MAX
        wait_until(lambda: door.figures()["unread"] <= nats_server.UNREAD_BYTES_MAX * 3 // 4, "more than the part")
        assert door.door("liftbridge").memory_info().rss < MEMORY_MAX_BYTES
        del many
    wait_until(lambda: door.figures()["unread"] == 0, "what was half sent is kept")


def test_who_never_reads_is_closed_and_others_hear_on(door: NatsDoor) -> None:
    with sockets(door, 100, b"SUB own.* 1\r\nPING\r\n") as deaf:
        payload = b"y" * 1_000_000
        with socket.create_connection((HOST, door.nats_port), timeout=30) as loud:
            loud.sendall(CONNECT + b"SUB nothing 1\r\n")
            for _ in range(20):
                loud.sendall(b"PUB own.words %d\r\n" % len(payload) + payload + b"\r\n")
            serves(door)
            assert door.figures()["unsent"] <= nats_server.UNSENT_BYTES_MAX + (1 << 20)
            assert door.door("liftbridge").memory_info().rss < MEMORY_MAX_BYTES
        wait_until(lambda: door.losses().get("subscriber too slow", 0) >= len(deaf) // 2, "nobody is closed")
    wait_until(lambda: door.figures()["unsent"] == 0, "what was not read is kept")
    serves(door)


def test_who_says_nothing_keeps_nobody_out(door: NatsDoor) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection((HOST, door.nats_port), timeout=30)) for _ in range(300)]
        serves(door)
        ended = 0
        deadline = time.monotonic() + 60
        while ended < len(silent):
            assert time.monotonic() < deadline
            ended = sum(is_ended(each) for each in silent)


def is_ended(client: socket.socket) -> bool:
    client.settimeout(0.01)
    try:
        while data := client.recv(65_536):
            del data
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def test_subscribers_without_a_right_cost_little_and_hear_nothing(door: NatsDoor) -> None:
    door.make_writer("nosy", {"send_messages": True})
    said = b"".join(b"SUB > %d\r\n" % n for n in range(nats_audience.SUBSCRIPTIONS_PER_CONNECTION_MAX - 1))
    with socket.create_connection((HOST, door.nats_port), timeout=30) as nosy:
        nosy.sendall(b'CONNECT {"user":"nosy","pass":"secret"}\r\n' + said + b"PING\r\n")
        heard = b""
        while b"PONG" not in heard:
            heard += nosy.recv(65_536)
        serves(door)
        nosy.sendall(b"PING\r\n")
        heard = b""
        while b"PONG" not in heard:
            heard += nosy.recv(65_536)
        assert b"MSG" not in heard


def test_a_flood_of_one_user_leaves_room_for_others(door: NatsDoor) -> None:
    lines = b"PUB busy 1000\r\n" + b"z" * 1_000 + b"\r\n"
    with sockets(door, 30, lines * 2_000):
        serves(door)
        assert door.door("liftbridge").memory_info().rss < MEMORY_MAX_BYTES
