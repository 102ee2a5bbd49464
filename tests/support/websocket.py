"""A small client of WebSocket (RFC 6455) for tests, which can also send what no client should."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import ssl
import struct
from typing import Final, Self

from shardd.client.closing import Closing
from tests.support import wire

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def request(key: str = "dGhlIHNhbXBsZSBub25jZQ==", *lines: str, first: str = "GET / HTTP/1.1") -> bytes:
    """An upgrade request with further header lines."""
    head = [first, "Host: localhost", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
    return "\r\n".join([*head, f"Sec-WebSocket-Key: {key}", *lines, "", ""]).encode()


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    final: bool = True,
    mask: bytes | None = b"\x11\x22\x33\x44",
    reserved: int = 0,
) -> bytes:
    """One frame; `mask` None: without."""
    first, flag = (0x80 if final else 0) | reserved << 4 | opcode, 0 if mask is None else 0x80
    if len(payload) < 126:
        head = bytes([first, flag | len(payload)])
    elif len(payload) < 65536:
        head = bytes([first, flag | 126]) + struct.pack(">H", len(payload))
    else:
        head = bytes([first, flag | 127]) + struct.pack(">Q", len(payload))
    return head + payload if mask is None else head + mask + masked(payload, mask)


def masked(payload: bytes, mask: bytes) -> bytes:
    key = int.from_bytes((mask * (len(payload) // 4 + 1))[: len(payload)], "little")
    return (int.from_bytes(payload, "little") ^ key).to_bytes(len(payload), "little")


def close_frame(code: int | None = 1000, reason: bytes = b"") -> bytes:
    return frame(CLOSE, b"" if code is None else struct.pack(">H", code) + reason)


class WebSocket(Closing):
    """One connection, upgraded unless `upgrade` is False; over TLS with `context`."""

    def __init__(
        self,
        address: str,
        *,
        upgrade: bool = True,
        timeout_s: float = 60.0,
        lines: tuple[str, ...] = (),
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.socket = socket.create_connection(wire.host_and_port(address), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            try:
                self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
            except OSError:
                self.socket.close()
                raise
        self._unread = b""
        if upgrade:
            self.upgrade(*lines)

    @classmethod
    def over(cls, connection: socket.socket) -> Self:
        """On a connection that is there already."""
        made = cls.__new__(cls)
        made.socket, made._unread = connection, b""
        made.upgrade()
        return made

    def close(self) -> None:
        self.socket.close()

    def upgrade(self, *lines: str) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(request(key, *lines))
        status, headers = self.http()
        accept = base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()
        assert status == 101 and headers["sec-websocket-accept"] == accept, (status, headers)
        assert headers["upgrade"] == "websocket" and headers["connection"] == "Upgrade"

    def http(self) -> tuple[int, dict[str, str]]:
        """Status and headers of an answer in HTTP; names in lower case."""
        while b"\r\n\r\n" not in self._unread:
            self._more()
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        return int(first.split()[1]), {
            name.lower(): value for name, _, value in (each.partition(": ") for each in rest)
        }

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def receive(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame, which must be as a server's are. ConnectionError at the end."""
        first, length = self._take(2)
        assert first & 0xF0 == 0x80, "whole, and no reserved bits"
        assert length < 128, "servers do not mask"
        if length == 126:
            (length,) = struct.unpack(">H", self._take(2))
            assert length > 125
        elif length == 127:
            (length,) = struct.unpack(">Q", self._take(8))
            assert length > 65535
        return first & 15, self._take(length)

    def answer(self) -> tuple[int, bytes]:
        """Status and payload of the next answer of the classic protocol, in however many messages it comes."""
        data, size = b"", 8
        while len(data) < size:
            opcode, payload = self.receive()
            assert opcode == BINARY, (opcode, payload)
            data += payload
            size = 8 + (struct.unpack_from("<I", data, 4)[0] if len(data) >= 8 else 0)
        assert len(data) == size, "more than one answer"
        return int(struct.unpack_from("<I", data)[0]), data[8:]

    def request(self, code: int, payload: bytes = b"") -> tuple[int, bytes]:
        """One request of the classic protocol in one message."""
        self.send(frame(BINARY, classic(code, payload)))
        return self.answer()

    def login(self) -> None:
        status, _ = self.request(wire.LOGIN_USER, wire.str8("iggy") + wire.str8("iggy") + bytes(8))
        assert status == 0

    def closed_with(self) -> int | None:
        """Code of the CLOSE that the server says next, behind which nothing comes; None: without a code."""
        opcode, payload = self.receive()
        assert opcode == CLOSE, (opcode, payload)
        assert self.socket.recv(1) == b""
        return struct.unpack(">H", payload[:2])[0] if payload else None

    def unread(self, more: bytes) -> None:
        """What somebody else has read of the socket."""
        self._unread += more

    def _take(self, size: int) -> bytes:
        while len(self._unread) < size:
            self._more()
        taken, self._unread = self._unread[:size], self._unread[size:]
        return taken

    def _more(self) -> None:
        more = self.socket.recv(1 << 20)
        if not more:
            raise ConnectionError("the server closed the connection")
        self._unread += more


def classic(code: int, payload: bytes = b"") -> bytes:
    return struct.pack("<II", len(payload) + 4, code) + payload
