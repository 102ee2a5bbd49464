"""Values as tables for people and as JSON for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import Any, Final

_NEVER: Final = (1 << 64) - 1
_OBEYED: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def plain(value: Any) -> dict[str, Any]:
    """Fields of a data class, or the mapping itself."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else dict(value)


def dumps(value: Any) -> str:
    """Also what JSON may leave as it is, but a terminal obeys."""
    return harmless(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def harmless(text: str) -> str:
    """JSON in which characters that a terminal obeys are escapes."""
    return _OBEYED.sub(_as_json, text)


def _as_json(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def shown(name: str, value: Any) -> str:
    """One value for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_at_us") or name == "start_time_us":
        return time_text(value) if value else "never"
    if name == "run_time_us":
        return f"{value // 1_000_000} s"
    if name == "message_expiry_us":
        return "default" if value == 0 else "never" if value == _NEVER else f"{value / 1e6:g} s"
    if name == "max_topic_size_bytes" and value in (0, _NEVER):
        return "unlimited" if value else "default"
    if name.endswith("_bytes"):
        return size_text(value)
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, list | tuple):
        return ", ".join(printable(str(each)) for each in value) or "-"
    return printable(str(value))


def printable(text: str) -> str:
    """Control characters, line breaks and what changes the direction of a line as escapes: a name that somebody chose
    must not move the cursor or look like another one."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def size_text(size: int) -> str:
    """Below 1 KiB exactly."""
    number, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while number >= 1024 and len(units) > 1:
        number /= 1024
        units.pop(0)
    return f"{size} B" if units[0] == "B" else f"{number:.1f} {units[0]}"


def time_text(time_us: int) -> str:
    text = datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="seconds")
    return text.replace("+00:00", "Z")


def named_with_id(value: Any) -> str:
    """A stream, group or user that will be gone."""
    return f"{printable(value.name)} (id {value.id})"


def title(name: str) -> str:
    return name.removesuffix("_us").removesuffix("_count").replace("_", " ").removesuffix(" bytes")


def as_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Numbers to the right, everything else to the left."""
    heads = [title(name) for name in columns]
    cells = [[shown(name, row[name]) for name in columns] for row in rows]
    widths = [max(len(line[at]) for line in [heads, *cells]) for at in range(len(columns))]
    right = [
        bool(rows) and all(type(row[name]) in (int, float, type(None)) for row in rows) and not name.endswith("_at_us")
        for name in columns
    ]

    def line(texts: Sequence[str]) -> str:
        pairs = zip(texts, widths, right, strict=True)
        return "  ".join(text.rjust(width) if to_right else text.ljust(width) for text, width, to_right in pairs)

    return "\n".join(line(texts).rstrip() for texts in [heads, *cells])


def as_list(value: Mapping[str, Any]) -> str:
    """One value, a line for each field; what is a list of values stands below as a table."""
    below = {key: each for key, each in value.items() if _is_rows(each)}
    inline = {key: each for key, each in value.items() if key not in below and not isinstance(each, dict)}
    width = max((len(title(key)) for key in inline), default=0)
    lines = [f"{title(key).ljust(width)}  {shown(key, each)}" for key, each in inline.items()]
    for key, rows in below.items():
        flat = [name for name, each in rows[0].items() if not _is_rows(each) and not isinstance(each, dict)]
        lines += ["", f"{title(key)}:", as_table(rows, flat)]
    return "\n".join(lines)


def _is_rows(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], dict)
