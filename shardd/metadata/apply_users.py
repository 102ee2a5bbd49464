"""Changes of users and their tokens: part of the state machine of `apply.py`, as pure (docs/protocol/accounts.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from immutables import Map
from msgspec.structs import replace

from shardd.metadata import commands
from shardd.metadata.group_shares import without_owner
from shardd.metadata.producers import without_producers
from shardd.metadata.records import Record
from shardd.metadata.state import EMPTY, State, Token, User, has_expired

REVOKED_MAX: Final = 1000  # access tokens of one user that are remembered


def _set_user(state: State, user: User) -> State:
    return replace(state, users=state.users.set(user.id, user))


def _delete_user(state: State, record: Record, command: commands.DeleteUser) -> State:
    """Tokens and producers go with the user, consumer groups stay; the id is given out again, last freed first."""
    user = state.users[command.user.id]
    state = without_producers(_without_tokens(state, user, user.tokens.values()), user, user.producers)
    state = without_owner(state, user)
    return replace(
        state,
        users=state.users.delete(user.id),
        user_ids=state.user_ids.delete(user.name),
        free_user_ids=(*state.free_user_ids, user.id),
    )


def _update_user(state: State, record: Record, command: commands.UpdateUser) -> State:
    user = state.users[command.user.id]
    name = user.name if command.name is None else command.name
    active = user.active if command.active is None else command.active
    user_ids = state.user_ids.delete(user.name).set(name, user.id)
    return _set_user(replace(state, user_ids=user_ids), replace(user, name=name, active=active))


def _update_permissions(state: State, record: Record, command: commands.UpdatePermissions) -> State:
    return _set_user(state, replace(state.users[command.user.id], permissions=command.permissions))


def _change_password(state: State, record: Record, command: commands.ChangePassword) -> State:
    user = state.users[command.user.id]
    return _set_user(state, replace(user, password_hash=command.password_hash, kept_access=command.kept_access))


def _create_token(state: State, record: Record, command: commands.CreateToken) -> State:
    """The expired tokens of the user give way: they count for nothing any more, their names are free."""
    user = state.users[command.user.id]
    state = _without_tokens(state, user, _expired(user, command.now_us))
    user = state.users[command.user.id]
    token = Token(command.name, command.digest, command.expires_at_us)
    state = replace(state, token_owners=state.token_owners.set(token.digest, (user.id, token.name)))
    return _set_user(state, replace(user, tokens=user.tokens.set(token.name, token)))


def _delete_token(state: State, record: Record, command: commands.DeleteToken) -> State:
    user = state.users[command.user.id]
    return _without_tokens(state, user, [user.tokens[command.name]])


def _revoke_access_token(state: State, record: Record, command: commands.RevokeAccessToken) -> State:
    """Those that have expired give way. With more than `REVOKED_MAX` all access tokens of the user end instead."""
    user = state.users[command.user.id]
    now_us = command.now_us or record.timestamp_us
    kept = {id_: expires_us for id_, expires_us in user.revoked.items() if expires_us > now_us}
    kept[command.id] = command.expires_at_us
    if len(kept) > REVOKED_MAX:
        return _set_user(state, replace(user, revoked=EMPTY, access_mark=record.index))
    return _set_user(state, replace(user, revoked=Map(kept)))


def _delete_expired_tokens(state: State, record: Record, command: commands.DeleteExpiredTokens) -> State:
    for user, tokens in expired_tokens(state, command.now_us or record.timestamp_us):
        state = _without_tokens(state, user, tokens)
    return state


def expired_tokens(state: State, now_us: int) -> list[tuple[User, list[Token]]]:
    """Every user that has tokens which have expired, with these, by user id."""
    found = []
    for user_id in sorted({user_id for user_id, _name in state.token_owners.values()}):
        user = state.users[user_id]
        tokens = _expired(user, now_us)
        if tokens:
            found.append((user, tokens))
    return found


def _expired(user: User, now_us: int) -> list[Token]:
    return [token for token in user.tokens.values() if has_expired(token, now_us)]


def _without_tokens(state: State, user: User, tokens: Iterable[Token]) -> State:
    owners, kept = state.token_owners, user.tokens
    for token in tokens:
        owners = owners.delete(token.digest)
        kept = kept.delete(token.name)
    return _set_user(replace(state, token_owners=owners), replace(user, tokens=kept))


USER_CHANGES: Final[dict[type[commands.Command], Callable[[State, Record, Any], State]]] = {
    commands.DeleteUser: _delete_user,
    commands.UpdateUser: _update_user,
    commands.UpdatePermissions: _update_permissions,
    commands.ChangePassword: _change_password,
    commands.CreateToken: _create_token,
    commands.DeleteToken: _delete_token,
    commands.RevokeAccessToken: _revoke_access_token,
    commands.DeleteExpiredTokens: _delete_expired_tokens,
}
