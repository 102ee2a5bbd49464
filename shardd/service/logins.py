"""Login by password or token, and logout (docs/protocol/accounts.md#login)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from shardd.metadata import Metadata
from shardd.metadata.state import User, has_expired
from shardd.metadata.validate_users import password_fits, user_name_fits
from shardd.protocol import account_requests, limits, requests
from shardd.protocol.account_replies import LoggedIn
from shardd.protocol.door_frames import Purpose
from shardd.protocol.errors import ShardError, Status
from shardd.runtime.threads import UnwantedError
from shardd.security import ROOT_USER_ID, Passwords
from shardd.security.login_turns import LoginTurns
from shardd.security.tokens import find_token
from shardd.service import base
from shardd.service.access_tokens import AccessTokenService
from shardd.service.audit import AuditOfLogins
from shardd.service.base import Connections
from shardd.service.identity import Identity
from shardd.service.sessions import Session

_FAILED: Final = frozenset(
    {
        Status.INVALID_CREDENTIALS,
        Status.USER_INACTIVE,
        Status.RESOURCE_NOT_FOUND,
        Status.PERSONAL_ACCESS_TOKEN_EXPIRED,
    }
)

BY_SETTING: Final = {Purpose.ANONYMOUS: "liftbridge.anonymous_user", Purpose.NATS: "liftbridge.nats.user"}


class LoginEngine(Connections, Protocol):
    """The part of the engine that knows who is behind a connection."""

    def set_session(self, connection: int, user_id: int, authenticated: bool) -> None: ...


class LoginService:
    """Lives on the loop thread. `attempts_max`: failed logins of one connection; the last one closes it
    (docs/limits.md). `stopping` is set when the orderly stop begins: logins are answered with 8 from then on
    (docs/protocol/sessions.md#stop)."""

    def __init__(
        self,
        metadata: Metadata,
        passwords: Passwords,
        login_turns: LoginTurns,
        engine: LoginEngine,
        attempts_max: int,
        access_tokens: AccessTokenService,
        anonymous_user: str = "",
        users_by_setting: Mapping[Purpose, str] | None = None,
    ) -> None:
        self._metadata = metadata
        self._passwords = passwords
        self._login_turns = login_turns
        self._engine = engine
        self._attempts_max = attempts_max
        self._access_tokens = access_tokens
        self._anonymous_user = anonymous_user
        self._users_by_setting = users_by_setting or {}
        self._told = AuditOfLogins()
        self.stopping = False

    async def login(self, identity: Identity, request: requests.Login) -> LoggedIn:
        """Checks in the order of docs/protocol/accounts.md#login: 8, 43, 44, 100, 42 unknown, 47 inactive, 42 wrong
        password.

        A failed login leaves the session as it was, and makes the next ones slower. One whose client has left before
        its turn is not computed and counts as nothing: 100 and close.
        """
        if self.stopping:
            raise ShardError(Status.DISCONNECTED)
        if not user_name_fits(request.username):
            raise ShardError(Status.INVALID_USERNAME)
        if not password_fits(request.password):
            raise ShardError(Status.INVALID_PASSWORD)
        session = _entered(identity)
        try:
            with self._counted(session):
                async with self._login_turns.attempt(
                    session.address, request.username, lambda: base.waits(self._engine, identity)
                ):
                    user = await self._verified(request)
        except UnwantedError:
            raise ShardError(Status.CLIENT_NOT_FOUND, "it has left before its turn", close=True) from None
        return self._log_in(identity, user)

    async def login_with_token(self, identity: Identity, request: account_requests.TokenLogin) -> LoggedIn:
        """8, 100, 20 unknown, 54 expired, 47 inactive.

        Nobody guesses 400 random bits: tokens wait for nothing, and failed ones slow nobody down.
        """
        if self.stopping:
            raise ShardError(Status.DISCONNECTED)
        with self._counted(_entered(identity)):
            found = find_token(self._metadata.state, request.token)
            if found is None:
                raise ShardError(Status.RESOURCE_NOT_FOUND)
            user, token = found
            if has_expired(token, time.time_ns() // 1000):
                raise ShardError(Status.PERSONAL_ACCESS_TOKEN_EXPIRED)
            if not user.active:
                raise ShardError(Status.USER_INACTIVE)
        return self._log_in(identity, user)

    async def login_with_bearer(self, identity: Identity, request: account_requests.TokenLogin) -> LoggedIn:
        """8, 100, 78. The login rests on the token: it ends with it."""
        if self.stopping:
            raise ShardError(Status.DISCONNECTED)
        session = _entered(identity)
        found = await self._access_tokens.owner(request.token)
        if found is None:
            raise ShardError(Status.INVALID_ACCESS_TOKEN)
        logged_in = self._log_in(identity, found[0])
        session.shown = found[1]
        return logged_in

    def enter_anonymous(self, identity: Identity) -> int | None:
        """Who knows no login acts as the user of `legacy.anonymous_user`: its id. None: there is none, or it is root,
        inactive or gone. There is none where TLS is required (`check_together` of shardd/config/keys.py)."""
        user = self._account(self._anonymous_user) if self._anonymous_user and not self.stopping else None
        if user is None or not user.active or user.id == ROOT_USER_ID:
            return None
        self._log_in(identity, user)
        return user.id

    async def login_by_setting(self, identity: Identity, purpose: Purpose) -> LoggedIn:
        """As the user whom a setting names for clients of a door without a login of their own: 8; 5 when it names
        nobody, 42 somebody who is not there; 47 inactive; 41 root, whatever its name is."""
        if self.stopping:
            raise ShardError(Status.DISCONNECTED)
        setting, name = BY_SETTING[purpose], self._users_by_setting.get(purpose, "")
        _entered(identity)
        if not name:
            raise ShardError(Status.FEATURE_UNAVAILABLE, f"{setting} names nobody")
        user = self._account(name)
        if user is None:
            raise ShardError(Status.INVALID_CREDENTIALS, f"{setting}: there is no user {name!r}")
        if user.id == ROOT_USER_ID:
            raise ShardError(Status.UNAUTHORIZED, f"{setting}: nobody acts as root without its password")
        if not user.active:
            raise ShardError(Status.USER_INACTIVE, f"{setting}: the user {name!r} is inactive")
        logged_in = self._log_in(identity, user)
        self._told.tell(self._metadata.state, Identity(user.id, user.incarnation, identity.session), setting)
        return logged_in

    async def logout(self, identity: Identity, request: requests.Empty) -> None:
        if identity.session is not None:
            identity.session.set_user(None)
            self._engine.set_session(identity.session.connection, limits.NOT_LOGGED_IN, False)

    def _log_in(self, identity: Identity, user: User) -> LoggedIn:
        session = _entered(identity)  # it may have gone while the password was verified
        session.set_user(user.id, user.incarnation)
        self._engine.set_session(session.connection, user.id, True)
        return LoggedIn(user.id)

    @contextmanager
    def _counted(self, session: Session) -> Iterator[None]:
        """A failed login counts; the connection is closed with the last one that it may have."""
        try:
            yield
        except ShardError as error:
            if error.status in _FAILED:
                session.failed_logins += 1
                error.close |= session.failed_logins >= self._attempts_max
            raise

    async def _verified(self, request: requests.Login) -> User:
        """The account that name and password belong to."""
        user = self._account(request.username)
        if user is None:
            # as slow as a known name
            await self._passwords.verify_nothing(self._like(request.username), request.password)
            raise ShardError(Status.INVALID_CREDENTIALS)
        fits = await self._passwords.verify(user.password_hash, request.password)
        if not user.active:  # whatever the password is, as clients know it; as slow as an active one
            raise ShardError(Status.USER_INACTIVE)
        if not fits:
            raise ShardError(Status.INVALID_CREDENTIALS)
        # Verifying takes milliseconds in a helper thread: the account may have changed meanwhile.
        current = self._account(request.username)
        if current is None or current.incarnation != user.incarnation or current.password_hash != user.password_hash:
            raise ShardError(Status.INVALID_CREDENTIALS)
        if not current.active:
            raise ShardError(Status.USER_INACTIVE)
        return current

    def _like(self, name: str) -> str:
        """The hash whose cost an unknown name has: that of one of the users, always the same one for a name. Hashes of
        earlier settings cost what they did: names would be told apart if all unknown ones cost the same."""
        state = self._metadata.state
        ids = len(state.users) + len(state.free_user_ids)
        user = state.users.get(hash(name) % max(1, ids)) or state.users.get(ROOT_USER_ID)
        return "" if user is None else user.password_hash

    def _account(self, name: str) -> User | None:
        """The account with a name. A name that looks like a number is a name."""
        state = self._metadata.state
        user_id = state.user_ids.get(name)
        return None if user_id is None else state.users.get(user_id)


def _entered(identity: Identity) -> Session:
    """100 and close when the connection has lost its entry, for instance with its user."""
    session = identity.session
    if session is None or session.removed:
        raise ShardError(Status.CLIENT_NOT_FOUND, close=True)
    return session
