"""Numbers that a person, a file or another program has written. `int` refuses more than 4,300 digits with an error that
no reader of numbers expects, and `isdigit` takes digits that `int` does not."""

from __future__ import annotations

from typing import Final

_DIGITS_MAX: Final = 20  # of 64 bits
TOO_LARGE: Final = 10**_DIGITS_MAX


def number_of(text: str) -> int | None:
    """None: not digits 0 to 9 alone. A number that no field of 64 bits holds is TOO_LARGE."""
    if not (text.isascii() and text.isdecimal()):
        return None
    digits = text.lstrip("0")
    return int(digits or "0") if len(digits) <= _DIGITS_MAX else TOO_LARGE
