"""Handshakes of QUIC take turns as those of TLS do (shardd/doors/openings.py): the first flight of a client makes the
door sign with its key, 5 to 10 ms of CPU for RSA with 4,096 bits. All connections share one socket, so without turns
packets of other clients wait behind a flood of first flights, and are lost where the kernel keeps no more.

A datagram of a connection whose handshake is not over waits for the turn of its connection, which handles one. A
datagram of a whole connection is handled at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar

from shardd.doors.openings import Entry, Openings

WAITING_MAX: Final = 4  # datagrams of a connection; further ones are lost, as on any path, and sent again
Address = tuple[str, int]


class Opening(Hashable, Protocol):
    """A connection whose handshake is not over. `host`: the network that its handshake counts for."""

    @property
    def host(self) -> str: ...


Connection = TypeVar("Connection", bound=Opening)


class _Waiting:
    """Datagrams of a connection, in their order, and its entry in the line."""

    __slots__ = ("datagrams", "entry")

    def __init__(self, entry: Entry) -> None:
        self.datagrams: deque[tuple[bytes, Address]] = deque()
        self.entry = entry


class Handshakes(Generic[Connection]):
    """Loop thread only. `receive` hands one datagram to a connection and raises nothing."""

    def __init__(self, receive: Callable[[Connection, bytes, Address], None], openings: Openings | None = None) -> None:
        self._receive = receive
        self._openings = openings or Openings()
        self._waiting: dict[Connection, _Waiting] = {}

    def enter(self, connection: Connection, data: bytes, addr: Address) -> None:
        """The datagram is handled in a turn of its connection."""
        waiting = self._waiting.get(connection)
        if waiting is None:
            waiting = self._waiting[connection] = _Waiting(self._enter(connection))
        if len(waiting.datagrams) < WAITING_MAX:
            waiting.datagrams.append((data, addr))

    def leave(self, connection: Connection) -> None:
        """The connection has ended: nothing of it is kept."""
        waiting = self._waiting.pop(connection, None)
        if waiting is not None:
            self._openings.leave(waiting.entry)

    def _enter(self, connection: Connection) -> Entry:
        return self._openings.enter(connection.host, lambda: self._take_turn(connection))

    def _take_turn(self, connection: Connection) -> None:
        waiting = self._waiting[connection]
        data, addr = waiting.datagrams.popleft()
        if waiting.datagrams:
            waiting.entry = self._enter(connection)  # before the datagram, which may end the connection
        else:
            del self._waiting[connection]
        self._receive(connection, data, addr)
