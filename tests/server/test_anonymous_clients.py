"""Clients of releases without a login act as the user of `legacy.anonymous_user` (docs/protocol/legacy.md#anonymous):
the recorded sessions, and requests that name everything by numbers."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardd.protocol.account_requests import CreateUserRequest
from shardd.protocol.codes import Code
from shardd.protocol.permissions import Permissions
from tests.golden.test_legacy_frames import Exchange, answer_to, differences, exchanges
from tests.support import wire
from tests.support.server import ONE_SHARD, Server
from tests.support.wire import Wire

NAME = "reader"
UNAUTHENTICATED = 40
PING_OF_0_0_1 = b"\x01\0\0\0\x01"
ALL = Permissions(manage_streams=True, read_streams=True, poll_messages=True, send_messages=True)


def started(path: Path, user: str, release: str) -> Server:
    settings = {"SHARDD_LEGACY_ANONYMOUS_USER": user, "SHARDD_LEGACY_ANONYMOUS_RELEASE": release}
    server = Server(path / "data", env=ONE_SHARD | settings)
    server.start()
    with Wire(server.address) as root:
        root.login()
        root.request(Code.CREATE_USER, CreateUserRequest(NAME, "reader-secret", 1, ALL).encode())
    return server


@pytest.fixture
def connection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    """To a server that takes who knows no login for this release."""
    server = started(tmp_path, NAME, getattr(request, "param", "0.0.69"))
    try:
        with socket.create_connection(server.endpoint, timeout=20) as opened:
            yield opened
    finally:
        server.stop()


def u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def frame(code: int, payload: bytes) -> bytes:
    return struct.pack("<II", 4 + len(payload), code) + payload


def status_of(answer: bytes) -> int:
    return int(struct.unpack_from("<I", answer)[0])


def in_order(section: str) -> list[Exchange]:
    """The recorded requests, those that make things first; what a section lacks of these is taken from another one."""
    of_others = (
        ("crate 0.0.61", Code.CREATE_STREAM),
        ("crate 0.0.53", Code.CREATE_TOPIC),
        ("crate 0.0.53", Code.SEND_MESSAGES),
    )
    found = [*exchanges(section)]
    for other, code in of_others:
        if code not in {each.code for each in found}:
            found += [each for each in exchanges(other) if each.code == code]
    order = {Code.CREATE_STREAM: 0, Code.CREATE_TOPIC: 1, Code.SEND_MESSAGES: 2, Code.CREATE_CONSUMER_GROUP: 3}
    return sorted(found, key=lambda each: order.get(Code(each.code), 4))


@pytest.mark.parametrize(
    ("connection", "section"),
    [("0.0.26", "crate 0.0.26"), ("0.0.53", "crate 0.0.53"), ("0.0.69", "crate 0.0.61")],
    indirect=["connection"],
)
def test_recorded_sessions_without_a_login_are_answered(connection: socket.socket, section: str) -> None:
    """Polls byte by byte; other answers were recorded with figures that nobody can make up again."""
    for each in in_order(section):
        answer = answer_to(connection, each.request)
        assert status_of(answer) == 0, each.note
        if each.code == Code.POLL_MESSAGES:
            assert differences(each.answer, answer) == [], each.note
        elif each.code in (Code.GET_STREAM, Code.GET_TOPIC, Code.GET_CONSUMER_OFFSET):
            assert len(answer) == len(each.answer), each.note


def test_requests_that_name_everything_by_numbers_are_understood(connection: socket.socket) -> None:
    """0.0.11 to 0.0.13: kinds begin at 0, a send has a count, polls answer records of 36 bytes."""
    record = bytes(16) + u32(5) + b"hello"
    answers = [
        answer_to(connection, request)
        for request in (
            frame(Code.CREATE_STREAM, u32(7) + b"st"),
            frame(Code.CREATE_TOPIC, u32(7, 3, 2) + b"tp"),
            frame(Code.SEND_MESSAGES, u32(7, 3) + b"\x01\x04" + u32(1, 2) + 2 * record),
            frame(Code.GET_STREAM, u32(7)),
            frame(Code.POLL_MESSAGES, b"\0" + u32(5, 7, 3, 1) + b"\0" + bytes(8) + u32(10) + b"\x01"),
            frame(Code.GET_CONSUMER_OFFSET, b"\0" + u32(5, 7, 3, 1)),
            frame(Code.CREATE_CONSUMER_GROUP, u32(7, 3, 4)),
            frame(Code.GET_CONSUMER_GROUP, u32(7, 3, 4)),
            frame(Code.DELETE_TOPIC, u32(7, 3)),
        )
    ]
    assert list(map(status_of, answers)) == [0] * 9
    polled = answers[4]
    assert struct.unpack_from("<III", polled) == (0, 4 + 2 * 41, 2)
    assert polled[12:20] == bytes(8) and polled[12 + 36 : 12 + 41] == b"hello"
    assert answers[5][8:] == u32(5) + struct.pack("<Q", 1)
    assert answers[7][8:] == u32(4, 2, 0)


def test_a_send_may_be_the_first_request(connection: socket.socket) -> None:
    """And as large as any: who sends is asked for before it is taken."""
    for each in in_order("crate 0.0.61")[:2]:
        assert status_of(answer_to(connection, each.request)) == 0
    send = b"x" * 300_000
    with socket.create_connection(connection.getpeername(), timeout=20) as other:
        head = wire.identifier(7) + wire.identifier(3) + b"\x02\x04" + u32(1)
        record = bytes(16) + u32(0, len(send)) + send
        assert status_of(answer_to(other, frame(Code.SEND_MESSAGES, head + record))) == 0
        poll = (
            b"\x01" + u32(5) + wire.identifier(7) + wire.identifier(3) + u32(1) + b"\x01" + bytes(8) + u32(10) + b"\0"
        )
        assert answer_to(other, frame(Code.POLL_MESSAGES, poll))[-len(send) :] == send


def test_who_logs_in_after_all_is_who_it_says(connection: socket.socket) -> None:
    with Wire(":".join(map(str, connection.getpeername()))) as classic:
        classic.login()
        classic.create_stream("of-root")
    for login in exchanges("PyPI 0.1.0")[:1] + exchanges("PyPI 0.2.7")[1:2]:
        with socket.create_connection(connection.getpeername(), timeout=20) as other:
            assert status_of(answer_to(other, login.request)) == 0
            assert status_of(answer_to(other, frame(Code.GET_USERS, b""))) == 0  # the anonymous user may not


def test_the_anonymous_user_has_its_rights_and_no_more(connection: socket.socket) -> None:
    assert status_of(answer_to(connection, frame(Code.GET_STREAMS, b""))) == 0
    assert status_of(answer_to(connection, frame(Code.GET_USERS, b""))) == 41
    assert status_of(answer_to(connection, frame(Code.DELETE_USER, wire.identifier(2)))) == 41


@pytest.mark.parametrize("first", [frame(23, u32(1)), frame(2, b""), frame(20, u32(1)), PING_OF_0_0_1])
def test_clients_before_the_final_codes_are_closed(connection: socket.socket, first: bytes) -> None:
    connection.sendall(first)
    assert connection.makefile("rb").read() in (struct.pack("<II", 3, 0), b"")


@pytest.mark.parametrize("user", ["iggy", "nobody"])
def test_nobody_acts_as_root_or_as_nobody_in_particular(user: str, tmp_path: Path) -> None:
    server = started(tmp_path, user, "0.0.69")
    try:
        with socket.create_connection(server.endpoint, timeout=20) as connection:
            for request in (frame(Code.GET_STREAMS, b""), exchanges("crate 0.0.26")[3].request):
                assert status_of(answer_to(connection, request)) == UNAUTHENTICATED
    finally:
        server.stop()


def test_without_the_setting_who_knows_no_login_is_refused(tmp_path: Path) -> None:
    with Server(tmp_path / "data", env=ONE_SHARD) as server:
        with socket.create_connection(server.endpoint, timeout=20) as connection:
            for each in exchanges("crate 0.0.61"):
                assert status_of(answer_to(connection, each.request)) in (3, UNAUTHENTICATED)
        with socket.create_connection(server.endpoint, timeout=20) as connection:
            connection.sendall(PING_OF_0_0_1)
            assert connection.recv(8) == b""
