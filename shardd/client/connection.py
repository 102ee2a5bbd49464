"""One blocking TCP connection that sends requests and reads their answers (iggy-protocol 1). Used by one thread."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar

from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.extensions import ExtensionCode, ExtensionList, ExtensionRequest, Metrics
from shardd.protocol.primitives import Reader
from shardd.protocol.requests import Login

ANSWER_BYTES_MAX: Final = 64 << 20
_HEAD: Final = struct.Struct("<II")
T = TypeVar("T")


class ClientError(Exception):
    """No connection, or one that ended or does not speak the protocol; the text is a sentence."""


class RefusedError(ClientError):
    """The server answered with a status other than 0."""

    def __init__(self, code: int, status: int) -> None:
        name = Status(status).name if status in Status.__members__.values() else "unknown"
        super().__init__(f"command {code} was refused with status {status} ({name})")
        self.code = code
        self.status = status


class Connection:
    """Raises ClientError, also for a time-out; the connection cannot be used after one that is no RefusedError."""

    def __init__(self, host: str, port: int, timeout_s: float = 10.0) -> None:
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
        except OSError as error:
            raise ClientError(f"no connection to {host}:{port}: {error.strerror or error}") from error
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def request(self, code: int, payload: bytes = b"") -> bytes:
        """The payload of the answer. Raises RefusedError."""
        try:
            self._socket.sendall(_HEAD.pack(len(payload) + 4, code) + payload)
            status, length = _HEAD.unpack(self._receive(_HEAD.size))
            if status != Status.OK:  # an error carries nothing (iggy-protocol 1.1)
                raise RefusedError(code, status)
            if length > ANSWER_BYTES_MAX:
                raise ClientError(f"an answer of {length} bytes: this is no server of the protocol")
            return self._receive(length)
        except OSError as error:
            raise ClientError(f"the connection failed: {error.strerror or error}") from error

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(min(size - len(data), 1 << 20))
            if not part:
                raise ClientError("the server closed the connection")
            data += part
        return bytes(data)

    def login(self, username: str, password: str) -> None:
        self.request(Code.LOGIN_USER, Login(username, password).encode())

    def list_extensions(self) -> ExtensionList:
        """RefusedError with status 3: not a shardd server."""
        answer = self.request(ExtensionCode.LIST_EXTENSIONS, ExtensionRequest().encode())
        return _decode(ExtensionList.read, answer)

    def metrics(self) -> Metrics:
        return _decode(Metrics.read, self.request(ExtensionCode.GET_METRICS, ExtensionRequest().encode()))


def _decode(read: Callable[[Reader], T], answer: bytes) -> T:
    try:
        return read(Reader(answer))
    except (ShardError, ValueError, struct.error) as error:
        raise ClientError(f"an answer that is none: {error}") from error
