"""Proxies in front of a server: one that looks like a stock Iggy server, one that loses answers, one that cuts the
network."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from types import TracebackType
from typing import Self

from tests.support.wire import exactly

HEAD = struct.Struct("<II")
EXTENSIONS = range(0x5344_0000, 0x5344_0100)
SENDS = (101, 0x5344_0031, 0x5344_0015)
INVALID_COMMAND = HEAD.pack(3, 0)


class Proxy:
    """Listens while the `with` block runs. `serve` has each connection to itself, in a thread of its own."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def serve(self, client: socket.socket, server: socket.socket) -> None:
        raise NotImplementedError

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(self._target) as server:
            self.serve(client, server)


class RequestProxy(Proxy):
    """One request at a time on a connection, as the classic protocol has it."""

    def serve(self, client: socket.socket, server: socket.socket) -> None:
        while True:
            length, code = HEAD.unpack(exactly(client, HEAD.size))
            payload = exactly(client, length - 4)
            if not self.knows(code):
                client.sendall(INVALID_COMMAND)
                continue
            server.sendall(HEAD.pack(length, code) + payload)
            head = exactly(server, HEAD.size)
            answer = exactly(server, HEAD.unpack(head)[1])
            if self.loses(code):
                return
            client.sendall(head + answer)

    def knows(self, code: int) -> bool:
        return True

    def loses(self, code: int) -> bool:
        """Closes the connection instead of bringing the answer."""
        return False


class StockProxy(RequestProxy):
    """Knows no extension commands: to clients it looks like a stock Iggy server."""

    refused = 0

    def knows(self, code: int) -> bool:
        self.refused += code in EXTENSIONS
        return code not in EXTENSIONS


class CuttingProxy(RequestProxy):
    """Takes every so many-th send to the server and loses its answer."""

    sends = lost = 0

    def __init__(self, address: str, every: int) -> None:
        super().__init__(address)
        self._every = every

    def loses(self, code: int) -> bool:
        if code not in SENDS:
            return False
        self.sends += 1
        lost = self.sends % self._every == 0
        self.lost += lost
        return lost


class NetworkProxy(Proxy):
    """Bytes in both directions; the network between client and server can be cut for a time.

    refuse: connections end, new ones are refused. silent: nothing arrives and nobody is told, then everything does.
    lost: the same, but what was on its way is lost, and so are the connections.
    """

    KINDS = ("refuse", "silent", "lost")

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._open = threading.Event()
        self._open.set()
        self._refusing = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self.cuts = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._open.set()
        self._end_all()

    def cut(self, kind: str, seconds: float) -> None:
        """Returns when the network is there again."""
        self.cuts += 1
        self._refusing = kind == "refuse"
        self._open.clear()
        if kind == "refuse":
            self._end_all()
        time.sleep(seconds)
        if kind == "lost":
            self._end_all()
        self._refusing = False
        self._open.set()

    def serve(self, client: socket.socket, server: socket.socket) -> None:
        with self._lock:
            if self._refusing:
                return
            self._sockets |= {client, server}
        back = threading.Thread(target=self._carry, args=(server, client), daemon=True)
        back.start()
        self._carry(client, server)
        back.join()

    def _end_all(self) -> None:
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._sockets.clear()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._open.wait()
                with self._lock:
                    there = source in self._sockets
                if not there:
                    break
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._sockets -= {source, target}
