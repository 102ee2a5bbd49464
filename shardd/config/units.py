"""Texts of sizes, durations and addresses, and back (docs/configuration.md). Every parser raises ValueError with a
sentence that can be shown after "<key>: "."""

from __future__ import annotations

import ipaddress
import re
from decimal import Decimal
from typing import Final

from shardd.config.digits import number_of
from shardd.config.schema import NEVER

_SIZE_UNITS: Final = {
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_DURATION_UNITS_US: Final = {
    **dict.fromkeys(("us", "usec", "µs"), 1),
    **dict.fromkeys(("ms", "msec", "millis"), 1_000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000_000),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3_600_000_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000_000),
    **dict.fromkeys(("w", "week", "weeks"), 604_800_000_000),
}
_ZERO_WORDS: Final = frozenset({"0", "none", "unlimited", "disabled"})
_NEVER_WORDS: Final = frozenset({"none", "unlimited", "never_expire"})
OFFSET_EXPIRY_MIN_US: Final = 2 * _DURATION_UNITS_US["d"]
_DURATION_PART: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]+)")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")


def parse_size_bytes(value: object) -> int:
    """ "10 MB", "1 GiB" or a plain number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str):
        text = value.strip().lower()
        if text in _ZERO_WORDS:
            return 0
        match = _SIZE.fullmatch(text)
        number = number_of(text)
        if number is not None:
            size = number
        elif match is None or match[2] not in _SIZE_UNITS:
            raise ValueError(f"{value!r} is no size; write it like 512 MiB, 1 GB or 4096")
        else:
            size = int(Decimal(match[1]) * _SIZE_UNITS[match[2]])
    else:
        raise ValueError(f"{value!r} is no size; write it like 512 MiB, 1 GB or 4096")
    if not 0 <= size < 2**63:
        raise ValueError(f"{value!r} is out of range")
    return size


def parse_duration_us(value: object) -> int:
    """ "1 m", "7 days", "2h 30m", or a word for 0. Plain numbers other than 0 are refused: they have no unit."""
    if value == 0 and not isinstance(value, bool):
        return 0
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no duration; write it with a unit, like 30 s or 2h 30m")
    text = value.strip().lower()
    if text in _ZERO_WORDS:
        return 0
    total, position = Decimal(0), 0
    while position < len(text):
        match = _DURATION_PART.match(text, position)
        if match is None or match[2] not in _DURATION_UNITS_US:
            raise ValueError(f"{value!r} is no duration; write it with a unit, like 30 s or 2h 30m")
        total += Decimal(match[1]) * _DURATION_UNITS_US[match[2]]
        position = match.end()
    if not text or total >= 2**63:
        raise ValueError(f"{value!r} is no duration; write it with a unit, like 30 s or 2h 30m")
    return int(total)


def parse_duration_ms(value: object) -> int:
    """As `parse_duration_us`, in whole milliseconds; a shorter duration than 1 ms is refused, 0 is not."""
    duration_us = parse_duration_us(value)
    if duration_us % 1000:
        raise ValueError(f"{value!r} is not a whole number of milliseconds")
    return duration_us // 1000


def parse_expiry_us(value: object) -> int:
    """Message expiry: a duration, or "none" = never (`NEVER`). At most 2^32 - 1 seconds."""
    if isinstance(value, str) and value.strip().lower() in _NEVER_WORDS:
        return NEVER
    expiry_us = parse_duration_us(value)
    if not 0 < expiry_us <= (2**32 - 1) * 1_000_000:
        raise ValueError(f"{value!r} is out of range; write a duration above 0, at most 4294967295 s, or none")
    return expiry_us


def parse_offset_expiry_us(value: object) -> int:
    """Expiry of stored offsets that are not used: "never" (`NEVER`), or a duration of at least two days, since a use by
    a read is written down once a day; at most 2^32 - 1 seconds."""
    if isinstance(value, str) and value.strip().lower() in {"never", *_NEVER_WORDS}:
        return NEVER
    expiry_us = parse_duration_us(value)
    if not OFFSET_EXPIRY_MIN_US <= expiry_us <= (2**32 - 1) * 1_000_000:
        raise ValueError(f"{value!r} is out of range; write a duration of 2 d to 4294967295 s, or never")
    return expiry_us


def format_offset_expiry_us(expiry_us: int) -> str:
    return "never" if expiry_us == NEVER else format_duration_us(expiry_us)


def parse_max_size_bytes(value: object) -> int:
    """Largest size of a topic: a size above 0, or "unlimited" (`NEVER`)."""
    if isinstance(value, str) and value.strip().lower() == "unlimited":
        return NEVER
    size = parse_size_bytes(value)
    if size == 0:
        raise ValueError(f"{value!r} is refused, because 0 stands for the server default; write a size or unlimited")
    return size


def parse_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in {"true", "false"}:
        return value.strip().lower() == "true"
    raise ValueError(f"{value!r} is neither true nor false")


def parse_address(value: object) -> str:
    """ "127.0.0.1:8090" or "[::1]:8090"; `localhost` becomes 127.0.0.1. Returns the normal form."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no address; write it like 127.0.0.1:8090")
    host, _, port = value.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = "127.0.0.1" if host == "localhost" else host.strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f"{value!r} is no address; write it like 127.0.0.1:8090 or [::1]:8090") from None
    if (address.version == 6) != bracketed or (port_number := number_of(port)) is None or port_number > 65535:
        raise ValueError(f"{value!r} is no address; write it like 127.0.0.1:8090 or [::1]:8090")
    return format_address(str(address), port_number)


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def format_size(size_bytes: int) -> str:
    """Shortest exact form: "1 GiB", "100 KB", "4097 B"; `NEVER` is "unlimited"."""
    if size_bytes == NEVER:
        return "unlimited"
    for unit in ("GiB", "MiB", "KiB", "GB", "MB", "KB"):
        factor = _SIZE_UNITS[unit.lower()]
        if size_bytes >= factor and size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} B"


def format_duration_us(duration_us: int) -> str:
    """Shortest exact form: "7 d", "1 s", "1500 ms"; `NEVER` is "none"."""
    if duration_us == NEVER:
        return "none"
    for unit in ("d", "h", "m", "s", "ms"):
        factor = _DURATION_UNITS_US[unit]
        if duration_us >= factor and duration_us % factor == 0:
            return f"{duration_us // factor} {unit}"
    return f"{duration_us} us" if duration_us else "0 s"


def format_duration_ms(duration_ms: int) -> str:
    return format_duration_us(duration_ms * 1000)
