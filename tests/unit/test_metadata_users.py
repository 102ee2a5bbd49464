"""Users and tokens in the state machine: what a record changes, what refuses it, what older logs hold."""

from __future__ import annotations

import msgspec
import pytest
from immutables import Map

from shardd.metadata import (
    ChangePassword,
    Command,
    CreateStream,
    CreateToken,
    CreateUser,
    DeleteExpiredTokens,
    DeleteToken,
    DeleteUser,
    Permissions,
    Record,
    Ref,
    State,
    UpdatePermissions,
    UpdateUser,
    apply,
    validate,
)
from shardd.metadata.apply_users import expired_tokens
from shardd.metadata.commands import decode_command, encode_command
from shardd.metadata.state import StreamPermissions, User
from shardd.protocol.errors import Status
from shardd.security import command_allowed

ROOT = Ref(0, 1)


def after(state: State, command: Command, timestamp_us: int = 1000) -> State:
    assert validate(state, command) is Status.OK
    return apply(state, Record(state.index + 1, timestamp_us, 0, 0, decode_command(encode_command(command))))


def refused(state: State, command: Command) -> Status:
    status = validate(state, command)
    assert status is not Status.OK
    return status


def user(state: State, name: str) -> User:
    return state.users[state.user_ids[name]]


def ref(state: State, name: str) -> Ref:
    found = user(state, name)
    return Ref(found.id, found.incarnation)


def token(owner: Ref, name: str, number: int, expires_at_us: int = 0) -> CreateToken:
    return CreateToken(owner, name, bytes([number]) * 32, expires_at_us, 3)


@pytest.fixture
def state() -> State:
    state = after(State(), CreateUser("iggy", "hash", True, Permissions(manage_users=True)))
    return after(state, CreateUser("bob", "hash", True, None))


def test_records_of_before_are_read(state: State) -> None:
    plain = msgspec.msgpack.encode([33, "iggy", "hash", True, None])
    assert decode_command(plain) == CreateUser("iggy", "hash", True, None)
    assert user(state, "bob").incarnation == 2


def test_update(state: State) -> None:
    bob = ref(state, "bob")
    renamed = after(state, UpdateUser(bob, "alice", False))
    assert "bob" not in renamed.user_ids and user(renamed, "alice").active is False
    assert after(renamed, UpdateUser(bob, "alice", None)).users == renamed.users
    assert refused(state, UpdateUser(bob, "iggy", None)) is Status.USER_ALREADY_EXISTS
    assert refused(state, UpdateUser(bob, "xx", None)) is Status.INVALID_USERNAME
    assert refused(state, UpdateUser(Ref(9, 9), None, None)) is Status.RESOURCE_NOT_FOUND
    limited = after(state, UpdatePermissions(bob, Permissions(streams=Map({5: StreamPermissions(True)}))))
    assert user(limited, "bob").permissions == Permissions(streams=Map({5: StreamPermissions(True)}))
    assert user(after(limited, UpdatePermissions(bob, None)), "bob").permissions is None
    assert user(after(state, ChangePassword(bob, "other")), "bob").password_hash == "other"


def test_root_stays(state: State) -> None:
    assert refused(state, DeleteUser(ROOT)) is Status.CANNOT_DELETE_USER
    assert refused(state, UpdatePermissions(ROOT, None)) is Status.CANNOT_CHANGE_PERMISSIONS


def test_only_root_renames_root_or_switches_it_off(state: State) -> None:
    """The record of the released server lets root do it to itself (golden `root-account`); a start undoes it."""
    manager = ref(state, "bob")
    state = after(state, UpdatePermissions(manager, Permissions(manage_users=True)))
    for name, active in ((None, False), ("other", None), ("other", True), ("iggy", None)):
        assert not command_allowed(state, manager, UpdateUser(ROOT, name, active)), (name, active)
        assert command_allowed(state, ROOT, UpdateUser(ROOT, name, active))
    assert command_allowed(state, manager, UpdateUser(ROOT, None, True)), "a way back in"
    assert command_allowed(state, manager, UpdateUser(manager, "other", False))


def test_a_command_never_reaches_the_next_user_with_the_id(state: State) -> None:
    bob = ref(state, "bob")
    state = after(state, DeleteUser(bob))
    assert refused(state, DeleteUser(bob)) is Status.RESOURCE_NOT_FOUND
    state = after(state, CreateUser("eve", "hash", True, None))
    assert user(state, "eve").id == bob.id
    for command in (DeleteUser(bob), ChangePassword(bob, "x"), token(bob, "abc", 1), UpdatePermissions(bob, None)):
        assert refused(state, command) is Status.RESOURCE_NOT_FOUND


def test_a_change_of_a_deleted_user_never_passes_with_the_rights_of_the_next_one(state: State) -> None:
    bob = ref(state, "bob")
    state = after(state, DeleteUser(bob))
    assert not command_allowed(state, bob, CreateStream("by nobody"))
    state = after(state, CreateUser("eve", "hash", True, Permissions(manage_streams=True)))
    assert command_allowed(state, ref(state, "eve"), CreateStream("by eve"))
    assert ref(state, "eve").id == bob.id
    assert not command_allowed(state, bob, CreateStream("by bob"))


def test_expired_tokens_neither_count_nor_keep_their_name(state: State) -> None:
    bob = ref(state, "bob")
    for number, expires_at_us in enumerate((100, 200, 0), 1):
        state = after(state, token(bob, f"token{number}", number, expires_at_us))
    full = Status.PERSONAL_ACCESS_TOKENS_LIMIT_REACHED
    assert refused(state, CreateToken(bob, "more", bytes([9]) * 32, 0, 3, now_us=99)) is full
    assert refused(state, CreateToken(bob, "more", bytes([9]) * 32, 0, 3)) is full, "a record of an earlier version"
    same = after(state, CreateToken(bob, "token1", bytes([9]) * 32, 0, 3, now_us=100))
    assert sorted(user(same, "bob").tokens) == ["token1", "token2", "token3"]
    assert bytes([1]) * 32 not in same.token_owners and bytes([9]) * 32 in same.token_owners
    more = after(state, CreateToken(bob, "more", bytes([9]) * 32, 0, 3, now_us=200))
    assert sorted(user(more, "bob").tokens) == ["more", "token3"]
    assert decode_command(msgspec.msgpack.encode([42, [1, 2], "old", b"d", 5, 100])) == CreateToken(
        Ref(1, 2), "old", b"d", 5, 100, 0
    )


def test_tokens(state: State) -> None:
    bob = ref(state, "bob")
    state = after(state, token(bob, "first", 1))
    assert state.token_owners == Map({bytes([1]) * 32: (bob.id, "first")})
    assert refused(state, token(bob, "first", 2)) is Status.PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS
    assert refused(state, token(bob, "other", 1)) is Status.PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS
    assert refused(state, token(bob, "xx", 2)) is Status.INVALID_PERSONAL_ACCESS_TOKEN_NAME
    assert after(state, token(ROOT, "first", 2)).token_owners.get(bytes([2]) * 32) == (0, "first")
    state = after(after(state, token(bob, "second", 2)), token(bob, "third", 3))
    assert refused(state, token(bob, "first", 4)) is Status.PERSONAL_ACCESS_TOKENS_LIMIT_REACHED
    state = after(state, DeleteToken(bob, "second"))
    assert refused(state, DeleteToken(bob, "second")) is Status.RESOURCE_NOT_FOUND
    assert sorted(user(state, "bob").tokens) == ["first", "third"]
    assert after(state, DeleteUser(bob)).token_owners == Map()


def test_expired_tokens_go(state: State) -> None:
    bob = ref(state, "bob")
    for number, expires_at_us in enumerate((0, 500, 1000, 1001), 1):
        owner = ROOT if number == 2 else bob
        state = after(state, CreateToken(owner, f"token{number}", bytes([number]) * 32, expires_at_us, 9))
    found = expired_tokens(state, 1000)
    assert [(each.name, [one.name for one in tokens]) for each, tokens in found] == [
        ("iggy", ["token2"]),
        ("bob", ["token3"]),
    ]
    state = after(state, DeleteExpiredTokens(), 1000)
    assert sorted(state.token_owners.values()) == [(1, "token1"), (1, "token4")]
    assert sorted(user(state, "bob").tokens) == ["token1", "token4"]


def test_who_may(state: State) -> None:
    bob = ref(state, "bob")
    for command in (DeleteUser(bob), UpdateUser(bob, None, None), UpdatePermissions(bob, None)):
        assert command_allowed(state, ROOT, command)
        assert not command_allowed(state, bob, command)
    assert command_allowed(state, bob, ChangePassword(bob, "x"))
    assert not command_allowed(state, bob, ChangePassword(ROOT, "x"))
    assert command_allowed(state, ROOT, ChangePassword(bob, "x"))
    assert command_allowed(state, bob, token(bob, "abc", 1))
    assert not command_allowed(state, ROOT, token(bob, "abc", 1))
    assert command_allowed(state, ROOT, DeleteExpiredTokens())
    assert not command_allowed(state, bob, DeleteExpiredTokens())
