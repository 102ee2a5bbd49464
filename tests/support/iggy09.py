"""A client of 0.9 for tests: raw frames over a socket (docs/protocol/iggy-0.9.md)."""

from __future__ import annotations

import os
import select
import socket
import struct

import msgspec

from shardd.client.closing import Closing

CLIENT_ID = bytes.fromhex("1241152539d34be5a1606357ec161678")
REPLY, EVICTION = 8, 13
RESULT_FRAMED = frozenset({*range(128, 138), *range(139, 150)})  # a refusal of theirs is in the body
REFUSED = struct.pack("<II", 1, 0)


def bytes_of(text: str) -> bytes:
    """Hex; `[n]` stands for n zeros, spaces for nothing."""
    parts = text.replace(" ", "").replace("]", "[").split("[")
    return b"".join(bytes(int(part)) if at % 2 else bytes.fromhex(part) for at, part in enumerate(parts))


def head(
    size: int,
    operation: int,
    code: int = 0,
    request: int = 0,
    session: int = 0,
    checksum: int = 0,
    client: bytes = CLIENT_ID,
) -> bytes:
    frame = bytearray(256)
    struct.pack_into("<I", frame, 48, size)
    frame[60] = 5
    frame[128:144] = client
    struct.pack_into("<Q", frame, 144, checksum)
    struct.pack_into("<Q", frame, 168, request)
    frame[176] = operation
    struct.pack_into("<Q", frame, 184, session)
    struct.pack_into("<I", frame, 196, code)
    return bytes(frame)


class Answer(msgspec.Struct, frozen=True):
    """`reason`: of an eviction, else 0. `status` comes from the head or, of a refusal, from the body."""

    head: bytes
    body: bytes
    status: int
    reason: int


class Connection(Closing):
    """One connection; numbers its requests as a client does."""

    def __init__(self, address: str, client: bytes | None = None) -> None:
        self.client = client if client is not None else os.urandom(16)
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 10)
        self.session = 0
        self.request = 1

    def close(self) -> None:
        self._socket.close()

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def wait_for_answer(self, timeout_s: float) -> bool:
        """Whether bytes have come, which stay unread."""
        return bool(select.select([self._socket], [], [], timeout_s)[0])

    def reset(self) -> None:
        """Ends the connection without a farewell."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def receive(self) -> Answer:
        """EOFError at the end of the stream."""
        first, body = self.receive_frame()
        if first[60] == EVICTION:
            return Answer(first, body, 0, first[255])
        if first[208] in RESULT_FRAMED and body[:8] == REFUSED:
            return Answer(first, b"", struct.unpack_from("<I", body, 8)[0], 0)
        return Answer(first, body, struct.unpack_from("<I", first, 216)[0], 0)

    def receive_frame(self) -> tuple[bytes, bytes]:
        """Head and body as they are. EOFError at the end of the stream."""
        first = self.receive_exactly(256)
        return first, self.receive_exactly(struct.unpack_from("<I", first, 48)[0] - 256)

    def receive_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def read(self, code: int, body: bytes = b"") -> Answer:
        """A command without a number of its own."""
        self.send(head(256 + len(body), 2, code, self.request, self.session, client=self.client) + body)
        return self.receive()

    def change(self, operation: int, body: bytes = b"") -> Answer:
        self.send(head(256 + len(body), operation, 0, self.request, self.session, client=self.client) + body)
        self.request += 1
        return self.receive()

    def login(self, user: bytes = b"iggy", password: bytes = b"iggy", version: int = 11264) -> Answer:
        texts = b"".join(bytes([len(each)]) + each for each in (b"rust-sdk", b"0.11.0", user, password))
        body = struct.pack("<I", version) + texts + bytes(4)
        self.send(head(256 + len(body), 1, client=self.client) + body)
        answer = self.receive()
        if answer.reason == 0 and answer.status == 0:
            self.session, self.request = struct.unpack_from("<Q", answer.body, 8)[0], 1
        return answer
