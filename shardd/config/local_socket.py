"""The values of `unix.*` (docs/configuration.md#unix-socket). Every parser raises ValueError with a sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from shardd.config.digits import number_of

PATH_BYTES_MAX: Final = 107
"""What fits into a struct sockaddr_un with its end."""
_UID_MAX: Final = 2**32 - 2
_USER_NAME_BYTES: Final = range(3, 51)  # of an account (docs/protocol/accounts.md)
_USERS_MAX: Final = 1024
_MODE: Final = re.compile(r"0?[0-7]{3}")


def parse_path(value: object) -> str:
    """ "": there is no socket."""
    if not isinstance(value, str) or "\0" in value or "\n" in value:
        raise ValueError(f"{value!r} is no path")
    if value and not value.startswith("/"):
        raise ValueError(f"{value!r} does not begin with /")
    if len(value.encode()) > PATH_BYTES_MAX:
        raise ValueError(f"a path of {len(value.encode())} bytes; a socket's has at most {PATH_BYTES_MAX}")
    return value


def parse_mode(value: object) -> int:
    """Octal digits as chmod takes them."""
    if not isinstance(value, str) or not _MODE.fullmatch(value.strip()):
        raise ValueError(f'{value!r} is no mode such as "0660"')
    return int(value, 8)


def format_mode(mode: int) -> str:
    return f"{mode:04o}"


def parse_users(value: object) -> dict[int, str]:
    """Entries "uid:user" in a list, or in a text with commas."""
    entries = [entry for entry in value.split(",") if entry.strip()] if isinstance(value, str) else value
    if not isinstance(entries, list) or len(entries) > _USERS_MAX:
        raise ValueError(f"not a list of at most {_USERS_MAX} entries")
    users: dict[int, str] = {}
    for entry in entries:
        uid, colon, name = entry.partition(":") if isinstance(entry, str) else ("", "", "")
        uid, name = uid.strip(), name.strip()
        number = number_of(uid)
        if not colon or number is None or number > _UID_MAX:
            raise ValueError(f'{entry!r} is no entry such as "1000:alice"')
        if len(name.encode()) not in _USER_NAME_BYTES:
            raise ValueError(f"{name!r} cannot be the name of a user")
        if number in users:
            raise ValueError(f"the uid {number} stands there twice")
        users[number] = name
    return users


def format_users(users: Mapping[int, str]) -> str:
    """As TOML writes a list."""
    return msgspec.json.encode([f"{uid}:{name}" for uid, name in users.items()]).decode()
