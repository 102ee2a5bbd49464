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
_JSON_FIELDS: Final = {"partition", "offset", "timestamp_us", "headers", "payload", "payload_base64"}
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


def unescaped(text: str) -> bytes:
    r"""With \\t and the like, and \\xNN. CommandError for another escape."""

    def replaced(found: re.Match[str]) -> str:
        name = found[1]
        if name.startswith("x"):
            return chr(int(name[1:], 16))
        if name not in _ESCAPES:
            raise CommandError(f"{text!r} has no meaning: write \\\\ for a backslash", EXIT_USAGE)
        return _ESCAPES[name].decode()

    return re.sub(r"\\(x[0-7][0-9A-Fa-f]|.|$)", replaced, text, flags=re.DOTALL).encode()


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
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict) or ("payload" in facts) == ("payload_base64" in facts):
        raise CommandError(f"line {number} is not a JSON object with a payload or a payload_base64", EXIT_USAGE)
    if others := facts.keys() - _JSON_FIELDS:
        raise CommandError(f"line {number} has a field {min(others)!r}, which cannot be stored", EXIT_USAGE)
    partition = facts.get("partition")
    if partition is not None and type(partition) is not int:
        raise CommandError(f"line {number}: the partition {partition!r} is not a number", EXIT_USAGE)
    if "payload_base64" in facts:
        return from_base64(facts["payload_base64"], number), partition, _headers_from(facts, number)
    try:
        return facts["payload"].encode(), partition, _headers_from(facts, number)
    except (AttributeError, UnicodeEncodeError):
        raise CommandError(f"line {number}: the payload is not a text", EXIT_USAGE) from None


def _headers_from(facts: dict[str, Any], number: int) -> dict[str, Header]:
    headers = facts.get("headers", {})
    if not isinstance(headers, dict):
        raise CommandError(f"line {number}: the headers are not an object", EXIT_USAGE)
    found: dict[str, Header] = {}
    for key, value in headers.items():
        if isinstance(value, dict) and value.keys() == {"base64"}:
            found[key] = from_base64(value["base64"], number)
        elif isinstance(value, str | bool | int | float):
            found[key] = value
        else:
            sentence = f'line {number}: header {key!r} is not a text, a number, true, false or {{"base64": ...}}'
            raise CommandError(sentence, EXIT_USAGE)
    return found


def from_base64(text: object, number: int) -> bytes:
    """Of one alphabet, the standard one or that of URLs, with its padding. CommandError, which names the line."""
    if isinstance(text, str):
        try:
            urls = "-" in text or "_" in text
            if not (urls and ("+" in text or "/" in text)):
                return base64.b64decode(text, b"-_" if urls else None, validate=True)
        except ValueError:
            pass
    shown = repr(text)[:40]
    raise CommandError(f"line {number}: {shown} is not base64 of one alphabet, with padding", EXIT_USAGE)
