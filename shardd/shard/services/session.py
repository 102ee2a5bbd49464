"""Login and logout: codes 38 and 39 (iggy-protocol 3.2)."""

from __future__ import annotations

from shardd.metadata.state import User
from shardd.protocol import limits, primitives, requests
from shardd.protocol.errors import ShardError, Status
from shardd.shard.context import ShardContext
from shardd.shard.services.base import Caller


def _account(context: ShardContext, name: str) -> User | None:
    """The account with a name. A name that looks like a number is a name (iggy-protocol 3.2)."""
    state = context.metadata.state
    user_id = state.user_ids.get(name)
    return None if user_id is None else state.users.get(user_id)


async def login(context: ShardContext, caller: Caller, request: requests.Login) -> bytes:
    """Checks in the order of iggy-protocol 3.2: 8, 43, 44, 42 unknown, 47 inactive, 42 wrong password.

    A failed login leaves the session as it was.
    """
    if context.stopping:
        raise ShardError(Status.DISCONNECTED)
    if not limits.USER_NAME_BYTES_MIN <= len(request.username.encode()) <= limits.USER_NAME_BYTES_MAX:
        raise ShardError(Status.INVALID_USERNAME)
    if not limits.PASSWORD_BYTES_MIN <= len(request.password.encode()) <= limits.PASSWORD_BYTES_MAX:
        raise ShardError(Status.INVALID_PASSWORD)
    user = _account(context, request.username)
    if user is None:
        raise ShardError(Status.INVALID_CREDENTIALS)
    if not user.active:
        raise ShardError(Status.USER_INACTIVE)
    if not await context.passwords.verify(user.password_hash, request.password):
        raise ShardError(Status.INVALID_CREDENTIALS)
    # Verifying takes milliseconds in a helper thread: the account may have changed meanwhile.
    current = _account(context, request.username)
    if current is None or current.id != user.id or current.password_hash != user.password_hash:
        raise ShardError(Status.INVALID_CREDENTIALS)
    if not current.active:
        raise ShardError(Status.USER_INACTIVE)
    context.sessions.set_user(caller.connection, user.id)
    context.engine.set_session(caller.connection, user.id, True)
    return primitives.u32(user.id)


async def logout(context: ShardContext, caller: Caller, request: requests.Empty) -> bytes:
    context.sessions.set_user(caller.connection, None)
    context.engine.set_session(caller.connection, limits.NOT_LOGGED_IN, False)
    return b""
