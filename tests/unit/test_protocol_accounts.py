"""Requests and replies about users, tokens, snapshots and segments, and the permission block
(docs/protocol/primitives.md#permission-block, 3.1-3.3, 3.6; the block of the section 7 vectors)."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from shardd.protocol import account_replies, account_requests, permissions
from shardd.protocol.account_requests import SnapshotCompression, SnapshotType
from shardd.protocol.catalogue import decode
from shardd.protocol.codes import Code
from shardd.protocol.command_entry import WireRequest
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.permissions import Permissions, StreamPermissions, TopicPermissions
from shardd.protocol.primitives import Reader

EXAMPLE = bytes.fromhex("0000000000010000000001010000000000000000000102000000000001000000")
flags = st.booleans()
topics = st.dictionaries(st.integers(0, 2**32 - 1), st.builds(TopicPermissions, flags, flags, flags, flags), max_size=3)
streams = st.builds(StreamPermissions, *[flags] * 6, topics.map(Map))
rights = st.builds(Permissions, *[flags] * 10, st.dictionaries(st.integers(0, 2**32 - 1), streams, max_size=3).map(Map))


def block(data: bytes, length: int | None = None) -> bytes:
    return struct.pack("<I", len(data) if length is None else length) + data


def refusal(code: int, payload: bytes) -> Status:
    with pytest.raises(ShardError) as caught:
        decode(code, payload)
    return caught.value.status


def test_the_block_of_the_vectors() -> None:
    expected = Permissions(
        read_streams=True, streams=Map({1: StreamPermissions(topics=Map({2: TopicPermissions(poll_messages=True)}))})
    )
    assert permissions.read_permissions(Reader(block(EXAMPLE))) == expected
    assert permissions.encode_permissions(expected) == block(EXAMPLE)


@given(rights)
def test_blocks_survive(value: Permissions) -> None:
    data = permissions.encode_permissions(value)
    assert permissions.read_permissions(Reader(data + b"more")) == value


@given(rights, st.data())
def test_cut_and_mismatching_blocks_are_refused(value: Permissions, data: st.DataObject) -> None:
    whole = permissions.encode_permissions(value)
    with pytest.raises(ShardError) as caught:
        permissions.read_permissions(Reader(whole[: data.draw(st.integers(0, len(whole) - 1))]))
    assert caught.value.status is Status.INVALID_COMMAND
    wrong = data.draw(st.integers(0, 2**32 - 1).filter(lambda length: length != len(whole) - 4))
    with pytest.raises(ShardError) as caught:
        permissions.read_permissions(Reader(block(whole[4:], wrong)))
    assert caught.value.status is Status.INVALID_FORMAT


def test_the_last_entry_of_an_id_wins_and_only_one_says_that_more_follows() -> None:
    entry = struct.pack("<I6BB", 7, 0, 0, 0, 0, 0, 1, 0)
    first = struct.pack("<I6BB", 7, 1, 0, 0, 0, 0, 0, 0)
    value = permissions.read_permissions(Reader(block(bytes(10) + b"\1" + first + b"\1" + entry + b"\0")))
    assert value == Permissions(streams=Map({7: StreamPermissions(send_messages=True)}))
    assert permissions.read_permissions(Reader(block(b"\2" * 10 + b"\2"))) == Permissions(
        True, True, True, True, True, True, True, True, True, True
    )


def test_a_block_cannot_keep_the_server_busy() -> None:
    entry = struct.pack("<I6BB", 7, 0, 0, 0, 0, 0, 0, 0) + b"\1"
    payload = b"\1\4" + bytes(4) + b"\1" + block(bytes(10) + b"\1" + entry * 100_000)
    assert refusal(Code.UPDATE_PERMISSIONS, payload) is Status.INVALID_FORMAT


@pytest.mark.parametrize(
    ("code", "request_"),
    [
        (Code.GET_SNAPSHOT, account_requests.GetSnapshot(SnapshotCompression.LZMA, (SnapshotType.TEST,) * 2)),
        (Code.GET_USER, account_requests.UserRequest("bob")),
        (Code.DELETE_USER, account_requests.UserRequest(7)),
        (Code.CREATE_USER, account_requests.CreateUserRequest("bob", "secret", 1, Permissions(read_users=True))),
        (Code.CREATE_USER, account_requests.CreateUserRequest("bob", "", 9)),
        (Code.UPDATE_USER, account_requests.UpdateUserRequest(1, "alice", 2)),
        (Code.UPDATE_USER, account_requests.UpdateUserRequest(1)),
        (Code.UPDATE_PERMISSIONS, account_requests.UpdatePermissionsRequest("bob", None)),
        (Code.UPDATE_PERMISSIONS, account_requests.UpdatePermissionsRequest("bob", Permissions())),
        (Code.CHANGE_PASSWORD, account_requests.ChangePasswordRequest("bob", "secret", "public")),
        (Code.CREATE_PERSONAL_ACCESS_TOKEN, account_requests.CreateTokenRequest("ci", 2**64 - 1)),
        (Code.DELETE_PERSONAL_ACCESS_TOKEN, account_requests.DeleteTokenRequest("ci")),
        (Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, account_requests.TokenLogin("x" * 68)),
        (Code.DELETE_SEGMENTS, account_requests.DeleteSegments("st", 3, 4, 2**32 - 1)),
    ],
)
def test_requests_survive_and_cut_ones_are_refused(code: int, request_: WireRequest) -> None:
    payload = request_.encode()
    assert decode(code, payload) == request_
    assert decode(code, payload + b"more") == request_
    for size in range(len(payload)):
        assert refusal(code, payload[:size]) is Status.INVALID_COMMAND


def test_the_node_sdk_sends_bytes_behind_missing_permissions() -> None:
    payload = b"\x03bob\x06secret\x01" + b"\x00" + b"\x01\x00\x00\x00\x00"
    assert decode(Code.CREATE_USER, payload) == account_requests.CreateUserRequest("bob", "secret", 1)


@pytest.mark.parametrize(
    ("code", "payload", "status"),
    [
        (Code.CREATE_USER, b"\0\x06secret\x01\0", Status.INVALID_FORMAT),
        (Code.CREATE_USER, b"\x03bob\x06secret\x01\x01" + block(EXAMPLE, 31), Status.INVALID_FORMAT),
        (Code.UPDATE_USER, b"\x01\x04" + bytes(4) + b"\x01\0", Status.INVALID_FORMAT),
        (Code.CREATE_PERSONAL_ACCESS_TOKEN, b"\0" + bytes(8), Status.INVALID_FORMAT),
        (Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, b"\0", Status.INVALID_FORMAT),
        (Code.GET_SNAPSHOT, b"\x07\x00", Status.INVALID_COMMAND),
        (Code.GET_SNAPSHOT, b"\x01\x01\x09", Status.INVALID_COMMAND),
        (Code.GET_SNAPSHOT, b"\x01\x02\x64\x04", Status.INVALID_COMMAND),
    ],
)
def test_malformed_requests(code: int, payload: bytes, status: Status) -> None:
    assert refusal(code, payload) is status


def test_replies() -> None:
    user = account_replies.UserDetails(1, 2, True, "bob")
    assert user.encode() == struct.pack("<IQB", 1, 2, 1) + b"\x03bob"
    assert user.encode_details() == user.encode() + bytes(4)
    limited = account_replies.UserDetails(1, 2, False, "bob", Permissions())
    assert limited.encode_details() == struct.pack("<IQB", 1, 2, 2) + b"\x03bob\x01" + block(bytes(11))
    assert account_replies.TokenSummary("ci", 0).encode() == b"\x02ci" + bytes(8)
