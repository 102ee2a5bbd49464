"""Names of the algorithms that compress sealed segments, with a level: `zstd`, `zstd:9`, `none`."""

from __future__ import annotations

import re
from typing import Final

NONE: Final = "none"
LEVELS_MAX: Final = {"gzip": 9, "lz4": 12, "zstd": 19}  # the lowest is 1
USUAL_LEVELS: Final = {"gzip": 6, "lz4": 1, "zstd": 3}
TAKES: Final = "none, gzip, lz4, zstd, or one with a level: " + ", ".join(
    f"{name}:1 to {name}:{most}" for name, most in LEVELS_MAX.items()
)
_FORM: Final = re.compile(r"([a-z0-9]+)(?::([1-9][0-9]?))?", re.ASCII)


def parse_codec(text: str) -> str:
    """The text, if it names an algorithm and a level that it has. ValueError."""
    found = _FORM.fullmatch(text)
    if text != NONE and (found is None or int(found[2] or 1) > LEVELS_MAX.get(found[1], 0)):
        raise ValueError(f"{text!r} is none of {TAKES}")
    return text


def split_codec(text: str) -> tuple[str, int] | None:
    """(algorithm, level) of what `parse_codec` accepts; None for none."""
    if text == NONE:
        return None
    name, _, level = text.partition(":")
    return name, int(level) if level else USUAL_LEVELS[name]
