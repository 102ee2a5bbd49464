"""What the door for QUIC gets of the server's settings."""

from __future__ import annotations

from typing import Final

import msgspec

from shardd.config.quic import Quic
from shardd.config.schema import Server, Settings

DOOR_NAME: Final = "quic"
COMMAND: Final = ("-m", "shardd.doors.quic.main")
CLIENT_SHARE: Final = 2  # doors have at most 1/2 of the connections (shardd/transport/door/clients.py)


class QuicOptions(msgspec.Struct, frozen=True):
    """`server`: limits of connections."""

    quic: Quic
    server: Server

    @property
    def connections_max(self) -> int:
        return max(1, self.server.connections_max // CLIENT_SHARE)

    @property
    def connections_per_address_max(self) -> int:
        wanted = self.server.connections_per_address_max or self.server.most_connections
        return min(wanted, max(1, self.connections_max * 9 // 10))


def encode_options(settings: Settings) -> bytes:
    return msgspec.msgpack.encode(QuicOptions(settings.quic, settings.server))


def decode_options(data: bytes) -> QuicOptions:
    return msgspec.msgpack.decode(data, type=QuicOptions)
