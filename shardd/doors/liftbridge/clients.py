"""The clients of Liftbridge that are logged in at the workers, by the login in the metadata of their calls."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

import msgspec
from grpc import StatusCode

from shardd.doors.door import Door, DoorClient
from shardd.doors.held_clients import SHOWN_CHARACTERS_MAX, HeldClients, host_of_address
from shardd.doors.liftbridge.status import RpcError
from shardd.protocol.door_frames import Purpose


class Credential(msgspec.Struct, frozen=True):
    """The login that a call shows: a token, or a name with a password, or nothing."""

    token: str = ""
    username: str = ""
    password: str = ""

    @property
    def is_anonymous(self) -> bool:
        return not self.token and not self.username

    def __repr__(self) -> str:
        return "Credential(***)"


def credential_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> Credential:
    """RpcError for an `authorization` that is neither `Bearer` nor `Basic`."""
    values = [value for key, value in metadata or () if key.lower() == "authorization"]
    if not values:
        return Credential()
    said = values[0] if isinstance(values[0], str) else ""
    if len(values) > 1 or len(said) > SHOWN_CHARACTERS_MAX:
        raise _unauthenticated()
    scheme, _, value = said.partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return Credential(token=value.strip())
    if scheme.lower() != "basic":
        raise _unauthenticated()
    try:
        username, colon, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise _unauthenticated() from None
    if not colon or not username:
        raise _unauthenticated()
    return Credential(username=username, password=password)


Clients = HeldClients[Credential]
"""`take` raises RpcError as well."""


def make_clients(door: Door, clients_max: int, *, anonymous: bool) -> Clients:
    """The login of a token, or of calls without a login, belongs to a host; the login of a password belongs to a
    connection, and ends with it as over TCP. `anonymous`: whether a setting names the user of calls without a login."""

    def key_of(credential: Credential, address: str) -> tuple[Credential, str]:
        if credential.is_anonymous and not anonymous:
            raise RpcError(StatusCode.UNAUTHENTICATED, "a login is needed: authorization Bearer or Basic")
        return credential, address if credential.username else host_of_address(address)

    return HeldClients(door, clients_max, key_of, _log_in)


async def _log_in(client: DoorClient, credential: Credential) -> None:
    if credential.token:
        await client.login_with_access_token(credential.token)
    elif credential.username:
        await client.login(credential.username, credential.password)
    else:
        await client.login_by_setting(Purpose.ANONYMOUS)


def _unauthenticated() -> RpcError:
    return RpcError(StatusCode.UNAUTHENTICATED, "no valid login")
