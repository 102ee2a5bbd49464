"""How many connections of gRPC one address may have. The library accepts them itself and has no place where somebody
could say no, but their sockets are this process's: every now and then they are counted, and those that have come since
and are too many of their address are shut down. The library sees a client that has left.

A look costs a system call for each descriptor, so looks are rarer the more there are, and more frequent while there are
many connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import Counter
from typing import Final

LOOK_S: Final = 0.25
LOOK_FULL_S: Final = 0.05  # when half of all are there
LOOK_SHARE: Final = 20  # so many times as long as a look takes is between two of them
LINE_EVERY_S: Final = 10.0
_STEP: Final = 128  # descriptors between two turns of the loop
_DESCRIPTORS: Final = "/proc/self/fd"
_SOCKET: Final = "socket:"
_OTHER: Final = ""  # a socket that is no connection of gRPC
_log = logging.getLogger(__name__)


class ConnectionShares:
    """Loop thread only. `port`: where gRPC listens. `closed`: connections that were too many."""

    def __init__(self, port: int, connections_max: int, of_address_max: int) -> None:
        self.closed = 0
        self._port = port
        self._max = connections_max
        self._of_address_max = of_address_max
        self._known: dict[str, str] = {}  # address of its client, by the name of a socket, which it has alone
        self._line_at_s = 0.0

    async def run(self) -> None:
        """Until it is cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            began_s = clock()
            count = await self.look()
            pause_s = LOOK_FULL_S if 2 * count >= self._max else LOOK_S
            await asyncio.sleep(max(pause_s, (clock() - began_s) * LOOK_SHARE))

    async def look(self) -> int:
        """How many connections there are."""
        found: dict[str, str] = {}
        new: list[tuple[str, int]] = []
        for number, name in enumerate(os.listdir(_DESCRIPTORS)):  # noqa: PTH208 - names, no paths
            if number % _STEP == _STEP - 1:
                await asyncio.sleep(0)
            socket_name = _name_of(name)
            if socket_name in self._known:
                found[socket_name] = self._known[socket_name]
            elif socket_name:
                new.append((socket_name, int(name)))
        of = Counter(found.values())
        for number, (socket_name, descriptor) in enumerate(new):
            if number % _STEP == _STEP - 1:
                await asyncio.sleep(0)
            host = self._judge(descriptor, socket_name, of)
            if host is not None:
                found[socket_name] = host
                of[host] += 1
        self._known = found
        return of.total() - of[_OTHER]

    def _judge(self, descriptor: int, socket_name: str, of: Counter[str]) -> str | None:
        """Whose connection it is; _OTHER: nobody's, or it was shut down; None: it is gone. The descriptor is the
        library's and may be another socket at any moment: what is looked at, and shut down, is a copy."""
        try:
            copy = os.dup(descriptor)
        except OSError:
            return None
        if _name_of(str(copy)) != socket_name:
            os.close(copy)
            return None
        with socket.socket(fileno=copy) as connection:
            host = self._host_of(connection)
            if host == _OTHER or of[host] < self._of_address_max:
                return host
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._tell(host)
        return _OTHER

    def _host_of(self, connection: socket.socket) -> str:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return _OTHER
        try:
            if connection.getsockname()[1] != self._port:
                return _OTHER
            host: str = connection.getpeername()[0]
        except OSError:
            return _OTHER  # it listens, or has ended
        return host.removeprefix("::ffff:")

    def _tell(self, host: str) -> None:
        self.closed += 1
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._line_at_s:
            self._line_at_s = now_s + LINE_EVERY_S
            _log.warning(
                "connections of %s are closed: it has %d, as many as one address may", host, self._of_address_max
            )


def _name_of(descriptor: str) -> str:
    """That of the socket; "": it is none, or is gone."""
    try:
        name = os.readlink(f"{_DESCRIPTORS}/{descriptor}")  # noqa: PTH115 - thousands in a look
    except OSError:
        return ""
    return name if name.startswith(_SOCKET) else ""
