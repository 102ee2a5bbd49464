"""Who somebody is: logins, access tokens, logout (docs/protocol/http.md#tokens)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from shardd.doors.door import DoorClient
from shardd.doors.http.endpoint import Call, Endpoint
from shardd.protocol.errors import ShardError, Status

_WRONG: Final = frozenset({Status.INVALID_USERNAME, Status.INVALID_PASSWORD})


class Login(msgspec.Struct, frozen=True):
    """`version` and `context`: what a client says about itself; nobody reads them."""

    username: str
    password: str
    version: str | None = None
    context: str | None = None


class Token(msgspec.Struct, frozen=True):
    token: str


class AccessToken(msgspec.Struct, frozen=True):
    """`expiry`: seconds since the epoch."""

    token: str
    expiry_s: int = msgspec.field(name="expiry")


class LoggedIn(msgspec.Struct, frozen=True):
    user_id: int
    access_token: AccessToken


async def login(call: Call) -> LoggedIn:
    """Names and passwords of a wrong length are wrong ones."""
    said: Login = call.body
    try:
        return await _token_of(call, lambda client: client.login(said.username, said.password))
    except ShardError as error:
        if error.status in _WRONG:
            raise ShardError(Status.INVALID_CREDENTIALS) from None
        raise


async def login_with_token(call: Call) -> LoggedIn:
    token: str = call.body.token
    return await _token_of(call, lambda client: client.login_with_token(token))


async def refresh(call: Call) -> LoggedIn:
    token: str = call.body.token
    return await _token_of(call, lambda client: client.login_with_access_token(token), "refresh_access_token")


async def logout(call: Call) -> None:
    await call.command("revoke_access_token")


async def _token_of(
    call: Call, login: Callable[[DoorClient], Awaitable[int]], command: str = "create_access_token"
) -> LoggedIn:
    """By a client that is there for nothing else."""
    door = call.clients.door
    client = await door.open_client(call.address)
    try:
        await login(client)
        made = await client.command(command)
    finally:
        await door.close_client(client)
    return LoggedIn(made["user_id"], AccessToken(made["token"], made["expires_at_s"]))


ENDPOINTS: Final = (
    Endpoint("POST", "/users/login", login, "Log in with a password", body=Login, reply=LoggedIn, waits=True),
    Endpoint(
        "POST", "/personal-access-tokens/login", login_with_token, "Log in with a token", body=Token, reply=LoggedIn
    ),
    Endpoint("POST", "/users/refresh-token", refresh, "Change a token for another one", body=Token, reply=LoggedIn),
    Endpoint("DELETE", "/users/logout", logout, "Give the access token back", status=204),
)
