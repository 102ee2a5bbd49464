"""What the door for HTTP gets of the server's settings."""

from __future__ import annotations

from typing import Final

import msgspec

from shardd.config.http import Http
from shardd.config.proxies import Proxies
from shardd.config.schema import Settings
from shardd.doors.options import ConnectionOptions

DOOR_NAME: Final = "http"
COMMAND: Final = ("-m", "shardd.doors.start", "shardd.doors.http.main")


class HttpOptions(ConnectionOptions, frozen=True):
    http: Http
    proxies: Proxies

    @property
    def processes(self) -> int:
        return self.http.processes


def encode_options(settings: Settings) -> bytes:
    """Which issuers are trusted is a matter of the workers."""
    jwt = msgspec.structs.replace(settings.http.jwt, trusted_issuers=())
    http = msgspec.structs.replace(settings.http, jwt=jwt)
    return msgspec.msgpack.encode(HttpOptions(settings.server, http, settings.proxies))


def decode_options(data: bytes) -> HttpOptions:
    return msgspec.msgpack.decode(data, type=HttpOptions)
