"""Connections of the load engine: a socket, or one with TLS, WebSocket or both on it (native/load/channel.h)."""

from __future__ import annotations

import os
import socket
import struct
from typing import Final, Protocol, TypeVar

from shardd.benchmark import _load
from shardd.benchmark.options import BenchError, Options
from shardd.client import wire
from shardd.client.admin import SyncAdministration
from shardd.client.commands import Command
from shardd.client.errors import ConnectionLostError, of_status
from shardd.client.transport import connect
from shardd.protocol import iggy09

CONNECT_TIMEOUT_S: Final = 10.0
_HEAD_09: Final = 256
_REQUEST_09: Final = 5
_REPLY_09: Final = 8
_JOIN_09: Final = 148
T = TypeVar("T")


class Connection(Protocol):
    """What sockets and channels have."""

    def fileno(self) -> int: ...
    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...
    def setblocking(self, flag: bool, /) -> None: ...
    def close(self) -> None: ...


class Channel:
    """`capsule`: what the engine takes."""

    def __init__(self, made: socket.socket, options: Options) -> None:
        self._socket = made
        self._left = b""
        made.settimeout(None)  # the kernel keeps the time: OpenSSL has the socket to itself
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            made.setsockopt(socket.SOL_SOCKET, option, int(CONNECT_TIMEOUT_S).to_bytes(8, "little") + bytes(8))
        host = options.server_address.rpartition(":")[0].strip("[]")
        tls = options.tls
        self.capsule = _load.open_channel(
            made.fileno(),
            tls is not None,
            options.websocket,
            tls is not None and tls.verify,
            (tls.domain if tls else "") or host,
            tls.ca_file if tls else "",
            tls.certificate_file if tls else "",
            tls.key_file if tls else "",
        )

    def fileno(self) -> int:
        return self._socket.fileno()

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[_load.send_channel(self.capsule, bytes(view)) :]

    def recv(self, size: int) -> bytes:
        data = self._left or _load.receive_channel(self.capsule)
        self._left = data[size:]
        return data[:size]

    def setblocking(self, flag: bool) -> None:
        if self._left:
            raise BenchError("the server sent more than the answers")
        self._socket.setblocking(flag)

    def close(self) -> None:
        self._socket.close()


def reach(options: Options) -> Connection:
    """Connected, by the way that the options name. BenchError, OSError, ClientError."""
    made = connect(options.settings(), CONNECT_TIMEOUT_S)
    if not options.unix_path:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, options.nodelay)
    if options.tls is None and not options.websocket:
        return made
    try:
        return Channel(made, options)
    except BaseException:
        made.close()
        raise


class Session:
    """A connection that has registered in the framing of Apache Iggy 0.9 (docs/protocol/iggy-0.9.md). `session`: the
    client in two numbers, what the server calls it, and how many requests had a number. BenchError."""

    def __init__(self, made: Connection, username: str, password: str, token: str = "") -> None:
        self._connection = made
        self.capsule = getattr(made, "capsule", None)
        self._client = os.urandom(16)
        low, high = struct.unpack("<QQ", self._client)
        self.session = (low, high, 0, 0)
        who = wire.text8(token) if token else wire.text8(username) + wire.text8(password)
        body = struct.pack("<I", iggy09.VERSION) + wire.text8("shardd-bench") + wire.text8("0") + who + bytes(4)
        answer = self._ask(iggy09.REGISTER, 0, body)
        if answer is None or len(answer) < 16:
            raise BenchError("the server does not register a client of 0.9")
        self.session = (low, high, int(struct.unpack_from("<Q", answer, 8)[0]), 0)

    def join(self, group: bytes) -> None:
        """`group`: the identifiers of stream, topic and group. BenchError."""
        low, high, session, requests = self.session
        if self._ask(_JOIN_09, requests + 1, group) != bytes(4):
            raise BenchError("the server lets nobody of 0.9 join the group")
        self.session = (low, high, session, requests + 1)

    def _ask(self, operation: int, request: int, body: bytes) -> bytes | None:
        """The body of the answer; None when the server refused."""
        head = bytearray(_HEAD_09)
        struct.pack_into("<I", head, 48, len(head) + len(body))
        head[60], head[128:144], head[176] = _REQUEST_09, self._client, operation
        struct.pack_into("<Q", head, 168, request)
        struct.pack_into("<Q", head, 184, self.session[2])
        self._connection.sendall(bytes(head) + body)
        answer = exactly(self._connection, _HEAD_09)
        found = exactly(self._connection, struct.unpack_from("<I", answer, 48)[0] - _HEAD_09)
        return found if answer[60] == _REPLY_09 and answer[216:220] == bytes(4) else None

    def fileno(self) -> int:
        return self._connection.fileno()

    def sendall(self, data: bytes) -> None:
        self._connection.sendall(data)

    def recv(self, size: int) -> bytes:
        return self._connection.recv(size)

    def setblocking(self, flag: bool) -> None:
        self._connection.setblocking(flag)

    def close(self) -> None:
        self._connection.close()


class Control(SyncAdministration):
    """Commands over one connection, one after the other. ClientError, OSError."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def call(self, command: Command[T], deadline_s: float | None = None) -> T:
        self._connection.sendall(wire.FRAME_HEAD.pack(len(command.payload) + 4, command.code) + command.payload)
        status, length = wire.FRAME_HEAD.unpack(exactly(self._connection, wire.FRAME_HEAD.size))
        answer = exactly(self._connection, length)
        if status:
            raise of_status(status)
        return command.read(answer)

    def close(self) -> None:
        self._connection.close()


def exactly(connection: Connection, length: int) -> bytes:
    taken = b""
    while len(taken) < length:
        piece = connection.recv(min(length - len(taken), 1 << 16))
        if not piece:
            raise ConnectionLostError("the server closed a connection")
        taken += piece
    return taken
