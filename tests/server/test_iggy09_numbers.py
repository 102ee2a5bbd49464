"""Numbers of requests and sessions of 0.9, one test for each rule of docs/protocol/iggy-0.9.md#numbers."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from xxhash import xxh3_64_intdigest as xxh3_64

from tests.support import wire
from tests.support.iggy09 import Answer, Connection, head
from tests.support.server import Server

CREATE_STREAM, DELETE_STREAM, LOGOUT, SEND, STORE_OFFSET = 128, 130, 3, 160, 161
NON_REPLICATED, PING, GET_STREAMS = 2, 1, 201
ALREADY_APPLIED, EXISTS, INVALID_FORMAT, INVALID_COMMAND, INVALID_SESSION = 59, 1012, 4, 3, 14001
NO_SESSION, SESSION_TOO_LOW = 1, 7


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    with Connection(server.address) as opened:
        assert opened.login().status == 0
        yield opened


def named(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def ask(
    connection: Connection, operation: int, body: bytes, request: int, session: int | None = None, checksum: int = 0
) -> Answer:
    """With a number, a session and a checksum as they are given."""
    own = connection.session if session is None else session
    frame = head(256 + len(body), operation, 0, request, own, checksum, connection.client)
    connection.send(frame + body)
    return connection.receive()


def streams(connection: Connection) -> bytes:
    return connection.read(GET_STREAMS).body


def test_a_greater_number_is_carried_out_and_gaps_are_allowed(connection: Connection) -> None:
    for request in (1, 2, 7, 1000, 2**63):
        answer = ask(connection, CREATE_STREAM, named(f"gap{request}"), request)
        assert (answer.status, answer.reason) == (0, 0)
        assert struct.unpack_from("<Q", answer.head, 200) == (request,)


@pytest.mark.parametrize("stamped", [(True, True), (True, False), (False, True), (False, False)])
def test_the_last_number_again_gets_the_same_bytes_when_a_checksum_is_missing_or_the_same(
    connection: Connection, stamped: tuple[bool, bool]
) -> None:
    body = named(f"again{stamped}")
    sums = [xxh3_64(body) if each else 0 for each in stamped]
    first = ask(connection, CREATE_STREAM, body, 5, checksum=sums[0])
    again = ask(connection, CREATE_STREAM, body, 5, checksum=sums[1])
    assert first.status == again.status == 0 and again.body == first.body != b""
    assert again.head[200:209] == first.head[200:209]
    assert streams(connection).count(body) == 1


def test_a_refusal_is_an_answer_that_comes_again(connection: Connection) -> None:
    assert ask(connection, CREATE_STREAM, named("twice"), 1).status == 0
    for _ in range(2):
        assert ask(connection, CREATE_STREAM, named("twice"), 2).status == EXISTS
    assert ask(connection, DELETE_STREAM, wire.identifier("twice"), 3).status == 0
    assert ask(connection, DELETE_STREAM, wire.identifier("twice"), 3).status == 0  # not 1009: it was this request


def test_the_last_number_with_another_body_or_operation_is_refused(connection: Connection) -> None:
    one, other = named("one"), named("other")
    assert ask(connection, CREATE_STREAM, one, 1, checksum=xxh3_64(one)).status == 0
    assert ask(connection, CREATE_STREAM, other, 1, checksum=xxh3_64(other)).status == INVALID_FORMAT
    assert ask(connection, DELETE_STREAM, wire.identifier("one"), 1).status == INVALID_FORMAT
    assert other not in streams(connection) and one in streams(connection)


def test_a_smaller_number_was_applied(connection: Connection) -> None:
    assert ask(connection, CREATE_STREAM, named("at9"), 9).status == 0
    for request in (1, 8):
        assert ask(connection, CREATE_STREAM, named("below"), request).status == ALREADY_APPLIED
    assert named("below") not in streams(connection)


def test_a_send_and_an_offset_again_succeed_and_nothing_happens(server: Server, connection: Connection) -> None:
    with wire.connect(server.address) as classic:
        stream = classic.create_stream("repeated")
        classic.create_topic(stream, "t", 1)
        classic.send(stream, 0, wire.to_partition(0), [wire.message(b"stored")])
        where = wire.identifier("repeated") + wire.identifier("t")
        polled = connection.read(100, b"\1" + wire.identifier(7) + where + b"\1" + struct.pack("<IBQIB", 0, 1, 0, 1, 0))
        metadata = where + wire.to_partition(0) + struct.pack("<I", 1)
        body = struct.pack("<I", len(metadata)) + metadata + polled.body[16:]
        for _ in range(3):
            answer = ask(connection, SEND, body, 1)
            assert (answer.status, answer.reason, answer.body) == (0, 0, b"")
        assert len(classic.read_all(stream, 0, 0)) == 2
        store = b"\1" + wire.identifier(7) + where + b"\1" + struct.pack("<IQB", 0, 1, 1)
        for _ in range(2):
            assert ask(connection, STORE_OFFSET, store, 2).body == bytes(4)


def test_reads_have_no_number_of_their_own(connection: Connection) -> None:
    assert ask(connection, CREATE_STREAM, named("read"), 3).status == 0
    for request in (0, 1, 3, 3, 4):
        connection.request = request
        assert named("read") in streams(connection)
    assert ask(connection, CREATE_STREAM, named("read4"), 4).status == 0


def test_another_session_is_too_low_or_unknown(connection: Connection) -> None:
    own = connection.session
    assert ask(connection, CREATE_STREAM, named("low"), 1, own - 1).reason == SESSION_TOO_LOW
    assert ask(connection, CREATE_STREAM, named("low"), 1, own + 1).status == INVALID_SESSION
    assert named("low") not in streams(connection)
    assert ask(connection, CREATE_STREAM, named("low"), 1, own).status == 0  # the number was not used by those


def test_a_login_again_ends_the_session_before_and_counts_anew(connection: Connection) -> None:
    before = connection.session
    assert ask(connection, CREATE_STREAM, named("before"), 1).status == 0
    assert connection.login().status == 0
    assert connection.session > before
    assert ask(connection, CREATE_STREAM, named("of-before"), 1, before).reason == SESSION_TOO_LOW
    assert ask(connection, CREATE_STREAM, named("after"), 1).status == 0


def test_numbers_and_sessions_of_zero_are_no_requests(connection: Connection) -> None:
    assert ask(connection, CREATE_STREAM, named("zero"), 0).status == INVALID_COMMAND
    assert ask(connection, CREATE_STREAM, named("zero"), 1, 0).status == INVALID_COMMAND
    assert ask(connection, LOGOUT, b"", 0).status == INVALID_COMMAND
    assert named("zero") not in streams(connection)


def test_a_checksum_must_be_that_of_the_body(connection: Connection) -> None:
    body = named("sum")
    assert ask(connection, CREATE_STREAM, body, 1, checksum=xxh3_64(body) ^ 1).status == INVALID_FORMAT
    assert ask(connection, CREATE_STREAM, body, 1, checksum=xxh3_64(body)).status == 0  # it was not used


def test_without_a_session_changes_are_evicted_and_a_logout_succeeds(server: Server) -> None:
    with Connection(server.address) as stranger:
        assert ask(stranger, CREATE_STREAM, named("never"), 1, 1).reason == NO_SESSION
        logout = ask(stranger, LOGOUT, b"", 1, 1)
        assert (logout.status, logout.reason, logout.body) == (0, 0, b"")
        assert stranger.read(PING).status == 0
        assert stranger.login().status == 0
        assert named("never") not in streams(stranger)


def test_after_a_logout_the_session_is_gone(connection: Connection) -> None:
    assert connection.change(LOGOUT).status == 0
    assert connection.change(CREATE_STREAM, named("late")).reason == NO_SESSION
    assert connection.read(GET_STREAMS).status == 40
    assert connection.read(PING).status == 0
    assert connection.login().status == 0
    assert named("late") not in streams(connection)
