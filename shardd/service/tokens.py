"""Personal access tokens (docs/protocol/accounts.md#tokens), always those of the caller, and their expiry."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from shardd.engine import Engine
from shardd.metadata import DeleteExpiredTokens, Metadata
from shardd.metadata.apply_users import expired_tokens
from shardd.metadata.commands import CreateToken, DeleteToken
from shardd.metadata.state import User
from shardd.metadata.validate_users import token_name_fits
from shardd.protocol import account_requests, requests
from shardd.protocol.account_replies import TokenSecret, TokenSummary
from shardd.protocol.errors import ShardError, Status
from shardd.runtime.channel import BusError
from shardd.security import ROOT_USER_ID
from shardd.security.tokens import digest, expires_at, new_token
from shardd.service import base
from shardd.service.clocks import forgotten_us
from shardd.service.identity import Identity
from shardd.service.long_answers import LongAnswers, ascending
from shardd.service.topics import Keep, Kept
from shardd.service.users import user_ref

_log = logging.getLogger(__name__)


class TokenService:
    """Lives on the loop thread. `tokens_max`: of one user."""

    def __init__(self, metadata: Metadata, engine: Engine, tokens_max: int, long_answers: LongAnswers) -> None:
        self._metadata, self._engine = metadata, engine
        self._tokens_max = tokens_max
        self._long_answers = long_answers

    async def get_tokens(
        self, identity: Identity, request: requests.Empty, keep: Keep[TokenSummary, Kept]
    ) -> list[Kept]:
        """By name. Those that have expired are listed until the cleaner, or the next new token of their owner, removes
        them."""
        tokens, kept = self._own_user(identity).tokens, list[Kept]()

        def steps() -> Iterator[None]:
            for name in ascending(tokens):
                if name is not None:
                    kept.append(keep(TokenSummary(name, tokens[name].expires_at_us)))
                yield

        await self._long_answers.take(identity, steps())
        return kept

    async def create_token(self, identity: Identity, request: account_requests.CreateTokenRequest) -> TokenSecret:
        """50, 52, 51. The only time that the secret is told. Expired tokens neither count nor keep their names."""
        if not token_name_fits(request.name):
            raise ShardError(Status.INVALID_PERSONAL_ACCESS_TOKEN_NAME)
        user = self._own_user(identity)
        text, now_us = new_token(), time.time_ns() // 1000
        command = CreateToken(
            user=user_ref(user),
            name=request.name,
            digest=digest(text),
            expires_at_us=expires_at(now_us, request.expiry_us),
            tokens_max=self._tokens_max,
            now_us=forgotten_us(self._engine),
        )
        await base.submit(self._metadata, identity, command)
        return TokenSecret(text)

    async def delete_token(self, identity: Identity, request: account_requests.DeleteTokenRequest) -> None:
        """20 when there is none with that name. A session that used it goes on."""
        user = self._own_user(identity)
        await base.submit(self._metadata, identity, DeleteToken(user_ref(user), request.name))

    def _own_user(self, identity: Identity) -> User:
        """The user who asks, or `ShardError` 41 when it was deleted."""
        user = self._metadata.state.users.get(identity.user)
        if user is None:
            raise ShardError(Status.UNAUTHORIZED)
        return user


async def clean_expired_tokens(metadata: Metadata, now_us: int) -> None:
    """Removes what has expired by `forgotten_us`; one worker of the server does it."""
    if not expired_tokens(metadata.state, now_us):
        return
    try:
        result = await metadata.submit(user_ref(metadata.state.users[ROOT_USER_ID]), DeleteExpiredTokens(now_us))
    except BusError as error:
        _log.warning("expired tokens are not removed: %s", error)
        return
    if result.status != Status.OK:
        _log.warning("expired tokens are not removed: status %d", result.status)
