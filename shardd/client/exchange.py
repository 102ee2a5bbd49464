"""Requests and answers of one connection: which request an answer is for, and what became of requests without an
answer (docs/protocol/framing.md). Sans-IO: `link` drives it with asyncio, `blocking` with a socket."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from shardd.client import wire
from shardd.client.errors import ClientError, ConnectionLostError, Fate, of_status

A = TypeVar("A")
_STOPPING: Final = 8  # DISCONNECTED: the server carries out no request behind the one that it answers so


class Exchange(Generic[A]):
    """Answers come in the order of the requests. `asked`: what the owner of the connection keeps of each request that
    has no answer yet, the oldest first. `missing`: bytes of an answer whose beginning is here. `farewell`: why the
    connection ends, when that is known before it ends."""

    def __init__(self) -> None:
        self.asked: deque[A] = deque()
        self.missing = 0
        self.farewell: ClientError | None = None
        self._fate = Fate.UNKNOWN  # of the requests that are without an answer when the connection ends
        self._head = b""  # of an answer, less than a whole head
        self._status = 0  # of the answer that `missing` belongs to
        self._parts: list[bytes] = []  # of its payload

    def ask(self, asked: A, code: int, payload: bytes) -> bytes:
        """The bytes of a request. Its answer comes with `asked`."""
        self.asked.append(asked)
        return wire.frame(code, payload)

    def heard(self, data: bytes) -> Iterator[tuple[A, int, bytes]]:
        """Takes bytes of the server, cut anywhere. Gives request, status and payload of each answer that is whole."""
        at = 0
        if self.missing > len(data):
            self._parts.append(data)
            self.missing -= len(data)
            return
        if self.missing:
            at, self.missing = self.missing, 0
            payload = b"".join((*self._parts, data[:at]))
            self._parts.clear()
            asked = self.answered(self._status)
            if asked is not None:
                yield asked, self._status, payload
        elif self._head:
            data, self._head = self._head + data, b""
        while len(data) - at >= wire.FRAME_HEAD.size:
            status, length = wire.FRAME_HEAD.unpack_from(data, at)
            begin = at + wire.FRAME_HEAD.size
            at = begin + length
            if at > len(data):
                self._status, self.missing = status, at - len(data)
                self._parts.append(data[begin:])
                return
            asked = self.answered(status)
            if asked is not None:
                yield asked, status, data[begin:at]
        self._head = data[at:]

    def answered(self, status: int) -> A | None:
        """The request of an answer that is whole. None: the status came unasked, and the connection ends now."""
        if not self.asked:
            self.farewell = of_status(status)
            return None
        if status == _STOPPING:
            self._fate = Fate.NOT_SENT
        return self.asked.popleft()

    def lost(self, cause: object) -> ConnectionLostError:
        """The error of a request that has no answer when the connection has ended."""
        return ConnectionLostError(f"the connection was lost: {self.farewell or cause}", self._fate)
