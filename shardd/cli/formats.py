"""How messages are written as text and read back: format strings, and a JSON object a line."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from shardd.cli.remote import EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from shardd.client.messages import Header, Message

KEY: Final = "key"
"""Messages have no key of their own: the header of this name has it, when one was given."""
_PIECE: Final = re.compile(r"%(.)|\\(.)|([^%\\]+|[%\\]$)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
Writer = Callable[["Message"], bytes]


def key_of(message: Message) -> bytes:
    """Empty: it has none."""
    from shardd.client.messages import headers_of

    value = headers_of(message.headers).get(KEY, b"") if message.headers else b""
    return value if isinstance(value, bytes) else str(value).encode()


def _headers(message: Message) -> bytes:
    return json.dumps(_plain_headers(message), ensure_ascii=False).encode()


def _time(message: Message) -> bytes:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(message.timestamp_us / 1e6, UTC).isoformat(timespec="milliseconds").encode()


_FIELDS: Final[dict[str, Callable[[Message], bytes]]] = {
    "p": lambda message: b"%d" % message.partition,
    "o": lambda message: b"%d" % message.offset,
    "T": lambda message: b"%d" % message.timestamp_us,
    "d": _time,
    "k": key_of,
    "v": lambda message: message.payload,
    "s": lambda message: message.payload,
    "S": lambda message: b"%d" % len(message.payload),
    "h": _headers,
    "i": lambda message: b"%d" % message.id,
}


def writer(text: str, topic: str) -> Writer:
    """Of a format: %t topic, %p partition, %o offset, %T time in us, %d date, %k key, %v payload, %S its size, %h
    headers, %i id, %%. CommandError."""
    parts: list[Callable[[Message], bytes]] = []
    for field, escape, plain in _PIECE.findall(text):
        if field in _FIELDS:
            parts.append(_FIELDS[field])
        elif escape in _ESCAPES and escape:
            parts.append(_always(_ESCAPES[escape]))
        elif field in ("%", "t") or plain not in ("", "%", "\\"):
            parts.append(_always({"%": b"%", "t": topic.encode()}.get(field, plain.encode())))
        else:
            wrong = f"%{field}" if field else f"\\{escape}" if escape else plain
            raise CommandError(f"a format has no {wrong!r}; `shardd consume --help` says which there are", EXIT_USAGE)
    return lambda message: b"".join([part(message) for part in parts])


def _always(data: bytes) -> Callable[[Message], bytes]:
    return lambda _message: data


def _text_or_base64(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _plain_headers(message: Message) -> dict[str, Any]:
    from shardd.client.messages import headers_of

    found: dict[str, Any] = {}
    for key, value in headers_of(message.headers).items():
        if isinstance(value, bytes):
            found[key] = {"base64": base64.b64encode(value).decode()}
        else:
            found[key] = value
    return found


def json_line(message: Message) -> bytes:
    """`from_json` reads it."""
    facts: dict[str, Any] = {
        "partition": message.partition,
        "offset": message.offset,
        "timestamp_us": message.timestamp_us,
    }
    if message.headers:
        facts["headers"] = _plain_headers(message)
    facts |= _text_or_base64("payload", message.payload)
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def from_json(line: bytes, number: int) -> tuple[bytes, int | None, dict[str, Header]]:
    """Payload, partition and headers. CommandError, which names the line."""
    try:
        facts = json.loads(line)
        payload = base64.b64decode(facts["payload_base64"]) if "payload_base64" in facts else facts["payload"].encode()
        headers = {
            key: base64.b64decode(value["base64"]) if isinstance(value, dict) else value
            for key, value in facts.get("headers", {}).items()
        }
        partition = facts.get("partition")
        if partition is not None and not isinstance(partition, int):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CommandError(f"line {number} is no JSON object with a payload", EXIT_USAGE) from None
    return payload, partition, headers
