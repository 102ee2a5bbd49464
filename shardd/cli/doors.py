"""Which doors a server has: what its settings ask for."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from shardd.config.loader import ConfigError
from shardd.config.schema import Settings
from shardd.doors.http.options import COMMAND, DOOR_NAME, encode_options
from shardd.server.doors import DoorSpecification

_HTTP_MODULES: Final = ("httptools", "jwt", "starlette", "uvicorn")


def doors_of(settings: Settings) -> list[DoorSpecification]:
    """ConfigError when a door cannot run here."""
    if not settings.http.enabled:
        return []
    missing = [name for name in _HTTP_MODULES if find_spec(name) is None]
    if missing:
        raise ConfigError([f'http.enabled: {", ".join(missing)} cannot be imported; pip install "shardd[http]"'])
    addresses = {"http.address": settings.http.address}
    return [DoorSpecification(DOOR_NAME, COMMAND, addresses, encode_options(settings))]
