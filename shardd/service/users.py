"""Users: codes 31-37 (docs/protocol/accounts.md#users). Other than with streams the permission comes before
existence."""

from __future__ import annotations

from functools import partial

from shardd.metadata.commands import ChangePassword, CreateUser, DeleteUser, Ref, UpdatePermissions, UpdateUser
from shardd.metadata.state import State, User
from shardd.metadata.validate_users import password_fits, user_name_fits
from shardd.protocol import account_replies, account_requests, requests
from shardd.protocol.account_replies import STATUS_ACTIVE, STATUS_INACTIVE
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Identifier
from shardd.runtime.threads import UnwantedError
from shardd.security import Rule
from shardd.service import base
from shardd.service.base import Caller
from shardd.service.context import ShardContext
from shardd.service.logins import client_waits


def user_reply(user: User) -> account_replies.User:
    return account_replies.User(user.id, user.created_at_us, user.active, user.name, user.permissions)


def find_user(state: State, identifier: Identifier) -> User | None:
    """The user with an id or a name."""
    user_id = state.user_ids.get(identifier) if isinstance(identifier, str) else identifier
    return None if user_id is None else state.users.get(user_id)


def user_of(state: State, identifier: Identifier) -> User:
    """The user, or `ShardError` 20."""
    user = find_user(state, identifier)
    if user is None:
        raise ShardError(Status.RESOURCE_NOT_FOUND)
    return user


def user_ref(user: User) -> Ref:
    return Ref(user.id, user.incarnation)


def _is_active(status: int) -> bool:
    if status not in (STATUS_ACTIVE, STATUS_INACTIVE):
        raise ShardError(Status.INVALID_COMMAND, "unknown status of a user")
    return status == STATUS_ACTIVE


def _check_name(name: str) -> None:
    if not user_name_fits(name):
        raise ShardError(Status.INVALID_USERNAME)


def _check_password(password: str) -> None:
    if not password_fits(password):
        raise ShardError(Status.INVALID_PASSWORD)


async def get_user(context: ShardContext, caller: Caller, request: account_requests.UserRequest) -> bytes:
    """The own user always. Another id needs the right before it is looked at (41), a name after; missing: empty."""
    user = find_user(context.metadata.state, request.user)
    if isinstance(request.user, int) and request.user != caller.user:
        base.require(context, caller, Rule.READ_USER)
    if user is None:
        return b""
    if user.id != caller.user:
        base.require(context, caller, Rule.READ_USER)
    return user_reply(user).encode_details()


async def get_users(context: ShardContext, caller: Caller, request: requests.Empty) -> bytes:
    base.require(context, caller, Rule.READ_USER)
    users = context.metadata.state.users
    return b"".join(user_reply(users[user_id]).encode() for user_id in sorted(users))


async def create_user(context: ShardContext, caller: Caller, request: account_requests.CreateUser) -> bytes:
    """43, 44, 3, 41, 46, 55 in this order. The name is looked up before the password costs a hash."""
    _check_name(request.username)
    _check_password(request.password)
    active = _is_active(request.status)
    base.require(context, caller, Rule.MANAGE_USERS)
    if request.username in context.metadata.state.user_ids:
        raise ShardError(Status.USER_ALREADY_EXISTS)
    async with context.login_turns.hashing(_address(context, caller)):
        password_hash = await context.passwords.hash(request.password)
    command = CreateUser(request.username, password_hash, active, request.permissions)
    result = await base.submit(context, caller, command)
    return user_reply(result.state.users[result.id]).encode_details()


async def delete_user(context: ShardContext, caller: Caller, request: account_requests.UserRequest) -> bytes:
    """41, 20, 48. Tokens and open connections lose their user before this is answered."""
    base.require(context, caller, Rule.MANAGE_USERS)
    user = user_of(context.metadata.state, request.user)
    await base.submit(context, caller, DeleteUser(user_ref(user)))
    return b""


async def update_user(context: ShardContext, caller: Caller, request: account_requests.UpdateUser) -> bytes:
    """43, 3, 41, 20, 46. An inactive user keeps the connections it has."""
    if request.username is not None:
        _check_name(request.username)
    active = None if request.status is None else _is_active(request.status)
    base.require(context, caller, Rule.MANAGE_USERS)
    user = user_of(context.metadata.state, request.user)
    await base.submit(context, caller, UpdateUser(user_ref(user), request.username, active))
    return b""


async def update_permissions(
    context: ShardContext, caller: Caller, request: account_requests.UpdatePermissions
) -> bytes:
    """41, 20, 49."""
    base.require(context, caller, Rule.MANAGE_USERS)
    user = user_of(context.metadata.state, request.user)
    await base.submit(context, caller, UpdatePermissions(user_ref(user), request.permissions))
    return b""


async def change_password(context: ShardContext, caller: Caller, request: account_requests.ChangePassword) -> bytes:
    """44 for either password, 20, 41 (another user's), 42: the current one is demanded of administrators too.

    The current one is tried like that of a login. Sessions stay logged in.
    """
    _check_password(request.current_password)
    _check_password(request.new_password)
    user = user_of(context.metadata.state, request.user)
    if user.id != caller.user:
        base.require(context, caller, Rule.MANAGE_USERS)
    wanted = partial(client_waits, context, caller)
    try:
        async with context.login_turns.attempt(_address(context, caller), user.name, wanted):
            password_hash = await _new_hash(context, user_ref(user), request)
    except UnwantedError:
        raise ShardError(Status.CLIENT_NOT_FOUND, "it has left before its turn", close=True) from None
    await base.submit(context, caller, ChangePassword(user_ref(user), password_hash))
    return b""


async def _new_hash(context: ShardContext, user: Ref, request: account_requests.ChangePassword) -> str:
    """The hash of the new password, when the current one is right."""
    before = _current(context, user)
    if not await context.passwords.verify(before.password_hash, request.current_password):
        raise ShardError(Status.INVALID_CREDENTIALS)
    password_hash = await context.passwords.hash(request.new_password)
    if _current(context, user).password_hash != before.password_hash:  # somebody else was faster
        raise ShardError(Status.INVALID_CREDENTIALS)
    return password_hash


def _current(context: ShardContext, ref: Ref) -> User:
    """The account as it is now: it may have changed while a request waited for its turn."""
    user = context.metadata.state.users.get(ref.id)
    if user is None or user.incarnation != ref.incarnation:
        raise ShardError(Status.RESOURCE_NOT_FOUND)
    return user


def _address(context: ShardContext, caller: Caller) -> str:
    session = context.sessions.get(caller.connection)
    return "" if session is None else session.address
