"""Handshakes of QUIC take turns as those of TLS do (shardd/doors/openings.py): the first flight of a client makes the
door sign with its key, 5 to 10 ms of CPU for RSA with 4,096 bits. All connections share one socket, so without turns
packets of other clients wait behind a flood of first flights, and are lost where the kernel keeps no more.

A datagram of a connection whose handshake is not over waits for the turn of its connection. A datagram of a whole
connection is handled at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar

from shardd.doors.openings import Openings

WAITING_MAX: Final = 4  # datagrams of a connection; further ones are lost, as on any path, and sent again
Address = tuple[str, int]


class Opening(Hashable, Protocol):
    """A connection whose handshake is not over. `host`: the network that its handshake counts for."""

    @property
    def host(self) -> str: ...


Connection = TypeVar("Connection", bound=Opening)


class Handshakes(Generic[Connection]):
    """Loop thread only. `receive` hands one datagram to a connection and raises nothing."""

    def __init__(self, receive: Callable[[Connection, bytes, Address], None], openings: Openings | None = None) -> None:
        self._receive = receive
        self._openings = openings or Openings()
        self._waiting: dict[Connection, list[tuple[bytes, Address]]] = {}

    def enter(self, connection: Connection, data: bytes, addr: Address) -> None:
        """The datagram is handled in the next turn of its connection."""
        waiting = self._waiting.get(connection)
        if waiting is None:
            self._waiting[connection] = [(data, addr)]
            self._openings.enter(connection.host, lambda: self._take_turn(connection))
        elif len(waiting) < WAITING_MAX:
            waiting.append((data, addr))

    def leave(self, connection: Connection) -> None:
        """The connection has ended: its datagrams are dropped, and its turn costs nothing."""
        self._waiting.pop(connection, None)

    def _take_turn(self, connection: Connection) -> None:
        for data, addr in self._waiting.pop(connection, ()):
            self._receive(connection, data, addr)
