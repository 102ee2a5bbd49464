"""What the door for HTTP gets of the server's settings."""

from __future__ import annotations

from typing import Final

import msgspec

from shardd.config.http import Http
from shardd.config.schema import Server, Settings

DOOR_NAME: Final = "http"
COMMAND: Final = ("-m", "shardd.doors.http.main")
CLIENT_SHARE: Final = 2  # doors have at most 1/2 of the connections (shardd/transport/door/clients.py)


class HttpOptions(msgspec.Struct, frozen=True):
    """`server`: limits of connections."""

    http: Http
    server: Server

    @property
    def connections_max(self) -> int:
        return max(1, self.server.connections_max // (CLIENT_SHARE * self.http.processes))

    @property
    def connections_per_address_max(self) -> int:
        wanted = self.server.connections_per_address_max or self.server.most_connections
        return min(wanted, max(1, self.connections_max * 9 // 10))


def encode_options(settings: Settings) -> bytes:
    """Which issuers are trusted is a matter of the workers."""
    jwt = msgspec.structs.replace(settings.http.jwt, trusted_issuers=())
    return msgspec.msgpack.encode(HttpOptions(msgspec.structs.replace(settings.http, jwt=jwt), settings.server))


def decode_options(data: bytes) -> HttpOptions:
    return msgspec.msgpack.decode(data, type=HttpOptions)
