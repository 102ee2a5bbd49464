"""The classic protocol in messages of WebSocket, plain and over TLS."""

from __future__ import annotations

import socket
import struct
from typing import Final

from tests.hostile.matrix import classic, door
from tests.hostile.matrix.https import trusting_anything
from tests.hostile.matrix.lines import READER, STRANGER
from tests.hostile.matrix.target import OTHER, SMALL, STREAM, Target
from tests.support import websocket, wire

_MANY: Final = 500


def _message(data: bytes) -> bytes:
    return websocket.frame(websocket.BINARY, data)


def _in_frames_of_one(data: bytes) -> bytes:
    """One message whose frames have a byte each."""
    last = len(data) - 1
    return b"".join(
        websocket.frame(websocket.CONTINUATION if at else websocket.BINARY, data[at : at + 1], final=at == last)
        for at in range(len(data))
    )


def _until(peer: socket.socket, end: bytes) -> bytes:
    """OSError when it closes before."""
    heard = b""
    while end not in heard:
        more = peer.recv(4096)
        if not more:
            raise ConnectionError("closed before it has answered")
        heard += more
    return heard


class _Client:
    def __init__(self, made: websocket.WebSocket, target: Target) -> None:
        self._peer = made
        status, _ = made.request(wire.LOGIN_WITH_TOKEN, wire.str8(target.tokens[OTHER]))
        assert status == 0, status

    def ask(self) -> None:
        place = wire.consumer() + wire.identifier(STREAM) + wire.identifier(SMALL) + wire.optional_partition(0)
        status, _ = self._peer.request(wire.POLL_MESSAGES, place + struct.pack("<BQIB", wire.POLL_LAST, 0, 1, 0))
        assert status == 0, status

    def close(self) -> None:
        self._peer.close()


class WebSocketDoor:
    """`name`: websocket or wss."""

    kernel_bytes_max = 4_224 << 10  # the largest send buffer, and a segment: small answers cost far more than 1 MiB

    def __init__(self, name: str) -> None:
        self._name = name

    def enter(self, target: Target, role: str, *, deaf: bool) -> door.Entered:
        made = door.connected(target.addresses[self._name], deaf=deaf)
        if self._name == "wss":
            made = door.secured(made)
        made.sendall(websocket.request())
        _until(made, b"\r\n\r\n")
        if role != STRANGER:
            made.sendall(_message(wire.frame(wire.LOGIN_WITH_TOKEN, wire.str8(target.tokens[role]))))
            opcode, length = wire.exactly(made, 2)
            status = struct.unpack_from("<I", wire.exactly(made, length))[0]
            if opcode & 15 != websocket.BINARY or status != 0:
                made.close()
                raise ConnectionError(f"a login is answered with {status}")
        request, large, half, wrong = classic.frames_of(role)
        many = _message(large) if role == READER else _message(large) * _MANY
        begun = _message(wire.frame(wire.LOGIN_USER, bytes(4_000)) if role == STRANGER else half)[:-1_000]
        pieces = _in_frames_of_one(request)
        asked, refused = _message(request), _message(wrong)
        return door.Entered(
            made,
            door.Means(
                lambda _: asked, lambda _: many, lambda _: begun, lambda _: pieces * 100, lambda _: refused, 1 << 16
            ),
        )

    def knock(self, target: Target) -> tuple[socket.socket, bytes]:
        made = door.connected(target.addresses[self._name])
        return made, door.hello() if self._name == "wss" else websocket.request()

    def client(self, target: Target) -> door.Client:
        context = trusting_anything() if self._name == "wss" else None
        return _Client(websocket.WebSocket(target.addresses[self._name], context=context), target)
