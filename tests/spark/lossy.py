"""A proxy that loses answers and cuts the network."""

from __future__ import annotations

import contextlib
import socket

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
