"""The few requests of the classic wire that prepare a measurement (docs/protocol/README.md)."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Self

from shardd.protocol.codes import Code
from shardd.protocol.send_request import NewMessage, Partitioning, PartitioningKind, SendMessages

REPLY_TIMEOUT_S = 20.0
COMPRESSION_NONE = 1


class WireError(Exception):
    """The server answered `status` to command `code`, or closed the connection (status None)."""

    def __init__(self, code: int, status: int | None) -> None:
        super().__init__(f"command {code}: " + ("connection closed" if status is None else f"status {status}"))
        self.code = code
        self.status = status


def identifier(number: int) -> bytes:
    """A numeric identifier (docs/protocol/primitives.md#identifier)."""
    return b"\x01\x04" + struct.pack("<I", number)


def name(text: str) -> bytes:
    """u8 length and UTF-8."""
    raw = text.encode()
    return bytes([len(raw)]) + raw


def send_request(stream: int, payload: bytes, count: int = 1) -> bytes:
    """So many equal messages to partition 0 of topic 0."""
    to_partition = Partitioning(PartitioningKind.PARTITION, 0)
    return SendMessages.of(stream, 0, to_partition, [NewMessage(payload)] * count).encode()


class Wire:
    """One blocking connection, logged in as iggy/iggy. Raises WireError for refusals, OSError from the socket."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._socket = socket.create_connection((host, port), timeout=REPLY_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request(Code.LOGIN_USER, name("iggy") + name("iggy") + bytes(8))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def request(self, code: int, payload: bytes) -> bytes:
        """Payload of the reply."""
        self._socket.sendall(struct.pack("<II", 4 + len(payload), code) + payload)
        status, length = struct.unpack("<II", self._read(8, code))
        if status != 0:
            raise WireError(code, status)
        return self._read(length, code)

    def create_stream(self, text: str) -> int:
        """Id of the new stream."""
        return int.from_bytes(self.request(Code.CREATE_STREAM, name(text))[:4], "little")

    def create_topic(self, stream: int, text: str, partitions_count: int) -> int:
        """Id of the new topic: no compression, server defaults for expiry and size."""
        head = identifier(stream) + struct.pack("<IBQQB", partitions_count, COMPRESSION_NONE, 0, 0, 0)
        return int.from_bytes(self.request(Code.CREATE_TOPIC, head + name(text))[:4], "little")

    def create_partitions(self, stream: int, count: int) -> None:
        """Of topic 0, at most 1,000."""
        self.request(Code.CREATE_PARTITIONS, identifier(stream) + identifier(0) + struct.pack("<I", count))

    def create_group(self, stream: int, text: str) -> int:
        """Id of the new group of topic 0."""
        head = identifier(stream) + identifier(0)
        return int.from_bytes(self.request(Code.CREATE_CONSUMER_GROUP, head + name(text))[:4], "little")

    def join_group(self, stream: int) -> None:
        """Group 0 of topic 0."""
        self.request(Code.JOIN_CONSUMER_GROUP, identifier(stream) + identifier(0) + identifier(0))

    def leave_group(self, stream: int) -> None:
        self.request(Code.LEAVE_CONSUMER_GROUP, identifier(stream) + identifier(0) + identifier(0))

    def delete_stream(self, stream: int) -> None:
        self.request(Code.DELETE_STREAM, identifier(stream))

    def _read(self, length: int, code: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            part = self._socket.recv(length - len(data))
            if not part:
                raise WireError(code, None)
            data += part
        return bytes(data)
