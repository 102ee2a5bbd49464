"""Access tokens for clients of doors: given to who has logged in, changed for new ones, given back
(docs/protocol/http.md#tokens)."""

from __future__ import annotations

import time

from shardd.engine import Engine
from shardd.metadata import Metadata
from shardd.metadata.commands import RevokeAccessToken
from shardd.metadata.state import User, has_expired
from shardd.protocol import requests
from shardd.protocol.access_tokens import AccessToken
from shardd.protocol.errors import ShardError, Status
from shardd.security import ROOT_USER_ID
from shardd.security.access_tokens import AccessClaims, AccessTokens, IssuedLogin, user_of
from shardd.security.issuers import IssuedToken, Issuers
from shardd.security.tokens import find_token
from shardd.service import base
from shardd.service.clocks import forgotten_us
from shardd.service.identity import Identity
from shardd.service.sessions import Session
from shardd.service.users import user_ref


class AccessTokenService:
    """Lives on the loop thread. `issuers`: others whose tokens count."""

    def __init__(
        self, metadata: Metadata, engine: Engine, tokens: AccessTokens, issuers: Issuers | None = None
    ) -> None:
        self._metadata, self._engine = metadata, engine
        self._tokens = tokens
        self._issuers = issuers

    async def create_access_token(self, identity: Identity, request: requests.Empty) -> AccessToken:
        """5 without keys, 41 for who has shown an access token, ours or another's: it does not give birth to others."""
        if not self._tokens:
            raise ShardError(Status.FEATURE_UNAVAILABLE)
        if isinstance(_shown(identity), AccessClaims | IssuedLogin):
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

    async def owner(self, text: str) -> tuple[User, AccessClaims | IssuedLogin | bytes] | None:
        """Whose token it is, an access token or a personal one, and what to ask `holds` about; None: nobody's."""
        if "." in text:
            claims = self._tokens.verify(text)
            if claims is None:
                return None if self._issuers is None else await self._issued(self._issuers, text)
            user = user_of(self._metadata.state, claims)
            return None if user is None else (user, claims)
        found = find_token(self._metadata.state, text)
        if found is None or not found[0].active or has_expired(found[1], time.time_ns() // 1000):
            return None
        return found[0], found[1].digest

    async def _issued(self, issuers: Issuers, text: str) -> tuple[User, IssuedLogin] | None:
        """Who shows a token of somebody else. It counts for no user that was made after it, and never for root."""
        token = await issuers.verify(text)
        if token is None:
            return None
        user = self._named(token)
        if user is None or not user.active or user.id == ROOT_USER_ID:
            why = "it names no user" if user is None else "its user is inactive" if user.id else "it names root"
        elif (token.issued_at_s + issuers.clock_skew_s) * 1_000_000 < user.created_at_us:
            why = "its user is younger than it is"
        else:
            return user, IssuedLogin(user.id, user.incarnation, token.expires_at_s)
        issuers.refused(token.issuer.issuer, why)
        return None

    def _named(self, token: IssuedToken) -> User | None:
        state, issuer = self._metadata.state, token.issuer
        if issuer.user_id:
            return state.users.get(issuer.user_id)
        said = token.claims.get(issuer.user_claim)
        if not isinstance(said, str):
            return None
        name = issuer.users.get(said) if issuer.users else said
        user_id = None if name is None else state.user_ids.get(name)
        return None if user_id is None else state.users.get(user_id)

    def holds(self, session: Session) -> bool:
        """Whether who has shown a token may still act: with every command of his it is asked again."""
        state, shown = self._metadata.state, session.shown
        if isinstance(shown, AccessClaims):
            return user_of(state, shown) is not None and time.time() < shown.exp
        if shown is None:
            return True
        if isinstance(shown, IssuedLogin):
            user = state.users.get(shown.user_id)
            same = user is not None and user.active and user.incarnation == shown.incarnation
            return same and time.time() < shown.expires_at_s
        owner = state.token_owners.get(shown)
        user = None if owner is None else state.users.get(owner[0])
        if owner is None or user is None or not user.active:
            return False
        return not has_expired(user.tokens[owner[1]], time.time_ns() // 1000)

    def _signed(self, user: User) -> AccessToken:
        text, claims = self._tokens.sign(user, int(time.time()))
        return AccessToken(user.id, text, claims.exp)

    async def _revoke(self, identity: Identity, user: User, claims: AccessClaims) -> None:
        ends_us, now_us = claims.expires_at_us, forgotten_us(self._engine)
        await base.submit(self._metadata, identity, RevokeAccessToken(user_ref(user), claims.id, ends_us, now_us))


def _shown(identity: Identity) -> AccessClaims | IssuedLogin | bytes | None:
    return None if identity.session is None else identity.session.shown
