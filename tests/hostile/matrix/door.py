"""What an adapter of a door is: how to come in, what to send there, and a client that behaves."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from tests.hostile.matrix.https import trusting_anything
from tests.hostile.matrix.target import Target
from tests.support import wire

ATTACKER: Final = "127.0.0.3"  # an address of its own; those who behave have 127.0.0.1
ENTER_S: Final = 5.0
DEAF_BYTES: Final = 4096
Made = Callable[[int], bytes]
"""By its number on the connection: protocols that number requests need it."""


@dataclass(frozen=True, slots=True)
class Means:
    """What an attacker sends once it is in. `half`: of a request that announces more. `small`: a request in the
    smallest pieces that the protocol has. `piece_bytes`: how much of `small` goes into one send. `wrong`: with a
    wrong password."""

    request: Made
    large: Made
    half: Made
    small: Made
    wrong: Made
    piece_bytes: int = 1


@dataclass(frozen=True, slots=True)
class Entered:
    socket: socket.socket
    means: Means


class Client(Protocol):
    """One that behaves. Errors are OSError, AssertionError, StatusError or what its library has."""

    def ask(self) -> None: ...

    def close(self) -> None: ...


class Door(Protocol):
    """A way in over a stream of bytes. QUIC has a crowd of its own (quic.py)."""

    kernel_bytes_max: int

    def enter(self, target: Target, role: str, *, deaf: bool) -> Entered:
        """As a role, logged in; OSError. `deaf`: it will not read."""

    def knock(self, target: Target) -> tuple[socket.socket, bytes]:
        """A connection at which nothing has been said, and how a handshake begins."""

    def client(self, target: Target) -> Client: ...


def connected(address: str, *, deaf: bool = False, timeout_s: float = ENTER_S) -> socket.socket:
    """From the attacker's address; of a Unix socket by path."""
    local = address.startswith("/")
    made = socket.socket(socket.AF_UNIX if local else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if deaf:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, DEAF_BYTES)
        made.settimeout(timeout_s)
        if not local:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.bind((ATTACKER, 0))
        made.connect(address if local else wire.host_and_port(address))
    except OSError:
        made.close()
        raise
    return made


_TRUSTING: Final = trusting_anything()


def secured(plain: socket.socket) -> socket.socket:
    try:
        return _TRUSTING.wrap_socket(plain, server_hostname="localhost")
    except OSError:
        plain.close()
        raise


def hello() -> bytes:
    """The first flight of a handshake of TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        _TRUSTING.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without the other side")
