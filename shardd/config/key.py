"""A served key: its name, its default, and how it is read and written; one maker for each kind of value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from shardd.config import origins, units, values

HOUR_MS: Final = 3_600_000
DECADE_MS: Final = 24 * 3650 * HOUR_MS


class Key(msgspec.Struct, frozen=True):
    """`path` as in the file; `field`: dotted place in `Settings`; `parse` raises ValueError with a sentence."""

    path: str
    field: str
    default: object
    parse: Callable[[object], Any]
    format: Callable[[Any], str] = str
    quoted: bool = True

    def toml(self, value: object) -> str:
        """The value as TOML writes it."""
        text = self.format(value)
        return msgspec.json.encode(text).decode() if self.quoted else text  # a JSON string is a TOML basic string


def _format_bool(value: bool) -> str:
    return "true" if value else "false"


def flag(path: str, default: bool, field: str | None = None) -> Key:
    return Key(path, field or path, default, units.parse_bool, _format_bool, quoted=False)


def count(path: str, default: int, low: int, high: int) -> Key:
    return Key(path, path, default, values.bounded(values.parse_count, low, high, str), quoted=False)


def size(path: str, field: str, default: str, low: int, high: int, step: int = 1) -> Key:
    parse = values.bounded(units.parse_size_bytes, low, high, units.format_size, step)
    return Key(path, field, default, parse, units.format_size)


def duration(path: str, field: str, default: str, low_ms: int, high_ms: int) -> Key:
    parse = values.bounded(units.parse_duration_ms, low_ms, high_ms, units.format_duration_ms)
    return Key(path, field, default, parse, units.format_duration_ms)


def list_of(path: str, default: object, parse: Callable[[object], list[str]], field: str | None = None) -> Key:
    return Key(path, field or path, default, parse, origins.format_origins, quoted=False)
