"""gRPC of Liftbridge: attackers write HTTP/2 by hand, those who behave use the library."""

from __future__ import annotations

import base64
import socket
import struct
from typing import Final

from shardd.protocol.liftbridge import api_messages
from tests.doors.liftbridge_server import LiftbridgeClient
from tests.doors.liftbridge_wire import SETTINGS_TAKEN, frame, opened, request_frames
from tests.hostile.matrix import door
from tests.hostile.matrix.lines import READER, RIGHTLESS, STRANGER
from tests.hostile.matrix.target import BIG, OTHER, Target

_WIDE: Final = struct.pack(">HI", 4, 1 << 30)  # the window of each call, and of all of them
OPENING: Final = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + frame(4, 0, 0, _WIDE)
    + SETTINGS_TAKEN
    + frame(8, 0, 0, bytes.fromhex("40000000"))
)
_NAMES: Final = 2_000
_TINY_FRAMES: Final = 2_000
_METADATA: Final = "/proto.API/FetchMetadata"
_DATA: Final = 0


def _shown(scheme: str, value: str) -> list[tuple[str, str]]:
    return [("authorization", f"{scheme} {value}")]


def _encoded(kind: str, **fields: object) -> bytes:
    return bytes(api_messages.message_class(kind)(**fields).SerializeToString())


class _Client:
    def __init__(self, target: Target) -> None:
        shown = _shown("Bearer", target.tokens[OTHER])
        self._peer = LiftbridgeClient(target.addresses["grpc"], shown)

    def ask(self) -> None:
        self._peer.call("FetchMetadata", streams=[BIG])

    def close(self) -> None:
        self._peer.channel.close()


class Grpc:
    kernel_bytes_max = 256 << 10

    def enter(self, target: Target, role: str, *, deaf: bool) -> door.Entered:
        made = door.connected(target.addresses["grpc"], deaf=deaf)
        made.sendall(OPENING)
        return door.Entered(made, _means(target, role))

    def knock(self, target: Target) -> tuple[socket.socket, bytes]:
        return door.connected(target.addresses["grpc"]), OPENING[:30]

    def client(self, target: Target) -> door.Client:
        return _Client(target)


def _means(target: Target, role: str) -> door.Means:
    metadata = [] if role == STRANGER else _shown("Bearer", target.tokens[role])
    asked = _encoded("FetchMetadataRequest", streams=[BIG])
    wide = _encoded("FetchMetadataRequest", streams=["n" * 200 if role == RIGHTLESS else BIG] * _NAMES)
    follow = _encoded("SubscribeRequest", stream=BIG, startPosition=2)
    basic = _shown("Basic", base64.b64encode(f"{OTHER}:wrong".encode()).decode())

    def call(number: int, path: str, request: bytes, shown: list[tuple[str, str]]) -> bytes:
        stream = 2 * number + 1
        return opened(path, stream, shown) + request_frames(stream, request)

    def large(number: int) -> bytes:
        if role == READER:
            return call(number, "/proto.API/Subscribe", follow, metadata)
        return call(number, _METADATA, wide, metadata)

    def half(number: int) -> bytes:
        """A frame that is never whole."""
        stream = 2 * number + 1
        return opened(_METADATA, stream, metadata) + frame(_DATA, 0, stream, bytes(16_000))[:1_000]

    def small(number: int) -> bytes:
        stream = 2 * number + 1
        body = b"\x00" + struct.pack(">I", _TINY_FRAMES) + b"\n" * _TINY_FRAMES
        pieces = (frame(_DATA, 0, stream, body[at : at + 1]) for at in range(len(body)))
        return opened(_METADATA, stream, metadata) + b"".join(pieces)

    return door.Means(
        lambda number: call(number, _METADATA, asked, metadata), large, half, small,
        lambda number: call(number, _METADATA, asked, basic), 1 << 16,
    )  # fmt: skip
