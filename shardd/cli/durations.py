"""Durations of the command line: 90s, 7d, 1h30m, 500ms; and of an expiry never and default."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from shardd.cli.remote import EXIT_USAGE, CommandError

NEVER: Final = (1 << 64) - 1
SERVER_DEFAULT: Final = 0
SECOND_US: Final = 1_000_000
DAY_US: Final = 86_400 * SECOND_US
_MAX_US: Final = 36_500 * DAY_US
_UNITS_US: Final = {
    "ms": 1000,
    "s": SECOND_US,
    "m": 60 * SECOND_US,
    "h": 3600 * SECOND_US,
    "d": DAY_US,
    "w": 7 * DAY_US,
}
_PART: Final = r"(\d{1,15}(?:\.\d{1,9})?)(ms|s|m|h|d|w)"
_DURATION: Final = re.compile(f"(?:{_PART})+", re.ASCII)
_PARTS: Final = re.compile(_PART, re.ASCII)


def duration_us(text: str) -> int:
    """Microseconds, at most 100 years. CommandError."""
    if not _DURATION.fullmatch(text):
        raise CommandError(f"{text!r} is not a duration; write 90s, 7d, 1h30m or 500ms", EXIT_USAGE)
    found = int(sum(Fraction(number) * _UNITS_US[unit] for number, unit in _PARTS.findall(text)))
    if found > _MAX_US:
        raise CommandError(f"{text!r} is more than 36500d", EXIT_USAGE)
    return found


def expiry_us(text: str, *, force: bool) -> int:
    """Of messages. `force`: below a second is meant. CommandError."""
    if text in ("never", "default"):
        return NEVER if text == "never" else SERVER_DEFAULT
    try:
        found = duration_us(text)
    except CommandError as error:
        raise CommandError(f"{error}, never or default", EXIT_USAGE) from None
    if not found:
        raise CommandError(f"an expiry of {text} is refused; write never, default or at least 1s", EXIT_USAGE)
    if found < SECOND_US and not force:
        raise CommandError(
            f"an expiry of {text} removes messages in less than a second; say --force when that is meant", EXIT_USAGE
        )
    return found


def token_expiry_us(days: float) -> int:
    """0: never. CommandError."""
    expiry_us = int(days * DAY_US) if 0 <= days * DAY_US <= _MAX_US else -1
    if days != 0 and expiry_us < SECOND_US:
        raise CommandError(f"--expiry-days {days:g} is refused: write 0 (never), or 0.00002 to 36500", EXIT_USAGE)
    return expiry_us
