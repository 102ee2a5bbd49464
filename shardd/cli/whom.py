"""Which server a command on the blocking connection asks, and as whom: its options, else what the client would take."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import urlencode

from shardd.client import Credentials
from shardd.client.errors import SettingsError
from shardd.client.settings import Settings, resolve

DEFAULT: Final = "iggy"
_OF_TLS: Final = ("ca_file", "certificate_file", "key_file", "server_name")


class Whom(NamedTuple):
    """`address`: for a `Connection`."""

    address: str
    credentials: Credentials


def whom(address: str | None, username: str | None = None, password: str | None = None) -> Whom:
    """`None`: not given. ValueError with a sentence when a context or SHARDD_URL makes no sense."""
    if address is not None:
        return Whom(address, Credentials(username or DEFAULT, password or DEFAULT))
    try:
        found = resolve()
    except SettingsError as error:
        raise ValueError(str(error)) from None
    if found.token and username is None and password is None:
        return Whom(_address_of(found), Credentials(token=found.token))
    name, secret = username or found.username or DEFAULT, password or found.password or DEFAULT
    return Whom(_address_of(found), Credentials(name, secret))


def _address_of(found: Settings) -> str:
    if not found.tls:
        return found.address
    options = {name: value for name in _OF_TLS if (value := getattr(found, name))}
    return f"shardd+tls://{found.address}" + (f"?{urlencode(options)}" if options else "")
