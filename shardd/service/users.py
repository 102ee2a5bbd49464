"""Users (docs/protocol/accounts.md#users). Other than with streams the permission comes before existence."""

from __future__ import annotations

from collections.abc import Iterator

from shardd.metadata import Metadata
from shardd.metadata.commands import ChangePassword, CreateUser, DeleteUser, Ref, UpdatePermissions, UpdateUser
from shardd.metadata.state import State, User
from shardd.metadata.validate_users import password_fits, user_name_fits
from shardd.protocol import account_requests, requests
from shardd.protocol.account_replies import STATUS_ACTIVE, STATUS_INACTIVE, UserDetails
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Identifier
from shardd.runtime.threads import UnwantedError
from shardd.security import Passwords, Rule
from shardd.security.access_tokens import AccessClaims
from shardd.security.login_turns import LoginTurns
from shardd.service import base
from shardd.service.base import Connections
from shardd.service.identity import Identity
from shardd.service.long_answers import LongAnswers, ascending
from shardd.service.topics import Keep, Kept


def _details(user: User) -> UserDetails:
    return UserDetails(user.id, user.created_at_us, user.active, user.name, user.permissions)


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


class UserService:
    """Lives on the loop thread."""

    def __init__(
        self,
        metadata: Metadata,
        passwords: Passwords,
        login_turns: LoginTurns,
        connections: Connections,
        long_answers: LongAnswers,
    ) -> None:
        self._metadata = metadata
        self._passwords = passwords
        self._login_turns = login_turns
        self._connections = connections
        self._long_answers = long_answers

    async def get_user(self, identity: Identity, request: account_requests.UserRequest) -> UserDetails | None:
        """The own user always. Another id needs the right before it is looked at (41), a name after. None: there is
        none."""
        state = self._metadata.state
        user = find_user(state, request.user)
        if isinstance(request.user, int) and request.user != identity.user:
            base.require(state, identity, Rule.READ_USER)
        if user is None:
            return None
        if user.id != identity.user:
            base.require(state, identity, Rule.READ_USER)
        return _details(user)

    async def get_users(self, identity: Identity, request: requests.Empty, keep: Keep[UserDetails, Kept]) -> list[Kept]:
        """By id."""
        base.require(self._metadata.state, identity, Rule.READ_USER)
        users, kept = self._metadata.state.users, list[Kept]()

        def steps() -> Iterator[None]:
            for user_id in ascending(users):
                if user_id is not None:
                    kept.append(keep(_details(users[user_id])))
                yield

        await self._long_answers.take(identity, steps())
        return kept

    async def create_user(self, identity: Identity, request: account_requests.CreateUserRequest) -> UserDetails:
        """43, 44, 3, 41, 46, 55 in this order. The name is looked up before the password costs a hash."""
        _check_name(request.username)
        _check_password(request.password)
        active = _is_active(request.status)
        base.require(self._metadata.state, identity, Rule.MANAGE_USERS)
        if request.username in self._metadata.state.user_ids:
            raise ShardError(Status.USER_ALREADY_EXISTS)
        async with self._login_turns.hashing(identity.address):
            password_hash = await self._passwords.hash(request.password)
        command = CreateUser(request.username, password_hash, active, request.permissions)
        result = await base.submit(self._metadata, identity, command)
        return _details(result.state.users[result.id])

    async def delete_user(self, identity: Identity, request: account_requests.UserRequest) -> None:
        """41, 20, 48. Tokens and open connections lose their user before this is answered."""
        base.require(self._metadata.state, identity, Rule.MANAGE_USERS)
        user = user_of(self._metadata.state, request.user)
        await base.submit(self._metadata, identity, DeleteUser(user_ref(user)))

    async def update_user(self, identity: Identity, request: account_requests.UpdateUserRequest) -> None:
        """43, 3, 41, 20, 46. An inactive user keeps the connections it has."""
        if request.username is not None:
            _check_name(request.username)
        active = None if request.status is None else _is_active(request.status)
        base.require(self._metadata.state, identity, Rule.MANAGE_USERS)
        user = user_of(self._metadata.state, request.user)
        await base.submit(self._metadata, identity, UpdateUser(user_ref(user), request.username, active))

    async def update_permissions(self, identity: Identity, request: account_requests.UpdatePermissionsRequest) -> None:
        """41, 20, 49."""
        base.require(self._metadata.state, identity, Rule.MANAGE_USERS)
        user = user_of(self._metadata.state, request.user)
        await base.submit(self._metadata, identity, UpdatePermissions(user_ref(user), request.permissions))

    async def change_password(self, identity: Identity, request: account_requests.ChangePasswordRequest) -> None:
        """44 for either password, 20, 41 (another user's), 42: the current one is demanded of administrators too.

        The current one is tried like that of a login. Sessions stay logged in. Of the access tokens of the user the one
        that asks goes on, all others end.
        """
        _check_password(request.current_password)
        _check_password(request.new_password)
        user = user_of(self._metadata.state, request.user)
        if user.id != identity.user:
            base.require(self._metadata.state, identity, Rule.MANAGE_USERS)
        try:
            async with self._login_turns.attempt(
                identity.address, user.name, lambda: base.waits(self._connections, identity)
            ):
                password_hash = await self._new_hash(user_ref(user), request)
        except UnwantedError:
            raise ShardError(Status.CLIENT_NOT_FOUND, "it has left before its turn", close=True) from None
        shown = None if identity.session is None or user.id != identity.user else identity.session.shown
        kept = shown.id if isinstance(shown, AccessClaims) else b""
        await base.submit(self._metadata, identity, ChangePassword(user_ref(user), password_hash, kept))

    async def _new_hash(self, user: Ref, request: account_requests.ChangePasswordRequest) -> str:
        """The hash of the new password, when the current one is right."""
        before = self._current(user)
        if not await self._passwords.verify(before.password_hash, request.current_password):
            raise ShardError(Status.INVALID_CREDENTIALS)
        password_hash = await self._passwords.hash(request.new_password)
        if self._current(user).password_hash != before.password_hash:  # somebody else was faster
            raise ShardError(Status.INVALID_CREDENTIALS)
        return password_hash

    def _current(self, ref: Ref) -> User:
        """The account as it is now: it may have changed while a request waited for its turn."""
        user = self._metadata.state.users.get(ref.id)
        if user is None or user.incarnation != ref.incarnation:
            raise ShardError(Status.RESOURCE_NOT_FOUND)
        return user
