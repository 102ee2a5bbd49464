"""Requests and answers between the workers, over ZeroMQ. Lives on the loop thread of each worker.

A worker has one ROUTER and one DEALER for each other shard (bus_sockets.py, which also proves who is who). Frames,
after the identity that the ROUTER sees:

    request   MessagePack [number, method]     payload
    reply     MessagePack [number, kind]       payload     kind: 0 taken, 1 answer, 2 error (payload: text)

"Taken" is sent before the handler starts, and decides what a death means: a request that was taken fails with
PeerLost, one that was not waits for the next process of that shard, at most 2 s, and is sent again.

Nothing is dropped: at most REQUESTS_IN_FLIGHT_MAX requests of one method are on the way to one shard, later ones wait.
The limit is for each method, so that one method never waits for what another one has in flight. A request has its
place until it is answered, also when its asker has gone: a device may hang. So users have shares of the places
(`SharedRoom`), and requests of a user beyond them wait in a line of their own. While a shard stands still (patience.py)
requests to it wait longer.

Whoever serves a method says which shards may send it, and is told which one did.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from typing import Final

import msgspec
import zmq
import zmq.asyncio

from shardd.runtime.bus_link import (
    ANSWER,
    ERROR,
    MESSAGES_AT_ONCE,
    REQUESTS_IN_FLIGHT_MAX,
    TAKEN,
    Link,
    NotTakenError,
    ReplyHead,
    RequestHead,
    decode_request,
    encode,
)
from shardd.runtime.bus_sockets import MESSAGE_BYTES_MAX, BusSockets
from shardd.runtime.channel import (
    BusError,
    Handler,
    PeerLost,
    PeerUnavailableError,
    PeerWatcher,
    RemoteError,
    RequestTimeoutError,
    Senders,
)
from shardd.runtime.patience import AT_ONCE, PATIENCE_S, Patience

PEER_HOLD_MS: Final = 2_000  # how long a request waits for a dead shard to come back
GATHER_TIMEOUT_S: Final = 5.0

_log = logging.getLogger(__name__)

__all__ = [
    "MESSAGES_AT_ONCE",
    "REQUESTS_IN_FLIGHT_MAX",
    "Bus",
    "BusError",
    "PeerLost",
    "PeerUnavailableError",
    "RemoteError",
    "RequestTimeoutError",
    "Senders",
]


class Bus:
    """Every peer counts as up until told otherwise. `sockets` belong to the bus."""

    def __init__(self, shard: int, shards: int, sockets: BusSockets, patience: Patience | None = None) -> None:
        self._shard = shard
        self._shards = shards
        self._sockets = sockets
        self._handlers: dict[str, tuple[Senders, Handler]] = {}
        self._watchers: list[PeerWatcher] = []
        self.patience: Final = patience or Patience()
        self._router: zmq.asyncio.Socket | None = None
        self._links: dict[int, Link] = {}
        self._server: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[None]] = set()

    @property
    def shard(self) -> int:
        return self._shard

    @property
    def shards(self) -> int:
        return self._shards

    async def start(self) -> None:
        """Listens and connects. Raises zmq.ZMQError."""
        router = self._router = self._sockets.listen()
        for peer in range(self._shards):
            if peer != self._shard:
                self._links[peer] = Link(self._sockets, peer)
                self._links[peer].open()
        self._server = asyncio.create_task(self._serve_requests(router), name="bus requests")

    def serve(self, method: str, senders: Senders, handler: Handler) -> None:
        """Answers requests of `method` by `senders` with `await handler(sender, payload)`. ValueError when somebody
        does already."""
        if method in self._handlers:
            raise ValueError(f"{method} is served already")
        self._handlers[method] = senders, handler

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
        """Requests of this shard without an answer, requests of others at work here, shards that are up, what was not
        let in."""
        return {
            "requests_out": sum(link.requests_count for link in self._links.values()),
            "requests_in": len(self._running),
            "shards_up": 1 + sum(link.up.is_set() for link in self._links.values()),
            "refused": self._sockets.refused_count,
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
        self._sockets.close()

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
                    return await self._call(self._shard, method, payload)
                return await self._send_until_taken(self._links[shard], shard, method, payload, hold_ms)
        except TimeoutError as error:
            raise RequestTimeoutError(f"{method}: no answer of shard {shard} within {timeout_s} s") from error

    async def _send_until_taken(self, link: Link, shard: int, method: str, payload: bytes, hold_ms: int) -> bytes:
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
            with contextlib.suppress(NotTakenError):
                return await link.exchange(method, payload)

    async def _serve_requests(self, router: zmq.asyncio.Socket) -> None:
        for number in itertools.count():
            if number % MESSAGES_AT_ONCE == 0:
                await asyncio.sleep(0)
            sender, frames = await self._sockets.receive(router)
            try:
                identity, head_frame, payload = frames
                head = decode_request(head_frame)
            except (ValueError, msgspec.MsgspecError):
                _log.error("a request of shard %d cannot be read", sender)
                continue
            await self._reply(router, identity, head.number, TAKEN, b"")
            name = f"bus {head.method}" if head.method in self._handlers else "bus"
            task = asyncio.create_task(self._handle(router, identity, sender, head, payload), name=name)
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _handle(
        self, router: zmq.asyncio.Socket, identity: bytes, sender: int, head: RequestHead, payload: bytes
    ) -> None:
        try:
            answer = await self._call(sender, head.method, payload)
        except RemoteError as error:
            await self._reply(router, identity, head.number, ERROR, str(error).encode())
        else:
            await self._reply(router, identity, head.number, ANSWER, answer)

    async def _call(self, sender: int, method: str, payload: bytes) -> bytes:
        """The answer of our own handler. Raises RemoteError instead of whatever it raises."""
        served = self._handlers.get(method)
        if served is None:
            raise RemoteError(f"shard {self._shard} does not serve {method}")
        senders, handler = served
        if not senders.include(sender):
            _log.error("shard %d may not send %s", sender, method)
            raise RemoteError(f"shard {sender} may not send {method}")
        try:
            answer = await handler(sender, payload)
        except Exception as error:
            _log.exception("%s of shard %d failed", method, sender)
            raise RemoteError(f"{method} failed on shard {self._shard}: {error}") from error
        if len(answer) > MESSAGE_BYTES_MAX:
            raise RemoteError(f"{method}: an answer of {len(answer)} bytes is too large for one message")
        return answer

    @staticmethod
    async def _reply(router: zmq.asyncio.Socket, identity: bytes, number: int, kind: int, payload: bytes) -> None:
        with contextlib.suppress(zmq.ZMQError):  # whoever asked is gone
            await router.send_multipart([identity, encode(ReplyHead(number, kind)), payload])
