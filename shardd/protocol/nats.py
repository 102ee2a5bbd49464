"""The side of a server of the protocol of NATS (docs/protocol/nats.md), sans-IO: lines of text, and payloads of a
length that their line tells.

    CONNECT {json}            PUB subject [reply] size            HPUB subject [reply] headers-size size
    PING  PONG                SUB subject [queue] sid             UNSUB sid [messages]

A server answers INFO, MSG, HMSG (to a client that takes headers), +OK (when `verbose` is asked for), -ERR, PING and
PONG."""

from __future__ import annotations

from typing import Final

import msgspec

CONTROL_LINE_BYTES_MAX: Final = 4 << 10
SUBJECT_BYTES_MAX: Final = 1_024
SUBJECT_TOKENS_MAX: Final = 16  # of a subscription with wildcards
SID_BYTES_MAX: Final = 64
QUEUE_BYTES_MAX: Final = 255
HEADERS_BYTES_MAX: Final = 64 << 10  # of one message: who stores it looks at each line
HEADERS_MAX: Final = 256  # lines of one message: each costs more than its bytes
PROTOCOL: Final = 1
VERSION: Final = "2.2.0"  # of nats-server: clients look there for what a server can do; this one has headers
_CRLF: Final = b"\r\n"
_DIGITS_MAX: Final = 9
OK: Final = b"+OK\r\n"
PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"


class NatsError(Exception):
    """What a client sent breaks the protocol: it gets this text with -ERR, and the connection ends."""


class Connect(msgspec.Struct, frozen=True):
    """What counts of CONNECT. Others of its fields are not read."""

    verbose: bool = False
    echo: bool = True
    headers: bool = False
    user: str = ""
    password: str = msgspec.field(name="pass", default="")
    auth_token: str = ""

    def __repr__(self) -> str:
        return f"Connect({self.user!r}, ***)"


class Pub(msgspec.Struct, frozen=True, gc=False):
    """PUB and HPUB. `headers`: as they came, with the line of their version; b"": none."""

    subject: str
    reply: str
    payload: bytes
    headers: bytes = b""


class Sub(msgspec.Struct, frozen=True, gc=False):
    subject: str
    queue: str
    sid: str


class Unsub(msgspec.Struct, frozen=True, gc=False):
    """`messages` 0: now."""

    sid: str
    messages: int


class Ping(msgspec.Struct, frozen=True):
    pass


class Pong(msgspec.Struct, frozen=True):
    pass


Request = Connect | Pub | Sub | Unsub | Ping | Pong
_PING: Final = Ping()
_PONG: Final = Pong()
_connect_decoder: Final = msgspec.json.Decoder(Connect, strict=False)


class Requests:
    """Bytes in, requests out. `payload_bytes_max`: of one message, headers with it."""

    def __init__(self, payload_bytes_max: int) -> None:
        self._payload_bytes_max = payload_bytes_max
        self._data = bytearray()
        self._begin = 0  # what stands before it was taken
        self._looked = 0  # up to here there is no end of a line
        self._pub: tuple[str, str, int, int] | None = None  # subject, reply, bytes of headers and of all

    @property
    def waiting_bytes(self) -> int:
        return len(self._data) - self._begin

    @property
    def is_inside_message(self) -> bool:
        """Whether the line of a message was taken, and its payload is not whole."""
        return self._pub is not None

    def feed(self, data: bytes | memoryview) -> None:
        if self._begin:
            del self._data[: self._begin]
            self._looked -= self._begin
            self._begin = 0
        self._data += data

    def clear(self) -> None:
        """Nothing of what has come is taken."""
        self._data, self._pub = bytearray(), None
        self._begin = self._looked = 0

    def take(self) -> Request | None:
        """The next one, None when it is not whole. NatsError."""
        if self._pub is not None:
            return self._payload()
        end = self._data.find(b"\n", max(self._looked, self._begin))
        if end < 0 or end - self._begin > CONTROL_LINE_BYTES_MAX:
            if end >= 0 or self.waiting_bytes > CONTROL_LINE_BYTES_MAX:
                raise NatsError("Maximum Control Line Exceeded")
            self._looked = len(self._data)
            return None
        line = bytes(self._data[self._begin : end])
        self._begin = self._looked = end + 1
        return self._line(line)

    def _line(self, line: bytes) -> Request | None:
        words = line.split(None, 1)
        operation, rest = words[0].upper() if words else b"", words[1] if len(words) > 1 else b""
        if operation == b"PUB" or operation == b"HPUB":
            self._pub = self._pub_of(rest.split(), with_headers=operation == b"HPUB")
            return self._payload()
        if operation == b"PING":
            return _PING
        if operation == b"PONG":
            return _PONG
        if operation == b"SUB":
            return _sub_of(rest.split())
        if operation == b"UNSUB":
            return _unsub_of(rest.split())
        if operation == b"CONNECT":
            try:
                return _connect_decoder.decode(rest)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise NatsError("Invalid CONNECT") from error
        raise NatsError("Unknown Protocol Operation")

    def _pub_of(self, words: list[bytes], *, with_headers: bool) -> tuple[str, str, int, int]:
        sizes = 2 if with_headers else 1
        if not 1 <= len(words) - sizes <= 2:
            raise NatsError("Parser Error")
        size = _number(words[-1])
        headers = _number(words[-2]) if with_headers else 0
        if size > self._payload_bytes_max:
            raise NatsError("Maximum Payload Violation")
        if headers > size:
            raise NatsError("Parser Error")
        if headers > HEADERS_BYTES_MAX:
            raise NatsError("Maximum Headers Violation")
        return _text(words[0]), _text(words[1]) if len(words) - sizes == 2 else "", headers, size

    def _payload(self) -> Pub | None:
        assert self._pub is not None
        subject, reply, headers, size = self._pub
        block, begin, end = self._begin, self._begin + headers, self._begin + size
        if len(self._data) < end + len(_CRLF):
            return None
        if self._data[end : end + len(_CRLF)] != _CRLF:
            raise NatsError("Parser Error")
        payload, said = bytes(self._data[begin:end]), bytes(self._data[block:begin])
        self._begin = self._looked = end + len(_CRLF)
        self._pub = None
        return Pub(subject, reply, payload, said)


def is_subscribable(subject: str) -> bool:
    """Whether a subject of a SUB is one, and finding it costs little."""
    tokens = subject.split(".")
    has_wildcard = not {"*", ">"}.isdisjoint(tokens)
    return all(tokens) and ">" not in tokens[:-1] and not (has_wildcard and len(tokens) > SUBJECT_TOKENS_MAX)


def encode_info(fields: dict[str, object]) -> bytes:
    return b"INFO " + msgspec.json.encode(fields) + _CRLF


def encode_msg(subject: str, sid: str, reply: str, payload: bytes, headers: bytes = b"") -> bytes:
    """`headers`: as they came; the client has said that it takes them."""
    to = f"{subject} {sid} {reply}" if reply else f"{subject} {sid}"
    if headers:
        line = f"HMSG {to} {len(headers)} {len(headers) + len(payload)}\r\n"
        return line.encode() + headers + payload + _CRLF
    return f"MSG {to} {len(payload)}\r\n".encode() + payload + _CRLF


def encode_error(text: str) -> bytes:
    return f"-ERR '{text}'\r\n".encode()


def _sub_of(words: list[bytes]) -> Sub:
    if not 2 <= len(words) <= 3:
        raise NatsError("Parser Error")
    queue = words[1] if len(words) == 3 else b""
    if len(words[-1]) > SID_BYTES_MAX or len(queue) > QUEUE_BYTES_MAX:
        raise NatsError("Parser Error")
    return Sub(_text(words[0]), _text(queue), _text(words[-1]))


def _unsub_of(words: list[bytes]) -> Unsub:
    if not 1 <= len(words) <= 2 or len(words[0]) > SID_BYTES_MAX:
        raise NatsError("Parser Error")
    return Unsub(_text(words[0]), _number(words[1]) if len(words) == 2 else 0)


def _number(word: bytes) -> int:
    if len(word) > _DIGITS_MAX or not word.isdigit():
        raise NatsError("Parser Error")
    return int(word)


def _text(word: bytes) -> str:
    if len(word) > SUBJECT_BYTES_MAX:
        raise NatsError("Invalid Subject")
    try:
        text = word.decode()
    except UnicodeDecodeError:
        raise NatsError("Invalid Subject") from None
    if not text.isprintable() and text:
        raise NatsError("Invalid Subject")
    return text
