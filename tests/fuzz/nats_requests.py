"""Requests of NATS clients: right ones, odd values, changed bytes, and what a server has to answer to them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from shardd.protocol.nats import Connect, NatsError, Ping, Pong, Request, Requests, Sub, is_subscribable
from tests.fuzz.nats import ENVELOPES, mutated

PAYLOAD_BYTES_MAX: Final = 64 << 10
SUBJECTS: Final = ("s", "s", "s.1", "wild.a.x", "wild.b.c", "_INBOX.acks", "acks.1", "nothing.here")
_ODD_SUBJECTS: Final = (
    "*", ">", "wild.*.x", "wild.>", ".", "..", "a.", ".a", "a..b", ">.a", "a.>.b", "*.*", "$SYS.>", "__cursors",
    "\u00fc", "\U0001f980", "x" * 1_024, "x" * 1_025, "a." * 30 + "b", "*." * 16 + "x", "\x7f", "\x1b[2J",
)  # fmt: skip
_SIDS: Final = ("1", "2", "3", "17", "x" * 64, "-1", "0", "\u00fc")
_ODD_SIDS: Final = ("x" * 65, "\x7f")
_QUEUES: Final = ("", "", "", "g", "q" * 255)
_ODD_QUEUES: Final = ("q" * 256, "\x7f")
_COUNTS: Final = ("", "", "0", "1", "2", "5", "999999999")
_ODD_COUNTS: Final = ("9999999999", "-1", "1e3", "\u0661")
_SIZES: Final = (0, 1, 5, 40, 300)
_ODD_SIZES: Final = ("-1", "00005", "5.0", "65537", "99999999999", "", "x", "\u0665")
_HEADERS: Final = (
    b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nk: v\r\n\r\n", b"NATS/1.0 503\r\n\r\n", b"NATS/1.0\r\nk:\r\nk: 2\r\n\r\n", b"",
    b"x", b"NATS/1.0\r\n" + b"h: v\r\n" * 300 + b"\r\n", b"NATS/1.0\r\n: \r\n\0: \xff\r\n\r\n",
    b"NATS/1.0\r\nNats-Expected-Last-Sequence: 5\r\n\r\n",
)  # fmt: skip
_ODD_LINES: Final = (
    b"\r\n", b"PUB\r\n", b"SUB a\r\n", b"INFO {}\r\n", b"MSG a 1 0\r\n\r\n", b"+OK\r\n", b"-ERR 'x'\r\n", b"PING x\r\n",
    b"CONNECT\r\n", b"CONNECT []\r\n", b"CONNECT {}\r\n", b"PUB s 5\r\nhell\r\n", b"x" * 5_000, b"PING" + b" " * 4_093,
    b"CONNECT " + b"[" * 4_000 + b"\r\n",
)  # fmt: skip
_ODD_CHANCE: Final = 0.02
_CHANGED_CHANCE: Final = 0.15
WRONG_CHANCE: Final = 0.001  # of a connection: it waits in the line of its address
_WRONG: Final[tuple[dict[str, object], ...]] = (
    {"auth_token": "x"}, {"user": "iggy", "pass": "wrong"}, {"user": "\x1b[2J", "pass": ""}, {"pass": "y" * 300},
)  # fmt: skip
_AUTHORIZATION: Final = b"-ERR 'Authorization Violation'"
_TWICE: Final = b"-ERR 'Unknown Protocol Operation'"
_INVALID_SUBJECT: Final = b"-ERR 'Invalid Subject'"
_OK: Final = b"+OK"
_PONG: Final = b"PONG"


def connect_line(**fields: object) -> bytes:
    return b"CONNECT " + msgspec.json.encode(fields) + b"\r\n"


class NatsRequests:
    """`next` gives one input; everything is drawn from one seeded generator."""

    def __init__(self, seed: str) -> None:
        self.dice = random.Random(seed)

    def next(self) -> bytes:
        dice = self.dice
        if dice.random() < _ODD_CHANCE:
            return dice.choice(_ODD_LINES)
        data = self._right()
        return mutated(data, dice) if dice.random() < _CHANGED_CHANCE else data

    def first(self, tokens: Sequence[str]) -> list[bytes]:
        """What a connection begins with: mostly a login, sometimes a changed one, or none."""
        dice = self.dice
        fields: dict[str, object] = {name: dice.random() < 0.5 for name in ("verbose", "echo", "headers")}
        draw = dice.random()
        if draw < 0.05:
            return []
        if draw < 0.1:
            return [mutated(connect_line(lang="go", **fields), dice)]
        if draw < 0.1 + WRONG_CHANCE:
            return [connect_line(**dice.choice(_WRONG), **fields)]
        token = dice.choice((*tokens, ""))
        return [connect_line(auth_token=token, **fields) if token else connect_line(**fields)]

    def _right(self) -> bytes:
        dice = self.dice
        draw = dice.random()
        if draw < 0.6:
            return self._message()
        if draw < 0.8:
            queue, sid = self._one(_QUEUES, _ODD_QUEUES), self._one(_SIDS, _ODD_SIDS)
            return f"SUB {self._subject(0.2)}{' ' if queue else ''}{queue} {sid}\r\n".encode()
        if draw < 0.9:
            return f"UNSUB {self._one(_SIDS, _ODD_SIDS)} {self._one(_COUNTS, _ODD_COUNTS)}\r\n".encode()
        return dice.choice((b"PING\r\n", b"ping\n", b"PONG\r\n", b"PONG\n"))

    def _message(self) -> bytes:
        dice = self.dice
        payload = dice.randbytes(dice.choice(_SIZES))
        if dice.random() < 0.5:
            payload = dice.choice(ENVELOPES)
            payload = mutated(payload, dice) if dice.random() < 0.7 else payload
        subject, reply = self._subject(0.03), dice.choice(("", "", "_INBOX.acks ", "back.here ", "* "))
        headers = dice.choice(_HEADERS) if dice.random() < 0.3 else b""
        size = str(len(headers) + len(payload)) if dice.random() < 0.98 else dice.choice(_ODD_SIZES)
        if not headers:
            return f"PUB {subject} {reply}{size}\r\n".encode() + payload + b"\r\n"
        return f"HPUB {subject} {reply}{len(headers)} {size}\r\n".encode() + headers + payload + b"\r\n"

    def _one(self, right: Sequence[str], odd: Sequence[str]) -> str:
        return self.dice.choice(right if self.dice.random() > _ODD_CHANCE else odd)

    def _subject(self, odd_chance: float) -> str:
        return self.dice.choice(_ODD_SUBJECTS if self.dice.random() < odd_chance else SUBJECTS)


class Expected(NamedTuple):
    """`answers`: in their order, without messages; `taken`: inputs that the server looks at; `error`: with which it
    ends the connection, b"" when it does not; `is_whole`: nothing waits for further bytes."""

    answers: list[bytes]
    taken: int
    error: bytes
    is_whole: bool


class Conversation:
    """What a server answers on one connection: the parser, which `make fuzz-liftbridge` judges by itself, says where
    requests end. `tokens`: those that are right."""

    def __init__(self, tokens: frozenset[str]) -> None:
        self._tokens = tokens
        self._requests = Requests(PAYLOAD_BYTES_MAX)
        self._answers: list[bytes] = []
        self._is_known = self._is_verbose = False

    def take(self, inputs: list[bytes]) -> Expected:
        self._answers, taken, error = [], 0, b""
        for data in inputs:
            taken += 1
            error = self._take(data)
            if error:
                break
        requests = self._requests
        return Expected(self._answers, taken, error, not requests.waiting_bytes and not requests.is_inside_message)

    def _take(self, data: bytes) -> bytes:
        """The error that ends it, or b""."""
        try:
            self._requests.feed(data)
            while (request := self._requests.take()) is not None:
                error = self._connect(request) if isinstance(request, Connect) else self._follow(request)
                if error:
                    return error
        except NatsError as refused:
            return f"-ERR '{refused}'".encode()
        return b""

    def _connect(self, said: Connect) -> bytes:
        if self._is_known:
            return _TWICE
        if said.auth_token not in self._tokens if said.auth_token else said.user or said.password:
            return _AUTHORIZATION
        self._is_known, self._is_verbose = True, said.verbose
        self._answers += [_OK] if said.verbose else []
        return b""

    def _follow(self, request: Request) -> bytes:
        if isinstance(request, Ping | Pong):
            self._answers += [_PONG] if isinstance(request, Ping) else []
            return b""
        if not self._is_known:
            return _AUTHORIZATION
        if isinstance(request, Sub) and not is_subscribable(request.subject):
            self._answers.append(_INVALID_SUBJECT)
        self._answers += [_OK] if self._is_verbose else []
        return b""
