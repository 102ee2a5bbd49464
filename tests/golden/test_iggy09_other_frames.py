"""Frames of the released client 0.9 that were recorded beside the exchange, as bytes: each does what it says."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from tests.support import wire
from tests.support.iggy09 import Connection, bytes_of, head
from tests.support.server import Server

CREATE_TOKEN, CREATE_STREAM, CREATE_TOPIC, UPDATE_TOPIC, DELETE_PARTITIONS = 146, 128, 132, 133, 137
CREATE_USER, UPDATE_USER, CHANGE_PASSWORD, UPDATE_PERMISSIONS = 141, 142, 144, 145
REGISTER, GET_TOPIC, GET_USER = 1, 300, 31
# protocol version, "rust-sdk", "0.11.0"; a token and no context follow
TOKEN_LOGIN = "002c0000 08727573742d73646b 06302e31312e30"
NEW_USER = "04626f62310870617373776f72640201200000000000000000010000000001010000000001000000000102000000000000010000"
RENAMED_USER = "0204626f6231 01 04626f6232 01 01"
NEW_PASSWORD = "0204626f6232 0870617373776f7264 0970617373776f726432"
NO_PERMISSIONS = "0204626f6232 00"
FEWER_PARTITIONS = "020153 0203543162 01000000"
UPDATED_TOPIC = "020153 02025431 03543162 0215000000636f6d7072657373696f6e5f616c676f726974686d 02040000006e6f6e65"


@pytest.fixture
def root(server: Server) -> Iterator[Connection]:
    with Connection(server.address) as opened:
        assert opened.login().status == 0
        yield opened


def test_a_token_logs_in_with_the_body_of_a_token(server: Server, root: Connection) -> None:
    created = root.change(CREATE_TOKEN, b"\x06tokabc" + bytes(8))
    assert created.body[:4] == bytes(4)
    token = created.body[5 : 5 + created.body[4]]
    with Connection(server.address) as other:
        for given, reason in ((b"tokabc", 10), (token, 0)):
            body = bytes_of(TOKEN_LOGIN) + bytes([len(given)]) + given + bytes(4)
            other.send(head(256 + len(body), REGISTER, client=other.client) + body)
            answer = other.receive()
            assert (answer.status, answer.reason) == (0, reason)
        assert answer.body[:8] == bytes(8)  # success, and the user is root
        assert answer.body[16:] == bytes_of("002c0000 05302e392e30")


def test_a_user_is_made_renamed_and_loses_its_rights(server: Server, root: Connection) -> None:
    made = root.change(CREATE_USER, bytes_of(NEW_USER))
    assert made.body[:4] == bytes(4) and made.body[17:22] == b"\x04bob1"
    assert root.change(UPDATE_USER, bytes_of(RENAMED_USER)).body == bytes(4)
    assert root.change(CHANGE_PASSWORD, bytes_of(NEW_PASSWORD)).body == bytes(4)
    assert root.read(GET_USER, bytes_of("0204626f6231")).body == b""
    assert root.read(GET_USER, bytes_of("0204626f6232")).body.count(b"\x04bob2") == 1
    assert root.change(UPDATE_PERMISSIONS, bytes_of(NO_PERMISSIONS)).body == bytes(4)
    shown = root.read(GET_USER, bytes_of("0204626f6232")).body
    assert shown.endswith(b"\x04bob2" + bytes(4) + bytes(4))  # no options, no permissions
    with Connection(server.address) as bob:
        assert bob.login(b"bob2", b"password").reason == 9
        assert bob.login(b"bob2", b"password2").status == 0


def test_a_topic_is_updated_and_loses_a_partition(root: Connection) -> None:
    assert root.change(CREATE_STREAM, b"\1S").status == 0
    assert root.change(CREATE_TOPIC, wire.identifier("S") + struct.pack("<I", 3) + b"\2T1").status == 0
    assert root.change(UPDATE_TOPIC, bytes_of(UPDATED_TOPIC)).body == bytes(4)
    assert root.change(DELETE_PARTITIONS, bytes_of(FEWER_PARTITIONS)).body == bytes(4)
    shown = root.read(GET_TOPIC, wire.identifier("S") + wire.identifier("T1b")).body
    assert struct.unpack_from("<I", shown, 12) == (2,)
    assert root.read(GET_TOPIC, wire.identifier("S") + wire.identifier("T1")).body == b""
