"""What the door for Liftbridge gets of the server's settings."""

from __future__ import annotations

from typing import Final

import msgspec

from shardd.config.liftbridge import Liftbridge
from shardd.config.schema import Settings
from shardd.doors.options import ConnectionOptions

DOOR_NAME: Final = "liftbridge"
COMMAND: Final = ("-m", "shardd.doors.liftbridge.main")


class LiftbridgeOptions(ConnectionOptions, frozen=True):
    """gRPC counts no connections by address."""

    liftbridge: Liftbridge


def encode_options(settings: Settings) -> bytes:
    return msgspec.msgpack.encode(LiftbridgeOptions(settings.server, settings.liftbridge))


def decode_options(data: bytes) -> LiftbridgeOptions:
    return msgspec.msgpack.decode(data, type=LiftbridgeOptions)
