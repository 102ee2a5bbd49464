"""Headers of a message of NATS as user headers (docs/protocol/nats.md#headers)."""

from __future__ import annotations

from typing import Final

from shardd.protocol.liftbridge.records import RESERVED

_BEFORE_RESERVED: Final = "nats."


def user_headers(block: bytes) -> dict[str, bytes]:
    """Of a message that is stored. Values of a repeated name are lines of one value, which NATS allows no line breaks
    in; the names that readers of Liftbridge get from subjects stand behind `nats.`. A line without a name and a colon
    is no header."""
    found: dict[str, bytes] = {}
    for line in block.split(b"\r\n")[1:]:
        word, colon, value = line.partition(b":")
        name = word.strip().decode(errors="replace")
        if not colon or not name:
            continue
        name = _BEFORE_RESERVED + name if name in RESERVED else name
        value = value.strip()
        found[name] = found[name] + b"\n" + value if name in found else value
    return found
