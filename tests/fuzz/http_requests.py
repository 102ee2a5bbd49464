"""Requests made of the description of the HTTP API: right ones, wrong values, changed bytes, odd heads."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

# they end the login of the run, wait in the line of passwords, or never end
LEFT_OUT: Final = frozenset({"/users/logout", "/users/login", "/streams/{stream}/topics/{topic}/events"})
ACCOUNTS: Final = frozenset({"/users/{user}", "/users/{user}/password"})
DEAR: Final = frozenset({"/snapshot", "/users"})  # one of a hundred is asked
_DEAR_CHANCE: Final = 0.01
NAMES: Final = ("s", "t", "g", "s2", "t2", "0", "1", "c")
_ODD_NAMES: Final = (
    "", ".", "..", "id:0", "name:s", "\0", "\x1b[2J", "\r\nX: y", "ü", "\U0001f980", "a" * 255, "a" * 256, "4294967296",
    "-1", "NaN", "%", "a/b", "a?b", "\udcff",
)  # fmt: skip
_ACCOUNT_NAMES: Final = ("nobody", "zz", "", "\0", "a" * 300, "ü")
_NUMBERS: Final = (0, 1, 2, 3, -1, 255, 256, 65_536, 2**31, 2**32 - 1, 2**32, 2**53, 2**63, 2**64 - 1, 2**64, 10**30)
_ODD_VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    0.5,
    1e308,
    -0.0,
    "",
    "default",
    "x" * 300,
    [],
    {},
    [[]],
    [None],
    "AA==",
    "%%%",
)
_ODD_QUERIES: Final = (
    "",
    "0",
    "1",
    "-1",
    "true",
    "x",
    "%00",
    "4294967296",
    "9" * 5_000,
    "1e3",
    "%ff",
    "next",
    "offset",
)
ODD_HEADS: Final = (
    "Transfer-Encoding: chunked", "Content-Length: 3", "Content-Length: -1", "Content-Length: 99999999999999999999",
    "Expect: 100-continue", "Upgrade: h2c", "Connection: close", "Host: other", "Authorization: Bearer x",
    "Authorization: Basic aWdneTppZ2d5", "Content-Type: text/plain", "Content-Encoding: gzip", "Range: bytes=0-1",
    "Accept: text/event-stream", "Last-Event-ID: -1", "X-Forwarded-For: 1.2.3.4",
    "A" * 9_000 + ": b", "X: " + "y" * 70_000,
    "no colon", " leading: space", "Cookie: \x00",
)  # fmt: skip
_PIECES: Final = (
    b"\r\n",
    b"\n",
    b"\0",
    b"\xff",
    b" ",
    b"HTTP/1.1",
    b":",
    b"%",
    b"{",
    b'"',
    b"0\r\n\r\n",
    b"99999999999",
)


class Operation(NamedTuple):
    method: str
    path: str
    parameters: Sequence[str]
    queries: Sequence[tuple[str, Any]]
    body: Any
    """Schema, or None."""


class Request(NamedTuple):
    """`is_framed`: the server knows where it ends, so that another one may follow it."""

    data: bytes
    is_framed: bool


class HttpRequests:
    """`next` gives one; everything is drawn from one seeded generator."""

    def __init__(self, seed: str, description: dict[str, Any]) -> None:
        self._dice = random.Random(seed)
        self._schemas = description["components"]["schemas"]
        self.operations = [
            _operation(method, path, told)
            for path, methods in description["paths"].items()
            if path not in LEFT_OUT
            for method, told in methods.items()
        ]

    def next(self, token: str) -> Request:
        dice = self._dice
        operation = dice.choice(self.operations)
        while operation.path in DEAR and dice.random() > _DEAR_CHANCE:
            operation = dice.choice(self.operations)
        body = self._body(operation)
        heads = ["Host: localhost"]
        if dice.random() < 0.95:
            heads.append(f"Authorization: Bearer {token}")
        if body is not None:
            heads += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        is_framed = dice.random() < 0.9
        if not is_framed:
            heads.insert(dice.randrange(len(heads) + 1), dice.choice(ODD_HEADS))
        head = "\r\n".join((f"{operation.method} {self._target(operation)} HTTP/1.1", *heads, "", ""))
        data = head.encode("utf-8", "surrogateescape") + (body or b"")
        if not is_framed and dice.random() < 0.6:
            data = mutated(data, dice)
        return Request(data, is_framed)

    def _target(self, operation: Operation) -> str:
        path = operation.path
        for name in operation.parameters:
            path = path.replace(f"{{{name}}}", quote(self._name(operation), safe="", errors="surrogateescape"))
        asked = [
            f"{name}={quote(str(value), safe='%') if isinstance(value, str) else value}"
            for name, schema in operation.queries
            if self._dice.random() < 0.7
            for value in [self._query(schema)]
        ]
        return path + ("?" + "&".join(asked) if asked else "")

    def _name(self, operation: Operation) -> str:
        if operation.path in ACCOUNTS:
            return self._dice.choice(_ACCOUNT_NAMES)
        return self._dice.choice(NAMES if self._dice.random() < 0.8 else _ODD_NAMES)

    def _query(self, schema: Any) -> object:
        if self._dice.random() < 0.7:
            value = self._value(schema, 0)
            return value if isinstance(value, str | int) and not isinstance(value, bool) else str(value).lower()
        return self._dice.choice(_ODD_QUERIES)

    def _body(self, operation: Operation) -> bytes | None:
        if operation.body is None:
            return b"{}" if self._dice.random() < 0.02 else None
        value = self._value(operation.body, 0)
        text = json.dumps(value).encode()
        return mutated(text, self._dice) if self._dice.random() < 0.15 else text

    def _value(self, schema: Any, depth: int) -> Any:
        dice = self._dice
        if dice.random() < 0.05 or depth > 6:
            return dice.choice(_ODD_VALUES)
        if "$ref" in schema:
            return self._value(self._schemas[schema["$ref"].rpartition("/")[2]], depth)
        if "enum" in schema:
            return dice.choice(schema["enum"])
        if "anyOf" in schema:
            return self._value(dice.choice(schema["anyOf"]), depth + 1)
        match schema.get("type"):
            case "object":
                return self._object(schema, depth)
            case "array":
                return [self._value(schema.get("items", {}), depth + 1) for _ in range(dice.choice((0, 1, 1, 2, 3)))]
            case "integer" | "number":
                return dice.choice(_NUMBERS if dice.random() < 0.3 else _NUMBERS[:4])
            case "boolean":
                return dice.random() < 0.5
            case "null":
                return None
            case "string":
                return dice.choice(NAMES if dice.random() < 0.7 else (*_ODD_NAMES[:-1], "aGVsbG8=", "7d", "never"))
        return dice.choice(_ODD_VALUES)

    def _object(self, schema: Any, depth: int) -> dict[str, Any]:
        dice = self._dice
        made = {
            name: self._value(kind, depth + 1)
            for name, kind in schema.get("properties", {}).items()
            if dice.random() < (0.97 if name in schema.get("required", ()) else 0.5)
        }
        if isinstance(schema.get("additionalProperties"), dict):
            made |= {dice.choice(NAMES): self._value(schema["additionalProperties"], depth + 1) for _ in range(2)}
        if dice.random() < 0.05:
            made["unknown"] = dice.choice(_ODD_VALUES)
        return made


def _operation(method: str, path: str, told: dict[str, Any]) -> Operation:
    parameters = told.get("parameters", ())
    content = told.get("requestBody", {}).get("content", {})
    return Operation(
        method.upper(),
        path,
        [each["name"] for each in parameters if each["in"] == "path"],
        [(each["name"], each["schema"]) for each in parameters if each["in"] == "query"],
        content.get("application/json", {}).get("schema"),
    )


def mutated(data: bytes, dice: random.Random) -> bytes:
    """One to three changes of bytes."""
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 3))):
        at = dice.randrange(len(changed) + 1)
        kind = dice.randrange(4)
        if kind == 0 and at < len(changed):
            changed[at] = dice.randrange(256)
        elif kind == 1:
            changed[at:at] = dice.choice(_PIECES)
        elif kind == 2:
            del changed[at : at + dice.randrange(1, 20)]
        else:
            changed[at:at] = dice.randbytes(dice.randrange(1, 12))
    return bytes(changed)
