"""Users, what they may do, and their personal access tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from shardd.doors.http.endpoint import Call, Endpoint
from shardd.doors.http.shapes import U64, Value
from shardd.doors.http.stream_routes import found
from shardd.protocol.account_replies import STATUS_ACTIVE, STATUS_INACTIVE

UserStatus = Literal["active", "inactive"]
_NUMBERS: Final[dict[UserStatus, int]] = {"active": STATUS_ACTIVE, "inactive": STATUS_INACTIVE}


class GlobalPermissions(msgspec.Struct, frozen=True):
    manage_servers: bool = False
    read_servers: bool = False
    manage_users: bool = False
    read_users: bool = False
    manage_streams: bool = False
    read_streams: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False


class TopicPermissions(msgspec.Struct, frozen=True):
    manage_topic: bool = False
    read_topic: bool = False
    poll_messages: bool = False
    send_messages: bool = False


class StreamPermissions(msgspec.Struct, frozen=True):
    """`topics`: by id."""

    manage_stream: bool = False
    read_stream: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False
    topics: Mapping[int, TopicPermissions] | None = None


class Permissions(msgspec.Struct, frozen=True):
    """`streams`: by id."""

    everywhere: GlobalPermissions = msgspec.field(name="global")
    streams: Mapping[int, StreamPermissions] | None = None

    @classmethod
    def of(cls, value: Value) -> Permissions:
        streams = {number: _stream_permissions(each) for number, each in sorted(value["streams"].items())}
        names = GlobalPermissions.__struct_fields__
        return cls(GlobalPermissions(**{name: value[name] for name in names}), streams or None)

    def fields(self) -> dict[str, Any]:
        """As the services call them."""
        streams = {
            number: {**msgspec.structs.asdict(each), "topics": each.topics or {}}
            for number, each in (self.streams or {}).items()
        }
        return {**msgspec.structs.asdict(self.everywhere), "streams": streams}


class User(msgspec.Struct, frozen=True):
    id: int
    created_at_us: int = msgspec.field(name="created_at")
    status: UserStatus
    username: str

    @classmethod
    def of(cls, value: Value) -> User:
        return cls(**_user_fields(value))


class UserDetails(User, frozen=True):
    permissions: Permissions | None = None

    @classmethod
    def of(cls, value: Value) -> UserDetails:
        permissions = value["permissions"]
        return cls(**_user_fields(value), permissions=None if permissions is None else Permissions.of(permissions))


class NewUser(msgspec.Struct, frozen=True):
    username: str
    password: str
    status: UserStatus = "active"
    permissions: Permissions | None = None


class UserUpdate(msgspec.Struct, frozen=True):
    """What is not there stays as it is."""

    username: str | None = None
    status: UserStatus | None = None


class PermissionsUpdate(msgspec.Struct, frozen=True):
    permissions: Permissions | None = None


class PasswordChange(msgspec.Struct, frozen=True):
    current_password: str
    new_password: str


class NewToken(msgspec.Struct, frozen=True):
    """`expiry`: microseconds from now on; 0: never."""

    name: str
    expiry_us: U64 = msgspec.field(name="expiry", default=0)


class TokenSecret(msgspec.Struct, frozen=True):
    token: str


class TokenInfo(msgspec.Struct, frozen=True):
    """`expiry_at`: null when it holds for ever."""

    name: str
    expires_at_us: int | None = msgspec.field(name="expiry_at")


async def get_users(call: Call) -> Sequence[User]:
    return [User.of(each) for each in await call.command("get_users")]


async def get_user(call: Call) -> UserDetails:
    return UserDetails.of(await found(call, "get_user", {"user": call.identifier("user")}))


async def create_user(call: Call) -> UserDetails:
    said: NewUser = call.body
    request = {
        "username": said.username,
        "password": said.password,
        "status": _NUMBERS[said.status],
        "permissions": None if said.permissions is None else said.permissions.fields(),
    }
    return UserDetails.of(await call.command("create_user", request))


async def update_user(call: Call) -> None:
    said: UserUpdate = call.body
    status = None if said.status is None else _NUMBERS[said.status]
    await call.command("update_user", {"user": call.identifier("user"), "username": said.username, "status": status})


async def delete_user(call: Call) -> None:
    await call.command("delete_user", {"user": call.identifier("user")})


async def update_permissions(call: Call) -> None:
    said: PermissionsUpdate = call.body
    permissions = None if said.permissions is None else said.permissions.fields()
    await call.command("update_permissions", {"user": call.identifier("user"), "permissions": permissions})


async def change_password(call: Call) -> None:
    said: PasswordChange = call.body
    await call.command("change_password", {"user": call.identifier("user"), **msgspec.structs.asdict(said)})


async def get_tokens(call: Call) -> Sequence[TokenInfo]:
    tokens = await call.command("get_personal_access_tokens")
    return [TokenInfo(each["name"], each["expires_at_us"] or None) for each in tokens]


async def create_token(call: Call) -> TokenSecret:
    said: NewToken = call.body
    made = await call.command("create_personal_access_token", {"name": said.name, "expiry_us": said.expiry_us})
    return TokenSecret(made["text"])


async def delete_token(call: Call) -> None:
    await call.command("delete_personal_access_token", {"name": call.text("name")})


def _user_fields(value: Value) -> dict[str, Any]:
    return {
        "id": value["id"],
        "created_at_us": value["created_at_us"],
        "status": "active" if value["active"] else "inactive",
        "username": value["username"],
    }


def _stream_permissions(value: Value) -> StreamPermissions:
    topics = {number: TopicPermissions(**each) for number, each in sorted(value["topics"].items())}
    return StreamPermissions(**{**value, "topics": topics or None})


_USER: Final = "/users/{user}"
_TOKENS: Final = "/personal-access-tokens"
ENDPOINTS: Final = (
    Endpoint("GET", "/users", get_users, "All users", reply=list[User]),
    Endpoint("POST", "/users", create_user, "Create a user", body=NewUser, reply=UserDetails),
    Endpoint("GET", _USER, get_user, "A user and what he may do", reply=UserDetails),
    Endpoint("PUT", _USER, update_user, "Change name or status of a user", body=UserUpdate, status=204),
    Endpoint("DELETE", _USER, delete_user, "Delete a user", status=204),
    Endpoint(
        "PUT",
        f"{_USER}/permissions",
        update_permissions,
        "Change what a user may do",
        body=PermissionsUpdate,
        status=204,
    ),
    Endpoint(
        "PUT", f"{_USER}/password", change_password, "Change a password", body=PasswordChange, status=204, waits=True
    ),
    Endpoint("GET", _TOKENS, get_tokens, "The own personal access tokens", reply=list[TokenInfo]),
    Endpoint("POST", _TOKENS, create_token, "Create one", body=NewToken, reply=TokenSecret),
    Endpoint("DELETE", f"{_TOKENS}/{{name}}", delete_token, "Delete one", status=204),
)
