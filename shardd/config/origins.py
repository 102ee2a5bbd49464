"""`websocket.allowed_origins`: where pages of browsers that connect may come from (docs/configuration.md#websocket)."""

from __future__ import annotations

import re
from typing import Final

import msgspec

ORIGINS_MAX: Final = 64
_ORIGIN: Final = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#,]{1,255}", re.IGNORECASE | re.ASCII)


def parse_origins(value: object) -> list[str]:
    """Entries "https://host:port" or "*" in a list, or in a text with commas. ValueError with a sentence."""
    entries = [entry.strip() for entry in value.split(",") if entry.strip()] if isinstance(value, str) else value
    if not isinstance(entries, list) or len(entries) > ORIGINS_MAX:
        raise ValueError(f"not a list of at most {ORIGINS_MAX} origins")
    for entry in entries:
        if not isinstance(entry, str) or not _ORIGIN.fullmatch(entry):
            raise ValueError(f'{entry!r} is no origin such as "https://example.org:8443"')
    return entries


def format_origins(origins: tuple[str, ...]) -> str:
    """As TOML writes a list."""
    return msgspec.json.encode(origins).decode()
