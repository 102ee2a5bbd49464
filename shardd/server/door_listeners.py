"""Where the clients of doors connect: sockets of the supervisor, which every process of a door inherits. So a door that
is replaced loses no connection that waits. A library that opens its own socket gets an address that is reserved: bound
here and never listened on, so that no connection ever waits at it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

from shardd.config.units import format_address
from shardd.server.errors import StartupError

_BACKLOG: Final = 1024
_OVER_UDP: Final = {"quic.address"}
_RESERVED: Final = {"liftbridge.address"}  # gRPC listens at it itself
_DATAGRAMS_BYTES: Final = 4 << 20  # that wait for the door; the kernel gives net.core.rmem_max at most


class DoorListeners:
    """Lives in the supervisor. `addresses`: by door and setting; `actual`: by setting, where port 0 has become a real
    one. Raises StartupError. No other server can share an address: they are bound without SO_REUSEPORT, but for those
    that are reserved, which the kernel lets processes of the same user share, and which are looked at first."""

    def __init__(self, addresses: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self.actual: dict[str, str] = {}
        self._sockets: dict[str, list[socket.socket]] = {}
        self._reserved: list[socket.socket] = []
        for door, of_door in (addresses or {}).items():
            self._open(door, of_door)

    def _open(self, door: str, addresses: Mapping[str, str]) -> None:
        for setting, address in addresses.items():
            host, _, port = address.rpartition(":")
            host = host.strip("[]")
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            kind = socket.SOCK_DGRAM if setting in _OVER_UDP else socket.SOCK_STREAM
            listener = socket.socket(family, kind | socket.SOCK_CLOEXEC)
            reserved = setting in _RESERVED
            (self._reserved if reserved else self._sockets.setdefault(door, [])).append(listener)
            try:
                if reserved:
                    _reserve(listener, host, int(port))
                elif kind == socket.SOCK_DGRAM:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _DATAGRAMS_BYTES)
                    listener.bind((host, int(port)))
                else:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    listener.bind((host, int(port)))
                    listener.listen(_BACKLOG)
            except OSError as error:
                self.close()
                raise StartupError(f"{setting}: cannot listen on {address}: {error.strerror}") from error
            self.actual[setting] = format_address(host, listener.getsockname()[1])

    def descriptors_of(self, door: str) -> list[int]:
        return [listener.fileno() for listener in self._sockets.get(door, [])]

    def close(self) -> None:
        while self._reserved:
            self._reserved.pop().close()
        while self._sockets:
            for listener in self._sockets.popitem()[1]:
                listener.close()


def _reserve(listener: socket.socket, host: str, port: int) -> None:
    """Without SO_REUSEPORT first: whoever listens there already is found. OSError."""
    with socket.socket(listener.family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        probe.listen(1)  # two may be bound to an address, with SO_REUSEADDR; only one listens
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the server before it may linger
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((host, port))
