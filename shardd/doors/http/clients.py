"""The clients of HTTP that are logged in at the workers. A client belongs to a token and to the host that shows the
token: limits and the log name that host."""

from __future__ import annotations

from shardd.doors.door import Door, DoorClient
from shardd.doors.held_clients import SHOWN_CHARACTERS_MAX, HeldClients, host_of_address
from shardd.doors.http.errors import NotAuthenticatedError
from shardd.protocol.errors import ShardError, Status

Clients = HeldClients[str]
"""`take` raises NotAuthenticatedError as well."""


def make_clients(door: Door, clients_max: int) -> Clients:
    return HeldClients(door, clients_max, _key_of, _log_in)


def _key_of(token: str, address: str) -> tuple[str, str]:
    if not token or len(token) > SHOWN_CHARACTERS_MAX:
        raise NotAuthenticatedError
    return token, host_of_address(address)


async def _log_in(client: DoorClient, token: str) -> None:
    try:
        await client.login_with_access_token(token)
    except ShardError as error:
        if error.status is Status.INVALID_ACCESS_TOKEN:
            raise NotAuthenticatedError from None
        raise
