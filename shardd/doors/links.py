"""A door's connections to the workers: one each, made again when it is lost. A request that was under way then is lost
with it: nobody knows whether it was done."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Final, cast

import msgspec

from shardd.protocol.door_frames import (
    ANSWER_BYTES_MAX,
    CLIENT_CLOSED,
    REQUEST_BYTES_MAX,
    ClientEnded,
    Frame,
    FrameError,
    Frames,
    Kind,
    MetadataChanged,
    Prove,
    Request,
    decode_answer,
    encode_request,
)
from shardd.protocol.errors import ShardError, Status
from shardd.runtime.trust import Trust, place_path, shard_name

_RECONNECT_FIRST_S: Final = 0.01
_RECONNECT_MAX_S: Final = 0.5
_log = logging.getLogger(__name__)


class WorkerLostError(Exception):
    """The worker is gone, or has closed the connection: all clients of the door there have ended."""


class _Wire(asyncio.Protocol):
    """One connection. What comes is followed at once: an answer costs one turn of the loop."""

    def __init__(self, follow: Callable[[Frame], None]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.writable = asyncio.Event()
        self.writable.set()
        self._follow = follow
        self._frames = Frames(ANSWER_BYTES_MAX)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._frames.feed(data)
        try:
            while (frame := self._frames.take()) is not None:
                self._follow(frame)
        except (FrameError, msgspec.MsgspecError) as error:
            self._end(error)
            self.transport.abort()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or EOFError())

    def _end(self, error: Exception) -> None:
        self.writable.set()  # whoever waits hears of it by the answer
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # nobody may wait for it any more


class WorkerLink:
    """The connection to one worker. `client_ended(client, status)`: the worker has closed a client by itself; `lost()`:
    all of them are gone; `metadata_changed(index)`: it has a newer record. Loop thread only."""

    def __init__(
        self,
        shard: int,
        place_fd: int,
        trust: Trust,
        client_ended: Callable[[int, int], None],
        lost: Callable[[], None],
        metadata_changed: Callable[[int], None] = lambda index: None,
    ) -> None:
        self.shard = shard
        self.connected = asyncio.Event()
        self._path = place_path(place_fd)
        self._trust = trust
        self._client_ended = client_ended
        self._lost = lost
        self._metadata_changed = metadata_changed
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[bytes | memoryview]] = {}
        self._wire: _Wire | None = None

    async def run(self) -> None:
        """Until it is cancelled: connects, and again whenever the connection is lost."""
        delay_s = _RECONNECT_FIRST_S
        while True:
            try:
                await self._serve_connection()
                delay_s = _RECONNECT_FIRST_S
            except (OSError, FrameError, EOFError, msgspec.MsgspecError) as error:
                if self.connected.is_set():
                    why = str(error) or type(error).__name__
                    _log.warning("the connection to shard %d is lost: %s", self.shard, why)
                    delay_s = _RECONNECT_FIRST_S
            finally:
                self._end()
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, _RECONNECT_MAX_S)

    async def request(self, kind: Kind, request: Request) -> bytes | memoryview:
        """The value of the answer, in MessagePack. `ShardError` (`close`: the client is closed there),
        `WorkerLostError`."""
        wire = self._wire
        if wire is None or not self.connected.is_set():
            raise WorkerLostError(f"shard {self.shard} is not connected")
        answer = self._send(wire, kind, request)
        if not wire.writable.is_set():
            await wire.writable.wait()
        return await answer

    def _send(self, wire: _Wire, kind: Kind, request: Request) -> asyncio.Future[bytes | memoryview]:
        number = next(self._ids)
        frame = encode_request(number, kind, request)
        if len(frame) > REQUEST_BYTES_MAX:
            raise ShardError(Status.INVALID_COMMAND, f"a request of {len(frame)} bytes")
        answer: asyncio.Future[bytes | memoryview] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        wire.transport.write(frame)
        return answer

    async def _serve_connection(self) -> None:
        loop = asyncio.get_running_loop()
        _, self._wire = await loop.create_unix_connection(lambda: _Wire(self._follow), self._path)
        id_, key = self._trust.credentials(shard_name(self.shard))
        proof = self._send(self._wire, Kind.PROVE, Prove(id_, key))
        proof.add_done_callback(self._proven)
        await self._wire.ended

    def _proven(self, proof: asyncio.Future[bytes | memoryview]) -> None:
        if not proof.cancelled() and proof.exception() is None:
            self.connected.set()

    def _follow(self, frame: Frame) -> None:
        if frame.kind == Kind.CLIENT_ENDED:
            notice = msgspec.msgpack.decode(frame.payload, type=ClientEnded)
            self._client_ended(notice.client, notice.status)
            return
        if frame.kind == Kind.METADATA_CHANGED:
            self._metadata_changed(msgspec.msgpack.decode(frame.payload, type=MetadataChanged).index)
            return
        status, flags, value = decode_answer(frame.payload)
        answer = self._answers.pop(frame.request_id, None)
        if answer is None or answer.done():
            return  # whoever asked does not wait any more
        if status == Status.OK:
            answer.set_result(value)
            return
        known = Status(status) if status in Status._value2member_map_ else Status.ERROR
        answer.set_exception(ShardError(known, _reason(value), close=bool(flags & CLIENT_CLOSED)))

    def _end(self) -> None:
        was_connected = self.connected.is_set()
        self.connected.clear()
        if self._wire is not None:
            self._wire.transport.close()
            self._wire = None
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(WorkerLostError(f"shard {self.shard}"))
                answer.exception()  # nobody may wait for it any more
        if was_connected:
            self._lost()


def _reason(value: bytes | memoryview) -> str:
    try:
        return msgspec.msgpack.decode(value, type=str | None) or ""
    except msgspec.MsgspecError:
        return ""
