"""A relay between clients and a server: it can be slow, fall silent, or keep the answers to itself."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self


class Relay:
    """Passes bytes on to a server. `silent`: connections whose bytes it holds, and which it never ends; `mute`: those
    of which it holds the bytes of the server. `holds`: the first request with these bytes is held until `let_go` is
    set, whatever becomes of its client; `holding`: the number of its connection."""

    def __init__(self, address: str, delay_s: float = 0.0, rate: int = 0) -> None:
        self._host, _, port = address.rpartition(":")
        self._port, self._delay_s, self._rate = int(port), delay_s, rate
        self.silent: set[int] = set()
        self.mute: set[int] = set()
        self.holds, self.let_go = b"", asyncio.Event()
        self.connections = 0
        self._clients: dict[int, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self.holding: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()

    def cut(self, number: int) -> None:
        """The client's side of a connection; what the server was sent reaches it."""
        self._clients[number].transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.connections = self.connections, self.connections + 1
        self._clients[number] = writer
        await asyncio.sleep(self._delay_s)
        there, back = await asyncio.open_connection(self._host, self._port)
        answers = (number, there, writer, self._rate, (self.silent, self.mute))
        for way in ((number, reader, back, 0, (self.silent,)), answers):
            task = asyncio.get_running_loop().create_task(self._pass(*way))
            self._tasks.add(task)

    async def _pass(
        self,
        number: int,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        rate: int,
        held: tuple[set[int], ...],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(rate // 20 or 1 << 16):
                if any(number in each for each in held):
                    await asyncio.Event().wait()
                if self.holds and self.holds in data:
                    self.holds = b""
                    self.holding.set_result(number)
                    await self.let_go.wait()
                target.write(data)
                await target.drain()
                if rate:
                    await asyncio.sleep(len(data) / rate)
            target.close()
