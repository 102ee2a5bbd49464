"""The way of the bus to one other shard: requests that are out, and their places (bus.py)."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Final

import msgspec
import zmq
import zmq.asyncio

from shardd.runtime.asker import ASKER
from shardd.runtime.bus_sockets import MESSAGE_BYTES_MAX, BusSockets
from shardd.runtime.channel import BusError, PeerLost, RemoteError
from shardd.runtime.crowds import Member, SharedRoom

MESSAGES_AT_ONCE: Final = 32  # that are taken before others get a turn: a socket that has more never waits
REQUESTS_IN_FLIGHT_MAX: Final = 256  # to one shard, of one method

TAKEN, ANSWER, ERROR = 0, 1, 2

_log = logging.getLogger(__name__)


class RequestHead(msgspec.Struct, array_like=True, frozen=True):
    number: int
    method: str


class ReplyHead(msgspec.Struct, array_like=True, frozen=True):
    number: int
    kind: int


encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(RequestHead).decode
_decode_reply = msgspec.msgpack.Decoder(ReplyHead).decode


class NotTakenError(Exception):
    """The shard died, or was dead, before it took the request."""


class _Pending:
    """A request on its way, in flight until it is settled, even when nobody waits for the answer any more."""

    __slots__ = ("answer", "place", "room", "taken")

    def __init__(self, answer: asyncio.Future[bytes], room: SharedRoom, place: Member) -> None:
        self.answer = answer
        self.room = room
        self.place = place
        self.taken = False

    def settle(self, answer: bytes | None, error: Exception | None) -> None:
        self.room.leave(self.place)
        if self.answer.done():
            return
        if error is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(answer or b"")


class Link:
    """The way to one other shard: a socket that exists while the shard is up."""

    def __init__(self, sockets: BusSockets, shard: int) -> None:
        self._sockets = sockets
        self._shard = shard
        self._in_flight: dict[str, SharedRoom] = {}
        self._pending: dict[int, _Pending] = {}
        self._next_number = 0
        self._socket: zmq.asyncio.Socket | None = None
        self._receiver: asyncio.Task[None] | None = None
        self.up = asyncio.Event()

    def open(self) -> None:
        socket = self._sockets.dial(self._shard)
        self._socket = socket
        self._receiver = asyncio.create_task(self._receive(socket), name=f"bus replies of shard {self._shard}")
        self.up.set()

    @property
    def requests_count(self) -> int:
        """On their way or taken, without an answer."""
        return len(self._pending)

    def close(self) -> None:
        """What was not taken fails with NotTakenError, the rest with PeerLost. Queued messages go with the socket."""
        self.up.clear()
        socket, self._socket = self._socket, None
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.cancel()
        if socket is not None:
            socket.close()
        pending, self._pending = self._pending, {}
        for each in pending.values():
            lost = PeerLost(f"shard {self._shard} died with the request in its hands")
            each.settle(None, lost if each.taken else NotTakenError())

    async def exchange(self, method: str, payload: bytes) -> bytes:
        """One request and its answer. Raises NotTakenError, PeerLost, RemoteError."""
        if len(payload) > MESSAGE_BYTES_MAX:
            raise BusError(f"{method}: {len(payload)} bytes are too many for one message")
        room = self._in_flight.get(method)
        if room is None:
            room = self._in_flight[method] = SharedRoom(REQUESTS_IN_FLIGHT_MAX)
        place = await room.take(*ASKER.get(), _stays, at_work=True)
        if self._socket is None:
            room.leave(place)
            raise NotTakenError
        self._next_number = number = self._next_number + 1
        pending = _Pending(asyncio.get_running_loop().create_future(), room, place)
        self._pending[number] = pending
        try:
            await self._socket.send_multipart([encode(RequestHead(number, method)), payload])
        except asyncio.CancelledError:
            # Closing the socket cancels whoever waits for room in its queue; that is not a cancellation of this task.
            self._forget(number)
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise NotTakenError from None
        except zmq.ZMQError as error:
            self._forget(number)
            raise BusError(f"no request to shard {self._shard} can be sent: {error}") from error
        return await pending.answer

    def _forget(self, number: int) -> None:
        pending = self._pending.pop(number, None)
        if pending is not None:
            pending.settle(None, None)

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        for number in itertools.count():
            if number % MESSAGES_AT_ONCE == 0:
                await asyncio.sleep(0)
            frames = await socket.recv_multipart()
            try:
                head_frame, payload = frames
                head = _decode_reply(head_frame)
            except (ValueError, msgspec.MsgspecError):
                _log.error("shard %d sent a reply that cannot be read", self._shard)
                continue
            if head.kind == TAKEN:
                if head.number in self._pending:
                    self._pending[head.number].taken = True
                continue
            pending = self._pending.pop(head.number, None)
            if pending is not None:
                error = RemoteError(payload.decode(errors="replace")) if head.kind == ERROR else None
                pending.settle(payload, error)


def _stays() -> None:
    raise AssertionError("a request that is out does not give way")
