"""Connections of the client to a broker in the same process, on a loop with virtual time.

A connection keeps its order. It can be cut, also with a request that was carried out and whose answer is lost, and it
can fall silent: nothing passes any more and no end is told, while other connections work.
"""

from __future__ import annotations

import asyncio
import errno
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from shardd.client import wire
from tests.models.history import Broken
from tests.sim.loop import SimLoop

DELAY_S: Final = 0.002
SILENT_MAX_S: Final = 40.0  # then keepalive ends the broker's side of a silent connection
PROGRESS_S: Final = 0.05
STEPS_MAX: Final = 20_000
RUN_MAX_S: Final = 2_000.0  # virtual, of one piece of work
_HEAD: Final = wire.FRAME_HEAD


class BusyError(Broken):
    """The clock does not go on, or work does not end."""


class Answering(Protocol):
    """What a broker is to its connections."""

    is_up: bool

    def connected(self, pipe: Pipe) -> None: ...

    def asked(self, pipe: Pipe, code: int, payload: bytes) -> None:
        """It answers by `pipe.answer`, now or later; the next request of the connection comes behind that."""

    def gone(self, pipe: Pipe) -> None: ...


class Pipe(asyncio.Transport):
    """A connection, as the client holds it and as the broker does."""

    def __init__(self, loop: ModelLoop, protocol: asyncio.Protocol, number: int) -> None:
        super().__init__()
        self.loop, self.protocol, self.number = loop, protocol, number
        self.broker = loop.broker
        self.is_silent = False
        self._is_closing = False  # the client's side
        self._is_gone = False  # the broker's side
        self._incoming = b""
        self._requests: deque[tuple[int, bytes]] = deque()
        self._is_busy = False
        self._arrivals = {"there": 0.0, "back": 0.0}

    # ---- the client's side ----

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing:
            self._later("there", self._arrived, bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._is_closing

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        if self._is_closing:
            return
        self._end(None)
        self._later("there", self._broker_lost)

    def cut(self, *, carries_on: bool) -> None:
        """The client sees a reset. `carries_on`: what is on its way to the broker arrives."""
        if not self._is_closing:
            self._end(ConnectionResetError(errno.ECONNRESET, "reset"))
        if carries_on:
            self._later("there", self._broker_lost)
        else:
            self._broker_lost()

    def fall_silent(self) -> None:
        self.is_silent = True
        self.loop.call_later(SILENT_MAX_S, self._broker_lost)

    def _end(self, error: Exception | None) -> None:
        self._is_closing = True
        self.loop.pipes.discard(self)
        self.loop.call_soon(self.protocol.connection_lost, error)

    # ---- the way ----

    def _later(self, way: str, call: Callable[..., None], *arguments: Any) -> None:
        loop = self.loop
        at = max(loop.time() + loop.chance.random() * DELAY_S, self._arrivals[way] + 2e-6)
        self._arrivals[way] = at
        loop.call_at(at, call, *arguments)

    # ---- the broker's side ----

    def _arrived(self, data: bytes) -> None:
        if self._is_gone or self.is_silent:
            return
        self._incoming += data
        while len(self._incoming) >= _HEAD.size:
            length, code = _HEAD.unpack_from(self._incoming)
            end = _HEAD.size + length - wire.CODE_BYTES
            if len(self._incoming) < end:
                break
            self._requests.append((code, self._incoming[_HEAD.size : end]))
            self._incoming = self._incoming[end:]
        self._next()

    def _next(self) -> None:
        while self._requests and not self._is_busy and not self._is_gone:
            self._is_busy = True
            code, payload = self._requests.popleft()
            self.broker.asked(self, code, payload)

    def answer(self, status: int, payload: bytes = b"") -> None:
        assert self._is_busy
        self._is_busy = False
        if not self._is_gone:
            self._later("back", self._answered, _HEAD.pack(status, len(payload)) + payload)
            self.loop.call_soon(self._next)

    def _answered(self, data: bytes) -> None:
        if self._is_closing or self.is_silent:
            return
        cut = self.loop.chance.randrange(len(data) + 1) if self.loop.chance.random() < 0.1 else len(data)
        for piece in (data[:cut], data[cut:]):
            if piece:
                self.protocol.data_received(piece)

    def _broker_lost(self) -> None:
        if not self._is_gone:
            self._is_gone = True
            self._requests.clear()
            self.broker.gone(self)


class ModelLoop(SimLoop):
    """Unix sockets of this loop lead to `broker`."""

    broker: Answering

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.chance = random.Random(f"wires {seed}")
        self.pipes: set[Pipe] = set()
        self._made = 0
        self._looked_at = 0.0
        self.is_stuck = False
        self.ends_at = math.inf
        self._steps_before = 0
        self.after_step = self._look

    def _look(self) -> None:
        """Whether something goes on for ever, without waiting or with it."""
        if self.time() > self.ends_at:
            self.is_stuck = True
            raise BusyError(f"it does not end within {RUN_MAX_S} s")
        if self.time() > self._looked_at + PROGRESS_S:
            self._looked_at, self._steps_before = self.time(), self.steps
        elif self.steps > self._steps_before + STEPS_MAX:
            self.is_stuck = True
            raise BusyError(f"{STEPS_MAX} steps within {PROGRESS_S} s")

    async def create_unix_connection(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], path: str | None = None, **_: Any
    ) -> tuple[Pipe, Any]:
        await asyncio.sleep(self.chance.random() * DELAY_S)
        if not self.broker.is_up:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        protocol = cast(asyncio.Protocol, protocol_factory())
        self._made += 1
        pipe = Pipe(self, protocol, self._made)
        self.pipes.add(pipe)
        self.broker.connected(pipe)
        protocol.connection_made(pipe)
        return pipe, protocol

    def open_pipes(self) -> list[Pipe]:
        return sorted((each for each in self.pipes if not each.is_silent), key=lambda each: each.number)
