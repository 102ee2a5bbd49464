"""A proxy that loses answers and cuts the network."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Self

from tests.spark.stock_proxy import HEAD, StockProxy, exactly

SENDS = (101, 0x5344_0031)


class CuttingProxy(StockProxy):
    """Takes every so many-th send to the server and closes the connection instead of bringing the answer."""

    def __init__(self, address: str, every: int) -> None:
        super().__init__(address)
        self._every = every
        self.sends = self.lost = 0

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(self._target) as server:
            while True:
                length, code = HEAD.unpack(exactly(client, HEAD.size))
                server.sendall(HEAD.pack(length, code) + exactly(client, length - 4))
                head = exactly(server, HEAD.size)
                answer = exactly(server, HEAD.unpack(head)[1])
                if code in SENDS:
                    self.sends += 1
                    if self.sends % self._every == 0:
                        self.lost += 1
                        return
                client.sendall(head + answer)


class NetworkProxy:
    """Bytes in both directions; the network between client and server can be cut for a time.

    refuse: connections end, new ones are refused. silent: nothing arrives and nobody is told, then everything does.
    lost: the same, but what was on its way is lost, and so are the connections.
    """

    KINDS = ("refuse", "silent", "lost")

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = threading.Event()
        self._open.set()
        self._refusing = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self.cuts = 0

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

    def _end_all(self) -> None:
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._sockets.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._refusing:
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                with self._lock:
                    self._sockets |= {client, server}
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

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
