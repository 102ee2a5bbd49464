"""What the door for QUIC gets of the server's settings."""

from __future__ import annotations

from typing import Final

import msgspec

from shardd.config.quic import Quic
from shardd.config.schema import Settings
from shardd.doors.options import ConnectionOptions

DOOR_NAME: Final = "quic"
COMMAND: Final = ("-m", "shardd.doors.start", "shardd.doors.quic.main")


class QuicOptions(ConnectionOptions, frozen=True):
    quic: Quic


def encode_options(settings: Settings) -> bytes:
    return msgspec.msgpack.encode(QuicOptions(settings.server, settings.quic))


def decode_options(data: bytes) -> QuicOptions:
    return msgspec.msgpack.decode(data, type=QuicOptions)
