"""What a setting may be, where a sentence is all that is wrong with it: each raises ValueError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shardd.config.codecs import parse_codec as parse_algorithm
from shardd.config.digits import number_of
from shardd.config.schema import INDEX_MODES

LOG_LEVELS: Final = ("trace", "debug", "info", "warn", "error", "off")


def parse_group(value: object) -> str:
    """A name or a number; whether there is one the server looks up when it starts."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32 - 1:
        return str(value)
    if not isinstance(value, str) or any(character in value for character in "\0:\n"):
        raise ValueError(f"{value!r} is no group")
    return value.strip()


def parse_user(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{value!r} is no name of a user")
    return value


def parse_release(value: object) -> str:
    """One of those without a login (docs/protocol/legacy.md#anonymous)."""
    parts = value.strip().split(".") if isinstance(value, str) else []
    if parts[:2] == ["0", "0"] and len(parts) == 3 and 11 <= (number_of(parts[2]) or 0) <= 69:
        return ".".join(parts)
    raise ValueError(f"{value!r} is no release from 0.0.11 to 0.0.69")


def parse_codec(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return parse_algorithm(value.strip().lower())


def parse_choice(choices: tuple[str, ...]) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if isinstance(value, str) and value.strip().lower() in choices:
            return value.strip().lower()
        raise ValueError(f"{value!r} is none of {', '.join(choices)}")

    return parse


def parse_index_mode(value: object) -> str:
    """Iggy takes a flag, too: true for all, false for none."""
    text = str(value).strip().lower() if isinstance(value, str | bool) else value
    return parse_choice(INDEX_MODES)({"true": "all", "false": "none"}.get(str(text), text))


def parse_level(value: object) -> str:
    """A level; of a filter list such as "info,hyper=warn" the part for everything counts."""
    parts = [part for part in value.split(",") if "=" not in part] if isinstance(value, str) else [value]
    return parse_choice(LOG_LEVELS)(parts[0] if len(parts) == 1 else value)


def bounded(
    parse: Callable[[object], int], low: int, high: int, show: Callable[[int], str], step: int = 1
) -> Callable[[object], int]:
    def parse_bounded(value: object) -> int:
        number = parse(value)
        if not low <= number <= high:
            raise ValueError(f"{value!r} is out of range; {show(low)} to {show(high)}")
        if number % step:
            raise ValueError(f"{value!r} is not a multiple of {step}")
        return number

    return parse_bounded


def parse_count(value: object) -> int:
    found = number_of(str(value).strip()) if isinstance(value, int | str) and not isinstance(value, bool) else None
    if found is None:
        raise ValueError(f"{value!r} is no count")
    return found
