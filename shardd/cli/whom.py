"""Which server a command on the blocking connection asks, and as whom: its options, else what the client would take."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardd.client.errors import SettingsError
from shardd.client.settings import Settings, resolve
from shardd.client.transport import way_to
from shardd.config.digits import number_of

DEFAULT: Final = "iggy"
EXIT_REFUSED: Final = 1


def whom(address: str | None, username: str | None = None, password: str | None = None) -> Settings:
    """`None`: not given. SettingsError with a sentence, also when a context or SHARDD_URL makes no sense."""
    if address is not None:
        return replace(way_of(address), username=username or DEFAULT, password=password or DEFAULT)
    found = resolve()
    if found.token and username is None and password is None:
        return found
    name, secret = username or found.username or DEFAULT, password or found.password or DEFAULT
    return replace(found, username=name, password=secret, token="")


def way_of(address: str) -> Settings:
    """Of "host:port", "[v6]:port", "unix:/path" or "shardd+tls://host:port?ca_file=...". SettingsError."""
    if address.startswith("shardd+tls://"):
        try:
            return way_to(address)
        except SettingsError as error:
            raise SettingsError(f"{address!r} is no address: {error}") from None
    host, _, port = address.rpartition(":")
    if not address.startswith("unix:/") and (not host or not 0 < (number_of(port) or 0) < 65536):
        raise SettingsError(f"{address!r} is no address; write host:port, unix:/path or shardd+tls://host:port")
    return way_to(address)
