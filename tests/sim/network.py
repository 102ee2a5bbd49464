"""The sockets of the bus between simulated processes: what `shardd.runtime.bus` uses of ZeroMQ, with its promises.

A connection keeps its order and loses nothing while both ends live; connections overtake each other. What waits in a
DEALER while nobody is bound goes to the next process that binds. The death of a process loses what was on the way to
it, and of what it had sent everything behind a moment that the seed chooses.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque

import zmq

from tests.sim.loop import Process

DELAY_S = 0.0008
SLOW_DELAY_S = 0.08
SLOW_SHARE = 0.01
_outside = contextvars.Context()  # of no process: what is on the way outlives its sender


class Network:
    """All endpoints. `messages` counts what was delivered, `lost` what deaths took."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.routers: dict[str, SimSocket] = {}
        self.dealers: dict[bytes, SimSocket] = {}
        self.senders: dict[bytes, int] = {}  # shard behind an identity
        self.messages = 0
        self.lost = 0
        self._next_identity = 0

    def identity(self) -> bytes:
        self._next_identity += 1
        return self._next_identity.to_bytes(5, "big")

    def delay(self) -> float:
        return self.rng.random() * (SLOW_DELAY_S if self.rng.random() < SLOW_SHARE else DELAY_S)


class SimSockets:
    """Stands for `shardd.runtime.bus_sockets.TrustedSockets` inside one process: here everybody is who he says."""

    refused_count = 0

    def __init__(self, network: Network, process: Process, shard: int) -> None:
        self._network = network
        self._process = process
        self._shard = shard

    def listen(self) -> SimSocket:
        router = SimSocket(self._network, self._process, zmq.ROUTER)
        router.bind(f"shard-{self._shard}")
        return router

    def dial(self, shard: int) -> SimSocket:
        dealer = SimSocket(self._network, self._process, zmq.DEALER)
        self._network.senders[dealer.connect(f"shard-{shard}")] = self._shard
        return dealer

    async def receive(self, router: SimSocket) -> tuple[int, list[bytes]]:
        frames = await router.recv_multipart()
        return self._network.senders[frames[0]], frames

    def close(self) -> None:
        """Nothing is held."""


class SimSocket:
    """A DEALER or a ROUTER."""

    def __init__(self, network: Network, process: Process, kind: int) -> None:
        self._network = network
        self.process = process
        self._kind = kind
        self._inbox: deque[list[bytes]] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._endpoint = ""
        self._identity = b""
        self._unsent: deque[list[bytes]] = deque()
        self._arrivals: dict[object, float] = {}  # of each connection: when the last message arrives
        self._last_words = float("inf")
        self.closed = False
        process.on_kill.append(self._process_killed)

    def bind(self, endpoint: str) -> None:
        bound = self._network.routers.get(endpoint)
        if bound is not None and bound.open:
            raise zmq.ZMQError(zmq.EADDRINUSE)
        self._endpoint = endpoint
        self._network.routers[endpoint] = self
        for dealer in list(self._network.dealers.values()):
            if dealer._endpoint == endpoint and dealer.open:
                dealer._flush()

    def connect(self, endpoint: str) -> bytes:
        """The identity that the ROUTER will see."""
        self._endpoint = endpoint
        self._identity = self._network.identity()
        self._network.dealers[self._identity] = self
        return self._identity

    @property
    def open(self) -> bool:
        return not self.closed and self.process.alive

    async def send_multipart(self, frames: list[bytes]) -> None:
        if self.closed:
            raise zmq.ZMQError(zmq.ENOTSOCK)
        if self._kind == zmq.DEALER:
            self._unsent.append(frames)
            self._flush()
            return
        identity, *rest = frames
        dealer = self._network.dealers.get(identity)
        if dealer is not None:  # a ROUTER drops what goes to nobody
            self._send(dealer, rest)

    async def recv_multipart(self) -> list[bytes]:
        while not self._inbox:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._inbox.popleft()

    def close(self) -> None:
        self.closed = True
        self._network.dealers.pop(self._identity, None)
        if self._network.routers.get(self._endpoint) is self:
            del self._network.routers[self._endpoint]

    def _flush(self) -> None:
        router = self._network.routers.get(self._endpoint)
        while self._unsent and router is not None and router.open:
            self._send(router, [self._identity, *self._unsent.popleft()])

    def _send(self, target: SimSocket, frames: list[bytes]) -> None:
        loop = self._network.loop
        arrival = max(loop.time() + self._network.delay(), self._arrivals.get(target, 0.0) + 2e-6)
        self._arrivals[target] = arrival
        _outside.run(loop.call_at, arrival, self._arrive, target, frames)

    def _arrive(self, target: SimSocket, frames: list[bytes]) -> None:
        if not target.open or self._network.loop.time() > self._last_words:
            self._network.lost += 1
            return
        self._network.messages += 1
        target._inbox.append(frames)
        if target._waiting is not None and not target._waiting.done():
            target.process.context.run(target._waiting.set_result, None)

    def _process_killed(self) -> None:
        self._last_words = self._network.loop.time() + self._network.rng.choice([0.0, DELAY_S / 2, SLOW_DELAY_S])
        if self._network.routers.get(self._endpoint) is self:
            del self._network.routers[self._endpoint]
        self._network.dealers.pop(self._identity, None)
