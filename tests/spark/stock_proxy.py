"""A proxy in front of the server that knows no extension commands: to clients it looks like a stock Iggy server."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Self

HEAD = struct.Struct("<II")
EXTENSIONS = range(0x5344_0000, 0x5344_0100)
INVALID_COMMAND = HEAD.pack(3, 0)


class StockProxy:
    """Listens while the `with` block runs; one request at a time on a connection, as the classic protocol has it."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.refused = 0

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

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(self._target) as server:
            while True:
                length, code = HEAD.unpack(exactly(client, HEAD.size))
                payload = exactly(client, length - 4)
                if code in EXTENSIONS:
                    self.refused += 1
                    client.sendall(INVALID_COMMAND)
                    continue
                server.sendall(HEAD.pack(length, code) + payload)
                head = exactly(server, HEAD.size)
                client.sendall(head + exactly(server, HEAD.unpack(head)[1]))


def exactly(source: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = source.recv(size - len(data))
        if not part:
            raise OSError("closed")
        data += part
    return bytes(data)
