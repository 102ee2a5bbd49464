"""Connections to a server that can be cut: a forwarder in front of each of its addresses.

A cut ends the connections of clients at once, or after a silence in which nothing passes and no end is told, while
other connections work. A snare waits for bytes of a request, or for a number of bytes of answers, and cuts there.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from hypothesis import strategies as st

HOST: Final = "127.0.0.1"
_CHUNK_BYTES: Final = 1 << 16
_RESET: Final = struct.pack("ii", 1, 0)  # for SO_LINGER: a close is a reset
_ANSWER_S: Final = 10.0
Address = tuple[str, int]


class Cut(NamedTuple):
    """`is_reset`: else the client sees an orderly end. `silence_s`: how long nothing passes before."""

    is_reset: bool = True
    silence_s: float = 0.0


class Snare(NamedTuple):
    """Where `cut` happens: at the request that carries `request`, in its middle, or, with `is_passed`, where its answer
    begins; without `request`: behind `answer_bytes` of answers, for all connections."""

    cut: Cut
    request: bytes = b""
    is_passed: bool = False
    answer_bytes: int = 0


CUTS: Final = st.builds(Cut, st.booleans(), st.sampled_from([0.0, 0.0, 0.0, 0.3, 1.5]))


class _Line:
    """One connection of a client. `is_silent`: nothing passes; `is_asked`: its request has met the snare and passed."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client, self.server = client, server
        self.is_silent = self.is_asked = False

    def end(self, cut: Cut) -> None:
        """The server still gets all bytes of the client that were passed."""
        self.is_silent = True
        if cut.is_reset and not self.client.transport.is_closing():
            self.client.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.client.transport.abort()
        self.client.close()
        self.server.close()


class Ways:
    """Forwarders to `targets`, by name, on a loop in a thread. `address`: where clients connect. `troubles`: counts the
    beginnings and the ends of all cuts. `close` ends it."""

    def __init__(self, targets: Mapping[str, Address]) -> None:
        self.troubles = 0
        self._snare: Snare | None = None
        self._left = 0  # of the snare's bytes of answers
        self._lines: set[_Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._addresses: dict[str, Address] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ways", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(targets), self._loop).result(_ANSWER_S)

    def address(self, name: str) -> Address:
        return self._addresses[name]

    def close(self) -> None:
        self._on_loop(self._end_all)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ---- what happens to connections ----

    def cut(self, cut: Cut) -> None:
        """All connections that there are. It returns when they are cut, or silent."""
        self._on_loop(lambda: self._begin(cut, set(self._lines)))

    def lay(self, snare: Snare) -> None:
        """In place of the one before."""
        self._on_loop(lambda: self._laid(snare))

    def clear(self) -> None:
        """No snare is left."""
        self._on_loop(lambda: self._laid(None))

    def trouble(self) -> None:
        """The targets have cut all connections themselves."""
        self._on_loop(lambda: self._begin(Cut(), set()))

    # ---- on the loop ----

    def _on_loop(self, call: Callable[[], None]) -> None:
        async def run() -> None:
            call()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(_ANSWER_S)

    def _laid(self, snare: Snare | None) -> None:
        self._snare, self._left = snare, snare.answer_bytes if snare else 0

    def _begin(self, cut: Cut, lines: set[_Line]) -> None:
        self.troubles += 1
        for each in lines:
            each.is_silent = True
        if cut.silence_s:
            self._loop.call_later(cut.silence_s, self._end, cut, lines)
        else:
            self._end(cut, lines)

    def _end(self, cut: Cut, lines: set[_Line]) -> None:
        self.troubles += 1
        for each in lines:
            each.end(cut)

    def _end_all(self) -> None:
        for task in self._tasks:
            task.cancel()
        for each in self._lines:
            each.end(Cut())

    async def _listen(self, targets: Mapping[str, Address]) -> None:
        for name, target in targets.items():
            server = await asyncio.start_server(self._serving(target), HOST, 0)
            self._addresses[name] = server.sockets[0].getsockname()

    def _serving(self, target: Address) -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                there, back = await asyncio.open_connection(*target)
            except OSError:
                writer.transport.abort()
                return
            line = _Line(writer, back)
            self._lines.add(line)
            ways = self._pass(line, reader, back, self._request), self._pass(line, there, writer, self._answer)
            tasks = {self._loop.create_task(each) for each in ways}
            self._tasks |= tasks
            await asyncio.wait(tasks)
            self._tasks -= tasks
            self._lines.discard(line)

        return serve

    async def _pass(
        self,
        line: _Line,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        passed: Callable[[_Line, bytes], bytes],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK_BYTES):
                if left := b"" if line.is_silent else passed(line, data):
                    target.write(left)
                    await target.drain()
        if not line.is_silent:
            target.close()

    def _request(self, line: _Line, data: bytes) -> bytes:
        snare = self._snare
        if snare is None or not snare.request or snare.request not in data:
            return data
        if snare.is_passed:
            line.is_asked = True
            return data
        begun = data[: data.index(snare.request) + len(snare.request) // 2]
        line.server.write(begun)
        self._laid(None)
        self._begin(snare.cut, {line})
        return b""

    def _answer(self, line: _Line, data: bytes) -> bytes:
        snare = self._snare
        if snare is None:
            return data
        if line.is_asked:
            self._laid(None)
            self._begin(snare.cut, {line})
            return b""
        if snare.request or len(data) < self._left:
            self._left -= 0 if snare.request else len(data)
            return data
        begun = data[: self._left]
        line.client.write(begun)
        self._laid(None)
        self._begin(snare.cut, set(self._lines))
        return b""
