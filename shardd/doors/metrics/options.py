"""What the door for metrics gets of the server's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from shardd.config.schema import Server, Settings

DOOR_NAME: Final = "metrics"
COMMAND: Final = ("-m", "shardd.doors.start", "shardd.doors.metrics.main")
TOKEN_CHARACTERS_MIN: Final = 16
TOKEN_CHARACTERS_MAX: Final = 4096


class MetricsOptions(msgspec.Struct, frozen=True):
    """`token` "": none is asked for. `server`: limits of connections."""

    token: str
    version: str
    allowed_hosts: tuple[str, ...]
    server: Server


def read_token(path: str) -> str:
    """The only line of the file; "" without a file. ValueError with a sentence, in which nothing of it is told."""
    if not path:
        return ""
    try:
        text = Path(path).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not ASCII"
        raise ValueError(f"{path} cannot be read: {why}") from None
    low, high = TOKEN_CHARACTERS_MIN, TOKEN_CHARACTERS_MAX
    if not low <= len(text) <= high or not text.isprintable() or " " in text:
        raise ValueError(f"{path} holds no token: one of {low} to {high} characters without a blank")
    return text


def encode_options(settings: Settings, version: str) -> bytes:
    """ValueError with a sentence about the token."""
    token, hosts = read_token(settings.metrics.token_file), settings.metrics.allowed_hosts
    return msgspec.msgpack.encode(MetricsOptions(token, version, hosts, settings.server))


def decode_options(data: bytes) -> MetricsOptions:
    return msgspec.msgpack.decode(data, type=MetricsOptions)
