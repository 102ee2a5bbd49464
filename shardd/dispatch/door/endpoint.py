"""The socket of a worker for doors: admits connections, and keeps one connection of each door (docs/protocol/doors.md).

A connection first proves its identity: the kernel names its user, the first frame its process and key
(runtime/trust.py). A door has one connection at a time, the newest. connection.py does the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from typing import Final

from shardd.dispatch.door.commands import LIFTBRIDGE, command_table
from shardd.dispatch.door.connection import Counters, DoorConnection, Links
from shardd.dispatch.door.notices import MetadataNotices
from shardd.dispatch.door.places import Handed
from shardd.dispatch.door.requests import DoorFunctions
from shardd.dispatch.door.tasks import task_table
from shardd.runtime.trust import Trust, door_kind
from shardd.worker.doors import DoorParts

UNPROVEN_MAX: Final = 16  # connections that have not proven anything yet; a further one is closed
_BACKLOG: Final = 128
_PEER: Final = struct.Struct("3i")  # pid, uid, gid
_REPORT_INTERVAL_S: Final = 10.0
_log = logging.getLogger(__name__)


class Doors:
    """Lives on the loop thread of the worker."""

    def __init__(self, trust: Trust, parts: DoorParts) -> None:
        self._trust = trust
        self._parts = parts
        self._functions = DoorFunctions(command_table(parts.services), task_table(parts.services))
        self._server: asyncio.Server | None = None
        self._unproven: set[DoorConnection] = set()
        self._proven: dict[str, DoorConnection] = {}  # by door
        self._counters = Counters()
        self._handed = Handed(parts.pool_bytes)
        self._report_at = 0.0
        self._stopping = False
        self._notices = MetadataNotices(parts.metadata, self._liftbridge)

    async def start(self, listener_fd: int) -> None:
        listener = socket.socket(fileno=os.dup(listener_fd))  # the server closes its own
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._connection, sock=listener, backlog=_BACKLOG)

    async def stop(self, seconds: float) -> None:
        self._stopping = True
        self._notices.stop()
        if self._server is not None:
            self._server.close()
        connections = [*self._unproven, *self._proven.values()]
        for connection in connections:
            connection.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for connection in connections:
                    await connection.finished.wait()
        for connection in connections:
            connection.end()

    def gauges(self) -> dict[str, int]:
        proven = self._proven.values()
        return {
            "connections": len(proven),
            "clients": sum(len(each.clients) for each in proven),
            "requests": sum(each.requests_count for each in proven),
        }

    def counters(self) -> dict[str, int]:
        return {"answered": self._counters.answered, "refused": self._counters.refused}

    # ---- for connections (Links) ----

    def may_connect(self, connection: DoorConnection) -> bool:
        if self._stopping or len(self._unproven) >= UNPROVEN_MAX:
            self.refused("more connections than doors prove at a time")
            return False
        self._unproven.add(connection)
        return True

    def prove(self, connection: DoorConnection, peer: socket.socket, id_: str, key: str) -> str | None:
        """The name of the door, None when it is refused."""
        self._parts.hear()
        pid, uid, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        refusal = self._trust.refusal(uid, id_, key)
        name = self._trust.sender(id_)
        if refusal is not None or name is None:
            self.refused(f"a connection of process {pid} of user {uid}: {refusal}")
            return None
        self._unproven.discard(connection)
        older = self._proven.pop(name, None)
        if older is not None:
            older.end()
        self._proven[name] = connection
        if door_kind(name) == LIFTBRIDGE:
            self._notices.due()  # it may have missed some
        return name

    def _liftbridge(self) -> list[DoorConnection]:
        return [each for name, each in self._proven.items() if door_kind(name) == LIFTBRIDGE]

    def is_present(self, id_: str) -> bool:
        return self._trust.sender(id_) is not None

    def clients_count(self, kind: str) -> int:
        """Of all processes of a door."""
        return sum(len(each.clients) for name, each in self._proven.items() if door_kind(name) == kind)

    def left(self, connection: DoorConnection) -> None:
        self._unproven.discard(connection)
        if connection.door is not None and self._proven.get(connection.door) is connection:
            del self._proven[connection.door]

    def refused(self, what: str) -> None:
        """One line in 10 s; all are counted."""
        self._counters.refused += 1
        now = asyncio.get_running_loop().time()
        if now >= self._report_at:
            self._report_at = now + _REPORT_INTERVAL_S
            _log.warning("the socket of the doors refuses %s", what)

    def _connection(self) -> DoorConnection:
        links: Links = self
        return DoorConnection(links, self._parts, self._functions, self._counters, self._handed)
