"""Sizes in bytes as texts: "10 KiB"."""

from __future__ import annotations

from typing import Final

_THOUSANDTHS: Final = 1000
_UNITS: Final = tuple(
    unit
    for power, letter in zip(range(6, 0, -1), "EPTGMK", strict=True)
    for unit in ((f"{letter}iB", 1024**power), (f"{letter}B", 1000**power))
)


def size_text(size_bytes: int) -> str:
    """The largest unit in which it has at most three decimals, and all of it."""
    for name, unit in _UNITS:
        if size_bytes >= unit and size_bytes * _THOUSANDTHS % unit == 0:
            whole, rest = divmod(size_bytes * _THOUSANDTHS // unit, _THOUSANDTHS)
            decimals = f".{rest:03}".rstrip("0") if rest else ""
            return f"{whole}{decimals} {name}"
    return f"{size_bytes} B"
