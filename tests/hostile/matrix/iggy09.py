"""The framing of 0.9, at the port of TCP: a session is registered, then requests name it."""

from __future__ import annotations

import socket
import struct
from typing import Final

from shardd.protocol import iggy09
from tests.hostile.matrix import classic, door
from tests.hostile.matrix.lines import READER, STRANGER
from tests.hostile.matrix.target import OTHER, SMALL, STREAM, Target
from tests.support import wire
from tests.support.iggy09 import head
from tests.support.wire09 import Wire09

_MANY: Final = 200


def _registration(who: bytes) -> bytes:
    body = struct.pack("<I", iggy09.VERSION) + wire.str8("rust-sdk") + wire.str8("0.11.0") + who + bytes(4)
    return head(256 + len(body), iggy09.REGISTER) + body


class _Session(Wire09):
    """Made of a socket that somebody else has connected."""

    def __init__(self, made: socket.socket, token: str) -> None:
        super().__init__(f"{made.getpeername()[0]}:{made.getpeername()[1]}")
        self.socket.close()
        self.socket = made
        self.login_with_token(token)

    def framed(self, code: int, payload: bytes = b"") -> bytes:
        return head(256 + len(payload), iggy09.NON_REPLICATED, code, self._next, self._session, client=self._client) + (
            payload
        )

    def numbered(self, operation: int, number: int, payload: bytes) -> bytes:
        return head(256 + len(payload), operation, 0, number + 1, self._session, client=self._client) + payload


class _Client:
    def __init__(self, target: Target) -> None:
        self._wire = Wire09(target.addresses["iggy09"])
        self._wire.login_with_token(target.tokens[OTHER])

    def ask(self) -> None:
        self._wire.poll(STREAM, SMALL, 0, strategy=wire.POLL_LAST, count=1)

    def close(self) -> None:
        self._wire.close()


class Iggy09:
    kernel_bytes_max = 3 << 20

    def enter(self, target: Target, role: str, *, deaf: bool) -> door.Entered:
        made = door.connected(target.addresses["iggy09"], deaf=deaf)
        wrong = _registration(wire.str8(OTHER) + wire.str8("wrong"))
        if role == STRANGER:
            request = head(256, iggy09.NON_REPLICATED, wire.PING)
            half = head(256 + 4_000, iggy09.REGISTER) + bytes(2_000)
            large = request * _MANY
            return door.Entered(made, _means(request, large, half, wrong))
        try:
            session = _Session(made, target.tokens[role])
        except wire.StatusError as refused:
            made.close()
            raise ConnectionError(str(refused)) from refused
        request = session.framed(wire.GET_STREAMS)
        large = session.framed(wire.POLL_MESSAGES, classic.poll_payload()) if role == READER else request * _MANY
        half = session.framed(wire.POLL_MESSAGES, bytes(4_000))[:2_000]
        change = iggy09_operation(classic.CHANGE_PASSWORD)
        payload = classic.change_payload(role)
        return door.Entered(
            made,
            door.Means(
                lambda _: request, lambda _: large, lambda _: half, lambda _: request,
                lambda number: session.numbered(change, number, payload),
            ),
        )  # fmt: skip

    def knock(self, target: Target) -> tuple[socket.socket, bytes]:
        raise AssertionError("its handshake is that of TCP")

    def client(self, target: Target) -> door.Client:
        return _Client(target)


def iggy09_operation(code: int) -> int:
    return next(operation for operation, found in iggy09.OPERATIONS.items() if found == code)


def _means(request: bytes, large: bytes, half: bytes, wrong: bytes) -> door.Means:
    return door.Means(lambda _: request, lambda _: large, lambda _: half, lambda _: request, lambda _: wrong)
