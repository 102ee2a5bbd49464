"""Login by password or token, and logout: codes 38, 44, 39 (docs/protocol/accounts.md#login)."""

from __future__ import annotations

import time
from functools import partial

from shardd.metadata.state import User, has_expired
from shardd.metadata.validate_users import password_fits, user_name_fits
from shardd.protocol import account_requests, limits, primitives, requests
from shardd.protocol.errors import ShardError, Status
from shardd.runtime.threads import UnwantedError
from shardd.security.tokens import find_token
from shardd.service.base import Caller
from shardd.service.context import ShardContext
from shardd.service.sessions import Session


def find_account(context: ShardContext, name: str) -> User | None:
    """The account with a name. A name that looks like a number is a name."""
    state = context.metadata.state
    user_id = state.user_ids.get(name)
    return None if user_id is None else state.users.get(user_id)


async def login(context: ShardContext, caller: Caller, request: requests.Login) -> bytes:
    """Checks in the order of docs/protocol/accounts.md#login: 8, 43, 44, 100, 42 unknown, 47 inactive, 42 wrong
    password.

    A failed login leaves the session as it was, and makes the next ones slower. One whose client has left before its
    turn is not computed and counts as nothing: 100 and close.
    """
    if context.stopping:
        raise ShardError(Status.DISCONNECTED)
    if not user_name_fits(request.username):
        raise ShardError(Status.INVALID_USERNAME)
    if not password_fits(request.password):
        raise ShardError(Status.INVALID_PASSWORD)
    address = _entry(context, caller).address
    wanted = partial(client_waits, context, caller)
    try:
        async with context.login_turns.attempt(address, request.username, wanted):
            user = await _verified(context, request)
    except UnwantedError:
        raise ShardError(Status.CLIENT_NOT_FOUND, "it has left before its turn", close=True) from None
    return _log_in(context, caller, user)


def client_waits(context: ShardContext, caller: Caller) -> bool:
    """Whether somebody will read the answer."""
    return not context.engine.has_left(caller.connection)


async def _verified(context: ShardContext, request: requests.Login) -> User:
    """The account that name and password belong to."""
    user = find_account(context, request.username)
    if user is None:
        await context.passwords.verify_nothing(request.password)  # as slow as a known name
        raise ShardError(Status.INVALID_CREDENTIALS)
    if not user.active:
        raise ShardError(Status.USER_INACTIVE)
    if not await context.passwords.verify(user.password_hash, request.password):
        raise ShardError(Status.INVALID_CREDENTIALS)
    # Verifying takes milliseconds in a helper thread: the account may have changed meanwhile.
    current = find_account(context, request.username)
    if current is None or current.incarnation != user.incarnation or current.password_hash != user.password_hash:
        raise ShardError(Status.INVALID_CREDENTIALS)
    if not current.active:
        raise ShardError(Status.USER_INACTIVE)
    return current


async def login_with_token(context: ShardContext, caller: Caller, request: account_requests.TokenLogin) -> bytes:
    """8, 100, 20 unknown, 54 expired, 47 inactive.

    Nobody guesses 400 random bits: tokens wait for nothing, and failed ones slow nobody down.
    """
    if context.stopping:
        raise ShardError(Status.DISCONNECTED)
    _entry(context, caller)
    found = find_token(context.metadata.state, request.token)
    if found is None:
        raise ShardError(Status.RESOURCE_NOT_FOUND)
    user, token = found
    if has_expired(token, time.time_ns() // 1000):
        raise ShardError(Status.PERSONAL_ACCESS_TOKEN_EXPIRED)
    if not user.active:
        raise ShardError(Status.USER_INACTIVE)
    return _log_in(context, caller, user)


def _entry(context: ShardContext, caller: Caller) -> Session:
    """100 and close when the connection has lost its entry, for instance with its user."""
    session = context.sessions.get(caller.connection)
    if session is None or session.removed:
        raise ShardError(Status.CLIENT_NOT_FOUND, close=True)
    return session


def _log_in(context: ShardContext, caller: Caller, user: User) -> bytes:
    _entry(context, caller)  # it may have gone while the password was verified
    context.sessions.set_user(caller.connection, user.id, user.incarnation)
    context.engine.set_session(caller.connection, user.id, True)
    return primitives.u32(user.id)


async def logout(context: ShardContext, caller: Caller, request: requests.Empty) -> bytes:
    context.sessions.set_user(caller.connection, None)
    context.engine.set_session(caller.connection, limits.NOT_LOGGED_IN, False)
    return b""
