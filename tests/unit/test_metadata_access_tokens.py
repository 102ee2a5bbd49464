"""Access tokens that were given back, in the state machine and in snapshots."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from shardd.metadata import CreateUser, DeleteUser, Ref, State
from shardd.metadata.apply_users import REVOKED_MAX
from shardd.metadata.commands import RevokeAccessToken
from shardd.metadata.snapshot import decode_snapshot, encode_snapshot
from shardd.metadata.state import User
from shardd.protocol.errors import Status
from shardd.security import command_allowed
from shardd.security.access_tokens import AccessTokens, user_of
from tests.unit.test_metadata_users import after, ref, refused, user

BOB = User(1, "bob", 0, True, "hash", None, incarnation=2)
NO_FILE = Path("state.snapshot")


def revoke(owner: Ref, number: int, expires_at_us: int = 5000) -> RevokeAccessToken:
    return RevokeAccessToken(owner, number.to_bytes(16, "big"), expires_at_us)


@pytest.fixture
def state() -> State:
    state = after(State(), CreateUser("iggy", "hash", True, None))
    return after(state, CreateUser("bob", "hash", True, None))


def test_a_token_is_given_back_once_by_its_user(state: State) -> None:
    bob = ref(state, "bob")
    assert command_allowed(state, bob, revoke(bob, 1))
    assert not command_allowed(state, Ref(0, 1), revoke(bob, 1))
    state = after(state, revoke(bob, 1))
    assert refused(state, revoke(bob, 1)) is Status.INVALID_ACCESS_TOKEN
    assert refused(state, RevokeAccessToken(bob, b"short", 1)) is Status.INVALID_COMMAND
    state = after(state, DeleteUser(bob))
    assert refused(state, revoke(bob, 2)) is Status.RESOURCE_NOT_FOUND


def test_what_has_expired_gives_way(state: State) -> None:
    bob = ref(state, "bob")
    state = after(state, revoke(bob, 1, 1500), 1000)
    state = after(state, revoke(bob, 2, 2500), 1499)
    assert len(user(state, "bob").revoked) == 2
    state = after(state, revoke(bob, 3, 3500), 1500)
    assert sorted(user(state, "bob").revoked.values()) == [2500, 3500]


def test_with_too_many_all_tokens_of_the_user_end(state: State) -> None:
    bob = ref(state, "bob")
    for number in range(REVOKED_MAX):
        state = after(state, revoke(bob, number))
    assert len(user(state, "bob").revoked) == REVOKED_MAX and user(state, "bob").access_mark == 0
    tokens = AccessTokens([b"k" * 32], "i", "a", 60, 0)
    _, before = tokens.sign(user(state, "bob"), 1)
    assert user_of(state, before) is not None
    state = after(state, revoke(bob, REVOKED_MAX))
    assert not user(state, "bob").revoked and user(state, "bob").access_mark == state.index
    assert user_of(state, before) is None
    _, behind = tokens.sign(user(state, "bob"), 1)
    assert user_of(state, behind) is not None


def test_a_snapshot_keeps_them_and_says_so_to_earlier_programs(state: State) -> None:
    assert encode_snapshot(state, [])[8] == 1
    state = after(state, revoke(ref(state, "bob"), 1))
    state = msgspec.structs.replace(state, digest=b"d" * 32)
    data = encode_snapshot(state, [])
    assert data[8] == 3
    again = decode_snapshot(NO_FILE, data).state
    assert user(again, "bob") == user(state, "bob")


def test_who_a_token_belongs_to() -> None:
    tokens = AccessTokens([b"k" * 32, b"o" * 32], "issuer", "audience", 60, 0)
    now_s = int(time.time())
    text, claims = tokens.sign(BOB, now_s)
    assert tokens.verify(text) == claims
    old, _ = AccessTokens([b"o" * 32], "issuer", "audience", 60, 0).sign(BOB, now_s)
    assert tokens.verify(old) is not None, "a key that does not sign any more verifies"
    assert AccessTokens([b"x" * 32], "issuer", "audience", 60, 0).verify(text) is None
    state = State()
    for changed, holds in (
        ({}, True), ({"active": False}, False), ({"password_hash": "other"}, False), ({"incarnation": 3}, False),
        ({"access_mark": 9}, False), ({"id": 2}, False),
    ):  # fmt: skip
        other = msgspec.structs.replace(BOB, **changed)
        found = user_of(msgspec.structs.replace(state, users=state.users.set(other.id, other)), claims)
        assert (found is not None) == holds, changed
