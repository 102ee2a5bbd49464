"""Access tokens for clients of doors: given to who has logged in, changed for new ones, given back
(docs/protocol/http.md#tokens)."""

from __future__ import annotations

import time

import msgspec

from shardd.metadata import Metadata
from shardd.metadata.commands import RevokeAccessToken
from shardd.metadata.state import User, has_expired
from shardd.protocol import requests
from shardd.protocol.errors import ShardError, Status
from shardd.security.access_tokens import AccessClaims, AccessTokens, user_of
from shardd.security.tokens import find_token
from shardd.service import base
from shardd.service.identity import Identity
from shardd.service.sessions import Session
from shardd.service.users import user_ref


class AccessToken(msgspec.Struct, frozen=True):
    """`expires_at_s`: seconds since the epoch."""

    user_id: int
    token: str
    expires_at_s: int


class AccessTokenService:
    """Lives on the loop thread."""

    def __init__(self, metadata: Metadata, tokens: AccessTokens) -> None:
        self._metadata = metadata
        self._tokens = tokens

    async def create_access_token(self, identity: Identity, request: requests.Empty) -> AccessToken:
        """5 without keys, 41 for who has shown an access token: it does not give birth to others."""
        if not self._tokens:
            raise ShardError(Status.FEATURE_UNAVAILABLE)
        if isinstance(_shown(identity), AccessClaims):
            raise ShardError(Status.UNAUTHORIZED, "refresh_access_token changes it for another one")
        user = self._metadata.state.users.get(identity.user)
        if user is None or user.incarnation != identity.incarnation:
            raise ShardError(Status.UNAUTHORIZED)
        return self._signed(user)

    async def refresh_access_token(self, identity: Identity, request: requests.Empty) -> AccessToken:
        """Another one for the one that was shown, which is worth nothing any more. 78: there is none, or it has ended.
        Of several that ask with the same one, one gets an answer."""
        claims = _shown(identity)
        if not isinstance(claims, AccessClaims):
            raise ShardError(Status.INVALID_ACCESS_TOKEN)
        user = user_of(self._metadata.state, claims)
        if user is None:
            raise ShardError(Status.INVALID_ACCESS_TOKEN)
        signed = self._signed(user)
        await self._revoke(identity, user, claims)
        return signed

    async def revoke_access_token(self, identity: Identity, request: requests.Empty) -> None:
        """3 for who has not shown an access token."""
        claims = _shown(identity)
        if not isinstance(claims, AccessClaims):
            raise ShardError(Status.INVALID_COMMAND, "only an access token can be given back")
        user = user_of(self._metadata.state, claims)
        if user is None:
            raise ShardError(Status.INVALID_ACCESS_TOKEN)
        await self._revoke(identity, user, claims)

    def owner(self, text: str) -> tuple[User, AccessClaims | bytes] | None:
        """Whose token it is, an access token or a personal one, and what to ask `holds` about; None: nobody's."""
        if "." in text:
            claims = self._tokens.verify(text)
            user = None if claims is None else user_of(self._metadata.state, claims)
            return None if claims is None or user is None else (user, claims)
        found = find_token(self._metadata.state, text)
        if found is None or not found[0].active or has_expired(found[1], time.time_ns() // 1000):
            return None
        return found[0], found[1].digest

    def holds(self, session: Session) -> bool:
        """Whether who has shown a token may still act: with every command of his it is asked again."""
        state, shown = self._metadata.state, session.shown
        if isinstance(shown, AccessClaims):
            return user_of(state, shown) is not None and time.time() < shown.exp
        if shown is None:
            return True
        owner = state.token_owners.get(shown)
        user = None if owner is None else state.users.get(owner[0])
        if owner is None or user is None or not user.active:
            return False
        return not has_expired(user.tokens[owner[1]], time.time_ns() // 1000)

    def _signed(self, user: User) -> AccessToken:
        text, claims = self._tokens.sign(user, int(time.time()))
        return AccessToken(user.id, text, claims.exp)

    async def _revoke(self, identity: Identity, user: User, claims: AccessClaims) -> None:
        await base.submit(self._metadata, identity, RevokeAccessToken(user_ref(user), claims.id, claims.expires_at_us))


def _shown(identity: Identity) -> AccessClaims | bytes | None:
    return None if identity.session is None else identity.session.shown
