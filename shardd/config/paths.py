"""Names of files and directories among the settings."""

from __future__ import annotations


def parse_path(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError(f"{value!r} is no path")
    return value


def parse_absolute(value: object) -> str:
    """An absolute path, or "" for none: a server is not always started in the same place."""
    if not isinstance(value, str) or "\0" in value or (value and not value.startswith("/")):
        raise ValueError(f"{value!r} is no absolute path")
    return value
