"""Clients of 0.9 whose connection is cut between a request and its answer, and who repeat it on the next one
(docs/protocol/iggy-0.9.md#numbers)."""

from __future__ import annotations

import os
import struct
from typing import Final

import pytest

from tests.support import wire
from tests.support.iggy09 import Answer, Connection, head
from tests.support.server import TWO_SHARDS, Server
from tests.support.serving import Serving

CREATE_STREAM, DELETE_STREAM, CREATE_USER, LOGOUT, SEND = 128, 130, 141, 3, 160
CREATE_TOPIC = 132
GET_STREAMS = 201
ALREADY_APPLIED, EXISTS, INVALID_FORMAT, SESSION_ERROR = 59, 1012, 4, 12
CUTS = ("closed", "reset", "silent")
WAIT_S = 30.0
SERVER: Final = Serving(env=TWO_SHARDS)


def named(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def frame(connection: Connection, operation: int, body: bytes, request: int) -> bytes:
    return head(256 + len(body), operation, 0, request, connection.session, 0, connection.client) + body


def ask(connection: Connection, operation: int, body: bytes, request: int) -> Answer:
    connection.send(frame(connection, operation, body, request))
    return connection.receive()


def cut(connection: Connection, how: str) -> None:
    """Silent: the server does not hear of it."""
    if how == "reset":
        connection.reset()
    elif how == "closed":
        connection.close()


def again(server: Server, client: bytes) -> Connection:
    connection = Connection(server.address, client)
    answer = connection.login()
    assert (answer.status, answer.reason) == (0, 0)
    return connection


def streams(server: Server) -> bytes:
    with wire.connect(server.address) as classic:
        return classic.request(GET_STREAMS)


@pytest.mark.parametrize("how", CUTS)
def test_an_answer_that_was_lost_with_its_connection_comes_on_the_next_one(server: Server, how: str) -> None:
    client, name = os.urandom(16), f"lost-{how}"
    first = again(server, client)
    first.send(frame(first, CREATE_STREAM, named(name), 1))
    assert first.wait_for_answer(WAIT_S)  # it is never read
    cut(first, how)
    for _ in range(3):  # however often it is cut, whichever shard it comes to
        second = again(server, client)
        answer = ask(second, CREATE_STREAM, named(name), 1)
        assert (answer.status, answer.reason) == (0, 0)
        assert name.encode() in answer.body
        assert struct.unpack_from("<Q", answer.head, 200) == (1,)
        cut(second, how)
    third = again(server, client)
    assert ask(third, CREATE_STREAM, named(name), 2).status == EXISTS
    assert streams(server).count(name.encode()) == 1


def test_a_refusal_comes_again_even_when_it_would_succeed_now(server: Server) -> None:
    client = os.urandom(16)
    first = again(server, client)
    assert ask(first, CREATE_STREAM, named("taken"), 1).status == 0
    assert ask(first, CREATE_STREAM, named("taken"), 2).status == EXISTS
    first.close()
    with wire.connect(server.address) as classic:
        classic.request(203, wire.identifier("taken"))
    second = again(server, client)
    assert ask(second, CREATE_STREAM, named("taken"), 2).status == EXISTS
    assert b"taken" not in streams(server)


def test_a_send_that_is_repeated_on_the_next_connection_is_stored_once(server: Server) -> None:
    with wire.connect(server.address) as classic:
        stream = classic.create_stream("sent-once")
        classic.create_topic(stream, "t", 1)
        classic.send(stream, 0, wire.to_partition(0), [wire.message(b"stored")])
        where = wire.identifier("sent-once") + wire.identifier("t")
        client = os.urandom(16)
        first = again(server, client)
        polled = first.read(100, b"\1" + wire.identifier(7) + where + b"\1" + struct.pack("<IBQIB", 0, 1, 0, 1, 0))
        metadata = where + wire.to_partition(0) + struct.pack("<I", 1)
        body = struct.pack("<I", len(metadata)) + metadata + polled.body[16:]
        assert ask(first, SEND, body, 1).status == 0
        first.close()
        for _ in range(4):
            second = again(server, client)
            answer = ask(second, SEND, body, 1)
            assert (answer.status, answer.reason, answer.body) == (0, 0, b"")
            second.close()
        assert len(classic.read_all(stream, 0, 0)) == 2


def test_another_request_with_the_last_number_is_refused_on_the_next_connection(server: Server) -> None:
    client = os.urandom(16)
    first = again(server, client)
    assert ask(first, CREATE_STREAM, named("number-1"), 1).status == 0
    first.close()
    second = again(server, client)
    assert ask(second, DELETE_STREAM, wire.identifier("number-1"), 1).status == INVALID_FORMAT
    assert b"number-1" in streams(server)


def test_an_answer_that_is_too_long_to_be_kept_is_told_as_applied(server: Server) -> None:
    client = os.urandom(16)
    first = again(server, client)
    assert ask(first, CREATE_STREAM, named("long"), 1).status == 0
    body = wire.identifier("long") + struct.pack("<I", 100) + named("wide")
    answer = ask(first, CREATE_TOPIC, body, 2)
    assert answer.status == 0 and len(answer.body) > 512
    first.close()
    second = again(server, client)
    assert ask(second, CREATE_TOPIC, body, 2).status == ALREADY_APPLIED
    assert ask(second, CREATE_STREAM, named("long"), 1).status == ALREADY_APPLIED
    assert ask(second, CREATE_STREAM, named("long-2"), 3).status == 0


def test_another_user_gets_neither_the_answer_nor_the_id(server: Server) -> None:
    client = os.urandom(16)
    first = again(server, client)
    assert ask(first, CREATE_USER, b"\x05alien\x08password\x01\x00", 1).status == 0
    assert ask(first, CREATE_STREAM, named("private"), 2).status == 0
    first.close()
    for _ in range(4):
        other = Connection(server.address, client)
        assert other.login(b"alien", b"password").reason == SESSION_ERROR
        other.close()
    second = again(server, client)
    assert b"private" in ask(second, CREATE_STREAM, named("private"), 2).body


def test_after_a_logout_nothing_is_remembered(server: Server) -> None:
    client = os.urandom(16)
    first = again(server, client)
    assert ask(first, CREATE_STREAM, named("out-1"), 1).status == 0
    first.close()
    second = again(server, client)  # on either shard
    assert ask(second, LOGOUT, b"", 2).status == 0
    second.close()
    for number in range(4):
        third = again(server, client)
        assert ask(third, CREATE_STREAM, named(f"out-{number + 2}"), 1).status == 0
        assert ask(third, LOGOUT, b"", 2).status == 0
        third.close()
