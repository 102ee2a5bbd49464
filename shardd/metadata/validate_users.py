"""Whether a change of users or tokens may become a record: part of `validate.py` (docs/protocol/accounts.md).

Rights come before existence here, other than with streams: an unknown user is only told to who may manage users.
"""

from __future__ import annotations

from typing import Final

from shardd.metadata import commands
from shardd.metadata.commands import Command, Ref
from shardd.metadata.producers import may_init
from shardd.metadata.state import ROOT_USER_ID, State, User, has_expired
from shardd.protocol import limits
from shardd.protocol.errors import Status

USERS_MAX: Final = (1 << 32) - 1  # the highest u32 says "not logged in" (docs/protocol/system.md#clients)
ACCESS_TOKEN_ID_BYTES: Final = 16


def user_name_fits(name: str) -> bool:
    return limits.USER_NAME_BYTES_MIN <= len(name.encode()) <= limits.USER_NAME_BYTES_MAX


def password_fits(password: str) -> bool:
    return limits.PASSWORD_BYTES_MIN <= len(password.encode()) <= limits.PASSWORD_BYTES_MAX


def token_name_fits(name: str) -> bool:
    return limits.TOKEN_NAME_BYTES_MIN <= len(name.encode()) <= limits.TOKEN_NAME_BYTES_MAX


def user_values(command: Command) -> Status:
    """43, 50, 3."""
    match command:
        case commands.CreateUser() | commands.UpdateUser():
            fits = command.name is None or user_name_fits(command.name)
            return Status.OK if fits else Status.INVALID_USERNAME
        case commands.CreateToken():
            if not token_name_fits(command.name):
                return Status.INVALID_PERSONAL_ACCESS_TOKEN_NAME
            fits = 0 <= command.expires_at_us < 1 << 64 and 0 <= command.now_us < 1 << 64
            return Status.OK if fits else Status.INVALID_COMMAND
        case commands.RevokeAccessToken():
            fits = len(command.id) == ACCESS_TOKEN_ID_BYTES and 0 <= command.expires_at_us < 1 << 64
            return Status.OK if fits else Status.INVALID_COMMAND
        case commands.InitProducer():
            fits = 0 <= command.producer < 1 << 64 and 0 <= command.epoch < 1 << 32
            return Status.OK if fits else Status.INVALID_COMMAND
        case _:
            return Status.OK


def user_effect(state: State, command: Command) -> Status:
    """46 and 55; 20 for what is not there (any more); 48, 49 for root; 52, then 51; 78 for what was given back."""
    match command:
        case commands.CreateUser():
            if command.name in state.user_ids:
                return Status.USER_ALREADY_EXISTS
            return Status.OK if len(state.users) < USERS_MAX else Status.USERS_LIMIT_REACHED
        case commands.DeleteUser() | commands.UpdatePermissions() | commands.UpdateUser() | commands.ChangePassword():
            user = find_user(state, command.user)
        case commands.CreateToken() | commands.DeleteToken() | commands.RevokeAccessToken() | commands.InitProducer():
            user = find_user(state, command.user)
        case _:
            return Status.OK
    return Status.RESOURCE_NOT_FOUND if user is None else _effect_on(state, user, command)


def find_user(state: State, ref: Ref) -> User | None:
    """The user, unless it is gone or another one has its id now."""
    user = state.users.get(ref.id)
    return user if user is not None and user.incarnation == ref.incarnation else None


def _effect_on(state: State, user: User, command: Command) -> Status:
    match command:
        case commands.DeleteUser():
            return Status.CANNOT_DELETE_USER if user.id == ROOT_USER_ID else Status.OK
        case commands.UpdatePermissions():
            return Status.CANNOT_CHANGE_PERMISSIONS if user.id == ROOT_USER_ID else Status.OK
        case commands.UpdateUser():
            taken = command.name is not None and state.user_ids.get(command.name, user.id) != user.id
            return Status.USER_ALREADY_EXISTS if taken else Status.OK
        case commands.CreateToken():
            return _create_token(state, user, command)
        case commands.DeleteToken():
            return Status.OK if command.name in user.tokens else Status.RESOURCE_NOT_FOUND
        case commands.RevokeAccessToken():
            return Status.INVALID_ACCESS_TOKEN if command.id in user.revoked else Status.OK
        case commands.InitProducer():
            return may_init(state, user, command)
        case _:
            return Status.OK


def _create_token(state: State, user: User, command: commands.CreateToken) -> Status:
    valid = {token.name for token in user.tokens.values() if not has_expired(token, command.now_us)}
    if len(valid) >= command.tokens_max:
        return Status.PERSONAL_ACCESS_TOKENS_LIMIT_REACHED
    taken = command.name in valid or command.digest in state.token_owners
    return Status.PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS if taken else Status.OK
