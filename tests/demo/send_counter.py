"""A forwarder between one client and the server that counts how often each row passes in a SEND_MESSAGES.

It is the witness of the demo: a row that the server stored twice must have passed here twice.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections import Counter

from tests.support.wire import SEND_MESSAGES, host_and_port

ROW = re.compile(rb'\{"row": (\d+), ')
CHUNK_BYTES = 1 << 18


class SendCounter:
    """Listens on a free port; `sent[row]` counts whole requests that were passed on."""

    def __init__(self, server_address: str) -> None:
        self.server_address = server_address
        self.sent: Counter[int] = Counter()
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._shut(self._listener)
        with self._lock:
            left = list(self._open)
        for connection in left:
            self._shut(connection)

    def _accept(self) -> None:
        while True:
            try:
                client, _peer = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = socket.create_connection(host_and_port(self.server_address), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {client, server}
            threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
            threading.Thread(target=self._answers, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        """Passes whole frames on; a frame is counted before its first byte goes out, since any part may arrive."""
        try:
            while head := self._read(client, 8):
                length, code = struct.unpack("<II", head)
                payload = self._read(client, length - 4)
                if code == SEND_MESSAGES:
                    self.sent.update(int(row) for row in ROW.findall(payload))
                server.sendall(head + payload)
        except OSError:
            pass  # either side is gone: the other one is closed below
        self._end(client, server)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        try:
            while data := server.recv(CHUNK_BYTES):
                client.sendall(data)
        except OSError:
            pass  # as above
        self._end(client, server)

    @staticmethod
    def _read(connection: socket.socket, size: int) -> bytes:
        """Exactly `size` bytes, or b"" when the client ends between frames; ConnectionError inside one."""
        data = bytearray()
        while len(data) < size:
            chunk = connection.recv(min(size - len(data), CHUNK_BYTES))
            if not chunk:
                if data:
                    raise ConnectionError("the client ended inside a frame")
                return b""
            data += chunk
        return bytes(data)

    def _end(self, *connections: socket.socket) -> None:
        for connection in connections:
            self._shut(connection)
            with self._lock:
                self._open.discard(connection)

    @staticmethod
    def _shut(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
