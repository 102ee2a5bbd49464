"""What the door for Liftbridge gets of the server's settings."""

from __future__ import annotations

from typing import Final

import msgspec

from shardd.config.liftbridge import Liftbridge
from shardd.config.schema import Settings
from shardd.doors.options import ConnectionOptions

DOOR_NAME: Final = "liftbridge"
COMMAND: Final = ("-m", "shardd.doors.start", "shardd.doors.liftbridge.main")
ADDRESS_SHARE: Final = 2  # of the connections of gRPC, one address has at most this part


class LiftbridgeOptions(ConnectionOptions, frozen=True):
    """gRPC counts no connections by address: connection_shares.py does."""

    liftbridge: Liftbridge

    @property
    def grpc_connections_per_address_max(self) -> int:
        share = max(1, self.connections_max // ADDRESS_SHARE)
        return min(share, self.server.connections_per_address_max or share)


def encode_options(settings: Settings) -> bytes:
    return msgspec.msgpack.encode(LiftbridgeOptions(settings.server, settings.liftbridge))


def decode_options(data: bytes) -> LiftbridgeOptions:
    return msgspec.msgpack.decode(data, type=LiftbridgeOptions)
