"""What clients have taken: an answer counts until its client has it, not until the kernel has. The kernel keeps little
that it could not send (`bound`), and each connection is looked at every now and then (as native/src/net/conn/reader.c
does). A client that takes nothing for the time of slow readers, or less than 16 KiB a second beyond it, is late."""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from typing import Final, Protocol

LOOK_S: Final = 0.5
UNSENT_BYTES_MAX: Final = 64 << 10  # of a connection, in the kernel
BYTES_PER_S_MIN: Final = 16 << 10  # as in native/src/net/conn/conn.h
_TCP_INFO_BYTES: Final = 136
_STATE_CLOSED: Final = 7
_ACKED: Final = struct.Struct("=Q")
_ACKED_AT: Final = 120  # in struct tcp_info
_RECEIVED_AT: Final = 128
_NOTHING: Final = struct.pack("ii", 1, 0)


class Connection(Protocol):
    """A socket, also one that asyncio has."""

    def fileno(self) -> int: ...
    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...
    def setsockopt(self, level: int, optname: int, value: bytes, /) -> None: ...


def bound(listener: socket.socket, slow_reader_s: float | None = None) -> None:
    """Connections inherit it. `slow_reader_s`: what is left when one is closed ends with a client that takes nothing
    for so long; the kernel alone would try for minutes."""
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)
    if slow_reader_s is not None:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(slow_reader_s * 1000) + 1000)


def left_of(descriptor: int) -> int:
    """Bytes in the kernel that the client does not have. 0: the connection is gone."""
    found = array.array("i", [0])
    try:
        fcntl.ioctl(descriptor, termios.TIOCOUTQ, found)
    except OSError:
        return 0
    return found[0]


def received_by(connection: Connection) -> int:
    """Bytes that have come so far."""
    info = _info(connection)
    return 0 if info is None else int(_ACKED.unpack_from(info, _RECEIVED_AT)[0])


def reset_at_close(connection: Connection) -> None:
    """What its client has not taken is thrown away when it is closed."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NOTHING)


def reset(transport: asyncio.Transport) -> None:
    """Ends it; the kernel keeps nothing of it either."""
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        reset_at_close(connection)
    transport.abort()


def is_reset(connection: Connection) -> bool:
    return bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, len(_NOTHING))[0])


class Taking:
    """Of one connection. `since_s`: since when its client is waited for; None: it has everything."""

    __slots__ = ("_goal", "_length", "_moved_s", "_taken", "_timeout_s", "since_s")

    def __init__(self, timeout_s: float) -> None:
        self.since_s: float | None = None
        self._timeout_s = timeout_s
        self._moved_s = 0.0
        self._taken = self._goal = self._length = 0

    def is_late(self, connection: Connection, now_s: float, unsent: int = 0) -> bool:
        """`unsent`: bytes that the kernel does not even have."""
        descriptor = connection.fileno()
        left = 0 if descriptor < 0 else left_of(descriptor)
        info = _info(connection) if left else None
        if info is None and not unsent:
            self.since_s = None
            return False
        taken = 0 if info is None else int(_ACKED.unpack_from(info, _ACKED_AT)[0])
        if self.since_s is None or taken >= self._goal:
            self.since_s = self._moved_s = now_s
            self._length = left + unsent
            self._goal = taken + self._length
        elif taken != self._taken:
            self._moved_s = now_s
        self._taken = taken
        whole_s = self._timeout_s + self._length / BYTES_PER_S_MIN
        return now_s - self._moved_s > self._timeout_s or now_s - self.since_s > whole_s


def _info(connection: Connection) -> bytes | None:
    """None: the connection is gone."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None
    return None if info[0] == _STATE_CLOSED or len(info) < _TCP_INFO_BYTES else info
