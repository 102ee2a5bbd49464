"""gRPC by hand: calls of several addresses, calls whose request never comes, answers that are not read."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")  # and empty settings
SETTINGS_TAKEN: Final = bytes.fromhex("000000040100000000")  # without it a connection ends after three seconds
_FRAME_BYTES: Final = 16_384
_DATA, _HEADERS = 0, 1
_END_STREAM, _END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def opened(path: str, stream: int, metadata: Sequence[tuple[str, str]] = ()) -> bytes:
    """A call; its request comes later, or never. Literal headers, no table."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"), ("te", "trailers"),
              ("content-type", "application/grpc"), *metadata]  # fmt: skip
    block = b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode() for name, value in fields
    )
    return frame(_HEADERS, _END_HEADERS, stream, block)


def request_frames(stream: int, request: bytes, *, ends: bool = True) -> bytes:
    """One request; `ends`: nothing comes behind it."""
    data = b"\x00" + struct.pack(">I", len(request)) + request
    pieces = [data[at : at + _FRAME_BYTES] for at in range(0, len(data), _FRAME_BYTES)]
    last, ending = len(pieces) - 1, _END_STREAM if ends else 0
    return b"".join(frame(_DATA, ending if number == last else 0, stream, piece) for number, piece in enumerate(pieces))


def await_ping(connection: socket.socket) -> None:
    """Until the server has taken all that was sent before. ConnectionError: it has closed the connection."""
    connection.sendall(frame(6, 0, 0, b"together"))
    heard = b""
    while b"\x06\x01" + bytes(4) + b"together" not in heard:
        data = connection.recv(65_536)
        if not data:
            raise ConnectionError("closed")
        heard += data
