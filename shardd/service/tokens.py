"""Personal access tokens: codes 41-43 (docs/protocol/accounts.md#tokens), always those of the caller, and their expiry
on shard 0."""

from __future__ import annotations

import logging
import time

from shardd.metadata import DeleteExpiredTokens
from shardd.metadata.apply_users import expired_tokens
from shardd.metadata.commands import CreateToken, DeleteToken
from shardd.metadata.state import User
from shardd.metadata.validate_users import token_name_fits
from shardd.protocol import account_replies, account_requests, primitives, requests
from shardd.protocol.errors import ShardError, Status
from shardd.runtime.channel import BusError
from shardd.security import ROOT_USER_ID
from shardd.security.tokens import digest, expires_at, new_token
from shardd.service import base
from shardd.service.base import Caller
from shardd.service.context import ShardContext
from shardd.service.users import user_ref

_log = logging.getLogger(__name__)


def _own_user(context: ShardContext, caller: Caller) -> User:
    """The caller, or `ShardError` 41 when it was deleted."""
    user = context.metadata.state.users.get(caller.user)
    if user is None:
        raise ShardError(Status.UNAUTHORIZED)
    return user


async def get_tokens(context: ShardContext, caller: Caller, request: requests.Empty) -> bytes:
    """Those that have expired are listed until the cleaner, or the next new token of their owner, removes them."""
    tokens = _own_user(context, caller).tokens
    return b"".join(account_replies.Token(name, tokens[name].expires_at_us).encode() for name in sorted(tokens))


async def create_token(context: ShardContext, caller: Caller, request: account_requests.CreateToken) -> bytes:
    """50, 52, 51. The only time that the secret is told. Expired tokens neither count nor keep their names."""
    if not token_name_fits(request.name):
        raise ShardError(Status.INVALID_PERSONAL_ACCESS_TOKEN_NAME)
    user = _own_user(context, caller)
    text, now_us = new_token(), time.time_ns() // 1000
    command = CreateToken(
        user=user_ref(user),
        name=request.name,
        digest=digest(text),
        expires_at_us=expires_at(now_us, request.expiry_us),
        tokens_max=context.settings.personal_access_token.max_tokens_per_user,
        now_us=now_us,
    )
    await base.submit(context, caller, command)
    return primitives.text8(text)


async def delete_token(context: ShardContext, caller: Caller, request: account_requests.DeleteToken) -> bytes:
    """20 when there is none with that name. A session that used it goes on."""
    user = _own_user(context, caller)
    await base.submit(context, caller, DeleteToken(user_ref(user), request.name))
    return b""


async def clean_expired_tokens(context: ShardContext) -> None:
    """On shard 0: removes what has expired (docs/protocol/accounts.md#tokens)."""
    if not expired_tokens(context.metadata.state, time.time_ns() // 1000):
        return
    try:
        result = await context.metadata.submit(
            user_ref(context.metadata.state.users[ROOT_USER_ID]), DeleteExpiredTokens()
        )
    except BusError as error:
        _log.warning("expired tokens are not removed: %s", error)
        return
    if result.status != Status.OK:
        _log.warning("expired tokens are not removed: status %d", result.status)
