"""The first user (docs/protocol/accounts.md#first-user): taken from the environment, the well-known default on demand,
else generated."""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping
from typing import Final

import msgspec

ENVIRONMENT_PREFIXES: Final = ("SHARDD_ROOT_", "IGGY_ROOT_")  # the first one that is set wins
NAME_BYTES: Final = (3, 50)
PASSWORD_BYTES: Final = (3, 100)
_GENERATED_LENGTH: Final = 32


class RootUser(msgspec.Struct, frozen=True):
    """`generated`: the password was made here and must be shown once. `source` as `config show` names it."""

    name: str
    password: str
    generated: bool
    source: str

    def __repr__(self) -> str:
        return f"RootUser(name={self.name!r}, password=***)"


def resolve_root_user(environment: Mapping[str, str], default_credentials: bool) -> RootUser:
    """Raises ValueError with a sentence when only one of the pair is set or a length is out of range."""
    for prefix in ENVIRONMENT_PREFIXES:
        name, password = environment.get(prefix + "USERNAME", ""), environment.get(prefix + "PASSWORD", "")
        if not name and not password:
            continue
        if not name or not password:
            raise ValueError(f"{prefix}USERNAME and {prefix}PASSWORD: set both or neither")
        _check_length(prefix + "USERNAME", name, NAME_BYTES)
        _check_length(prefix + "PASSWORD", password, PASSWORD_BYTES)
        return RootUser(name, password, False, prefix + "*")
    if default_credentials:
        return RootUser("iggy", "iggy", False, "command line")
    alphabet = string.ascii_letters + string.digits
    return RootUser("iggy", "".join(secrets.choice(alphabet) for _ in range(_GENERATED_LENGTH)), True, "generated")


def _check_length(variable: str, value: str, bounds: tuple[int, int]) -> None:
    if not bounds[0] <= len(value.encode()) <= bounds[1]:
        raise ValueError(f"{variable}: {bounds[0]} to {bounds[1]} bytes are allowed")
