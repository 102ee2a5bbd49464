"""Clients at the workers, by the token that they have shown. A client belongs to a token and to the address that shows
it: limits and the log name that."""

from __future__ import annotations

from typing import Final

from shardd.doors.door import Door, DoorClient
from shardd.doors.held_clients import HeldClients
from shardd.doors.http.errors import NotAuthenticatedError
from shardd.protocol.errors import ShardError, Status

TOKEN_CHARACTERS_MAX: Final = 4096

Clients = HeldClients[str]
"""`take` raises NotAuthenticatedError as well."""


def make_clients(door: Door, clients_max: int) -> Clients:
    return HeldClients(door, clients_max, _key_of, _log_in)


def _key_of(token: str, address: str) -> tuple[str, str]:
    if not token or len(token) > TOKEN_CHARACTERS_MAX:
        raise NotAuthenticatedError
    return token, address.rpartition(":")[0]


async def _log_in(client: DoorClient, token: str) -> None:
    try:
        await client.login_with_access_token(token)
    except ShardError as error:
        if error.status is Status.INVALID_ACCESS_TOKEN:
            raise NotAuthenticatedError from None
        raise
