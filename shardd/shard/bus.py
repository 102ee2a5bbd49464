"""Requests and answers between the workers, over ZeroMQ. Lives on the loop thread of each worker.

A worker binds one ROUTER at `<prefix>-<shard>` and has one DEALER for each other shard. Frames, after the identity that
the ROUTER sees:

    request   MessagePack [number, method]     payload
    reply     MessagePack [number, kind]       payload     kind: 0 taken, 1 answer, 2 error (payload: text)

"Taken" is sent before the handler starts, and decides what a death means: a request that was taken fails with
PeerLost, one that was not waits for the next process of that shard, at most 2 s, and is sent again.

Nothing is dropped: at most REQUESTS_IN_FLIGHT_MAX requests of one method are on the way to one shard, later ones wait.
The limit is for each method, so that one method never waits for the room that another one takes. While a shard stands
still (patience.py) requests to it wait longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

import msgspec
import zmq
import zmq.asyncio

from shardd.metadata.channel import (
    BusError,
    Handler,
    PeerLost,
    PeerUnavailableError,
    PeerWatcher,
    RemoteError,
    RequestTimeoutError,
)
from shardd.shard.patience import AT_ONCE, PATIENCE_S, Patience

REQUESTS_IN_FLIGHT_MAX: Final = 256  # to one shard, of one method
QUEUE_MESSAGES_MAX: Final = 4096  # of one socket; a sender waits for room
PEER_HOLD_MS: Final = 2_000  # how long a request waits for a dead shard to come back
GATHER_TIMEOUT_S: Final = 5.0
_RECONNECT_INTERVAL_MS: Final = 10
_RECONNECT_INTERVAL_MAX_MS: Final = 100
_CLOSE_LINGER_MS: Final = 200

_TAKEN, _ANSWER, _ERROR = 0, 1, 2

_log = logging.getLogger(__name__)

__all__ = [
    "Bus",
    "BusError",
    "PeerLost",
    "PeerUnavailableError",
    "RemoteError",
    "RequestTimeoutError",
]


class _RequestHead(msgspec.Struct, array_like=True, frozen=True):
    number: int
    method: str


class _ReplyHead(msgspec.Struct, array_like=True, frozen=True):
    number: int
    kind: int


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(_RequestHead).decode
_decode_reply = msgspec.msgpack.Decoder(_ReplyHead).decode


class _NotTakenError(Exception):
    """The shard died, or was dead, before it took the request."""


class _Pending:
    """A request on its way. It holds its room until it is settled, even when nobody waits for the answer any more."""

    __slots__ = ("answer", "room", "taken")

    def __init__(self, answer: asyncio.Future[bytes], room: asyncio.Semaphore) -> None:
        self.answer = answer
        self.room = room
        self.taken = False

    def settle(self, answer: bytes | None, error: Exception | None) -> None:
        self.room.release()
        if self.answer.done():
            return
        if error is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(answer or b"")


class _Link:
    """The way to one other shard: a socket that exists while the shard is up."""

    def __init__(self, context: zmq.asyncio.Context, endpoint: str, shard: int) -> None:
        self._context = context
        self._endpoint = endpoint
        self._shard = shard
        self._rooms: dict[str, asyncio.Semaphore] = {}
        self._pending: dict[int, _Pending] = {}
        self._next_number = 0
        self._socket: zmq.asyncio.Socket | None = None
        self._receiver: asyncio.Task[None] | None = None
        self.up = asyncio.Event()

    def open(self) -> None:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES_MAX)
        socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES_MAX)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_INTERVAL_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_INTERVAL_MAX_MS)
        socket.connect(self._endpoint)
        self._socket = socket
        self._receiver = asyncio.create_task(self._receive(socket), name=f"bus replies of shard {self._shard}")
        self.up.set()

    @property
    def requests_count(self) -> int:
        """On their way or taken, without an answer."""
        return len(self._pending)

    def close(self) -> None:
        """What was not taken fails with _NotTakenError, the rest with PeerLost. Queued messages go with the socket."""
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
            each.settle(None, lost if each.taken else _NotTakenError())

    async def exchange(self, method: str, payload: bytes) -> bytes:
        """One request and its answer. Raises _NotTakenError, PeerLost, RemoteError."""
        room = self._rooms.setdefault(method, asyncio.Semaphore(REQUESTS_IN_FLIGHT_MAX))
        await room.acquire()
        if self._socket is None:
            room.release()
            raise _NotTakenError
        self._next_number = number = self._next_number + 1
        pending = _Pending(asyncio.get_running_loop().create_future(), room)
        self._pending[number] = pending
        try:
            await self._socket.send_multipart([_encode(_RequestHead(number, method)), payload])
        except asyncio.CancelledError:
            # Closing the socket cancels whoever waits for room in its queue; that is no cancellation of this task.
            self._forget(number)
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise _NotTakenError from None
        except zmq.ZMQError as error:
            self._forget(number)
            raise BusError(f"no request to shard {self._shard} can be sent: {error}") from error
        return await pending.answer

    def _forget(self, number: int) -> None:
        pending = self._pending.pop(number, None)
        if pending is not None:
            pending.settle(None, None)

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            frames = await socket.recv_multipart()
            try:
                head_frame, payload = frames
                head = _decode_reply(head_frame)
            except (ValueError, msgspec.MsgspecError):
                _log.error("shard %d sent a reply that is none", self._shard)
                continue
            if head.kind == _TAKEN:
                if head.number in self._pending:
                    self._pending[head.number].taken = True
                continue
            pending = self._pending.pop(head.number, None)
            if pending is not None:
                error = RemoteError(payload.decode(errors="replace")) if head.kind == _ERROR else None
                pending.settle(payload, error)


class Bus:
    """`prefix`: address that all shards share, as `ipc://@name`. Every peer counts as up until told otherwise.
    `context` makes the sockets; it belongs to the bus."""

    def __init__(self, prefix: str, shard: int, shards: int, context: zmq.asyncio.Context | None = None) -> None:
        self._prefix = prefix
        self._shard = shard
        self._shards = shards
        self._handlers: dict[str, Handler] = {}
        self._watchers: list[PeerWatcher] = []
        self.patience: Final = Patience()
        self._context = context or zmq.asyncio.Context()
        self._router: zmq.asyncio.Socket | None = None
        self._links: dict[int, _Link] = {}
        self._server: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[None]] = set()

    @property
    def shard(self) -> int:
        return self._shard

    @property
    def shards(self) -> int:
        return self._shards

    async def start(self) -> None:
        """Binds and connects. Raises zmq.ZMQError when the address is taken."""
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, _CLOSE_LINGER_MS)
        router.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES_MAX)
        # Replies are bounded by the requests that a peer has on the way; a limit here would make a ROUTER drop them.
        router.setsockopt(zmq.SNDHWM, 0)
        router.bind(self._endpoint(self._shard))
        self._router = router
        for peer in range(self._shards):
            if peer != self._shard:
                self._links[peer] = _Link(self._context, self._endpoint(peer), peer)
                self._links[peer].open()
        self._server = asyncio.create_task(self._serve_requests(router), name="bus requests")

    def serve(self, method: str, handler: Handler) -> None:
        """Answers requests of `method` with `await handler(payload)`. ValueError when somebody does already."""
        if method in self._handlers:
            raise ValueError(f"{method} is served already")
        self._handlers[method] = handler

    def watch(self, watcher: PeerWatcher) -> None:
        """Calls `watcher(shard, up)` after every change of `is_up`."""
        self._watchers.append(watcher)

    def is_up(self, shard: int) -> bool:
        return shard == self._shard or (shard in self._links and self._links[shard].up.is_set())

    def peer_up(self, shard: int) -> None:
        """A process of `shard` can be talked to. Nothing happens when it is up already."""
        if shard in self._links and not self.is_up(shard):
            self._links[shard].open()
            self._tell(shard, True)

    def peer_down(self, shard: int) -> None:
        """The process of `shard` is dead. Nothing happens when it is down already."""
        if shard in self._links and self.is_up(shard):
            self._links[shard].close()
            self._tell(shard, False)

    async def request(
        self,
        shard: int,
        method: str,
        payload: bytes,
        timeout_s: float | None = None,
        patience_s: float | None = PATIENCE_S,
    ) -> bytes:
        """What the handler of `method` on `shard` (this one included) answers. `patience_s`: as Patience.timeout.

        Raises PeerLost (taken by a process that died), PeerUnavailableError (down for 2 s), RequestTimeoutError,
        RemoteError (no handler, or it failed): all BusError.
        """
        return await self._request(shard, method, payload, timeout_s, PEER_HOLD_MS, patience_s)

    async def gather(
        self, method: str, payload: bytes, timeout_s: float = GATHER_TIMEOUT_S, patience_s: float = PATIENCE_S
    ) -> list[bytes]:
        """The answers of all live shards, this one included, in the order of the shards; one that dies is left out,
        and one that stands still with AT_ONCE.

        Raises RequestTimeoutError, RemoteError.
        """
        live = [shard for shard in range(self._shards) if self.is_up(shard)]
        outcomes = await asyncio.gather(
            *(self._request(shard, method, payload, timeout_s, 0, patience_s) for shard in live),
            return_exceptions=True,
        )
        answers = []
        for shard, outcome in zip(live, outcomes, strict=True):
            if isinstance(outcome, bytes):
                answers.append(outcome)
            elif patience_s == AT_ONCE and shard in self.patience.standing:
                continue
            elif not isinstance(outcome, PeerLost | PeerUnavailableError):
                raise outcome
        return answers

    def figures(self) -> dict[str, int]:
        """Requests of this shard without an answer, requests of others at work here, shards that are up."""
        return {
            "requests_out": sum(link.requests_count for link in self._links.values()),
            "requests_in": len(self._running),
            "shards_up": 1 + sum(link.up.is_set() for link in self._links.values()),
        }

    async def close(self) -> None:
        """Stops serving and closes every socket; requests on the way fail."""
        if self._server is not None:
            self._server.cancel()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        router, self._router = self._router, None
        for link in self._links.values():
            link.close()
        if router is not None:
            router.close()
        await asyncio.sleep(0)  # lets the cancelled receivers end before their loop may
        self._context.term()

    def _endpoint(self, shard: int) -> str:
        return f"{self._prefix}-{shard}"

    def _tell(self, shard: int, up: bool) -> None:
        for watcher in self._watchers:
            try:
                watcher(shard, up)
            except Exception:
                _log.exception("a change of shard %d was not followed everywhere", shard)

    async def _request(
        self, shard: int, method: str, payload: bytes, timeout_s: float | None, hold_ms: int, patience_s: float | None
    ) -> bytes:
        try:
            async with self.patience.timeout(shard, timeout_s, patience_s):
                if shard == self._shard:
                    return await self._call(method, payload)
                return await self._send_until_taken(self._links[shard], shard, method, payload, hold_ms)
        except TimeoutError as error:
            raise RequestTimeoutError(f"{method}: no answer of shard {shard} within {timeout_s} s") from error

    async def _send_until_taken(self, link: _Link, shard: int, method: str, payload: bytes, hold_ms: int) -> bytes:
        hold_until: float | None = None
        while True:
            if self._router is None:
                raise PeerUnavailableError(f"{method}: the bus of shard {self._shard} is closed")
            if not link.up.is_set():
                now = asyncio.get_running_loop().time()
                hold_until = now + hold_ms / 1000 if hold_until is None else hold_until
                try:
                    async with self.patience.timeout(
                        shard, max(0.0, hold_until - now), PATIENCE_S if hold_ms else None
                    ):
                        await link.up.wait()
                except TimeoutError:
                    raise PeerUnavailableError(f"{method}: shard {shard} is down") from None
            with contextlib.suppress(_NotTakenError):
                return await link.exchange(method, payload)

    async def _serve_requests(self, router: zmq.asyncio.Socket) -> None:
        while True:
            frames = await router.recv_multipart()
            try:
                identity, head_frame, payload = frames
                head = _decode_request(head_frame)
            except (ValueError, msgspec.MsgspecError):
                _log.error("a request between shards is none")
                continue
            await self._reply(router, identity, head.number, _TAKEN, b"")
            task = asyncio.create_task(self._handle(router, identity, head, payload))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _handle(self, router: zmq.asyncio.Socket, identity: bytes, head: _RequestHead, payload: bytes) -> None:
        try:
            answer = await self._call(head.method, payload)
        except RemoteError as error:
            await self._reply(router, identity, head.number, _ERROR, str(error).encode())
        else:
            await self._reply(router, identity, head.number, _ANSWER, answer)

    async def _call(self, method: str, payload: bytes) -> bytes:
        """The answer of our own handler. Raises RemoteError instead of whatever it raises."""
        handler = self._handlers.get(method)
        if handler is None:
            raise RemoteError(f"shard {self._shard} does not serve {method}")
        try:
            return await handler(payload)
        except Exception as error:
            _log.exception("%s failed", method)
            raise RemoteError(f"{method} failed on shard {self._shard}: {error}") from error

    @staticmethod
    async def _reply(router: zmq.asyncio.Socket, identity: bytes, number: int, kind: int, payload: bytes) -> None:
        with contextlib.suppress(zmq.ZMQError):  # whoever asked is gone
            await router.send_multipart([identity, _encode(_ReplyHead(number, kind)), payload])
