"""The ZeroMQ sockets of the bus, between processes that trust each other (trust.py).

A ROUTER listens on the inherited socket; it takes connections of the own user only, and asks `Trust` about name and key
(PLAIN; ZAP is the way in which ZeroMQ asks). Every message then bears the id under which its connection was let in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import Final, Protocol

import zmq
import zmq.asyncio

from shardd.runtime.trust import WRONG_KEY, Trust, TrustInheritance, place_path, shard_name

QUEUE_MESSAGES_MAX: Final = 4096  # of one socket; a sender waits for room
MESSAGE_BYTES_MAX: Final = 256 << 20
HANDSHAKE_TIMEOUT_MS: Final = 5_000  # who says nothing for so long is closed
_RECONNECT_INTERVAL_MS: Final = 10
_RECONNECT_INTERVAL_MAX_MS: Final = 100
_CLOSE_LINGER_MS: Final = 200
_REPORT_INTERVAL_S: Final = 10.0
_PREDECESSOR_S: Final = 5.0  # so long after our start a worker may bring the key that our predecessor had with it
_ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
_ALLOWED, _REFUSED = b"200", b"400"
_log = logging.getLogger(__name__)


class BusSockets(Protocol):
    """What the bus of one shard needs; a network of its own in the simulator."""

    def listen(self) -> zmq.asyncio.Socket:
        """The ROUTER that the others reach. Raises zmq.ZMQError."""

    def dial(self, shard: int) -> zmq.asyncio.Socket:
        """A DEALER to another shard."""

    async def receive(self, router: zmq.asyncio.Socket) -> tuple[int, list[bytes]]:
        """The next message and the shard that has sent it."""

    @property
    def refused_count(self) -> int:
        """Connections and messages that were not let in."""

    def close(self) -> None:
        """When all sockets are closed."""


class TrustedSockets:
    """`hear()` has everything followed that the supervisor has said: a new process comes right after its key.
    Loop thread only."""

    def __init__(self, inheritance: TrustInheritance, trust: Trust, shards: int, hear: Callable[[], None]) -> None:
        self._inheritance = inheritance
        self._trust = trust
        self._hear = hear
        self._shards = {shard_name(shard): shard for shard in range(shards)}
        self._context = zmq.asyncio.Context()
        self._zap: zmq.asyncio.Socket | None = None
        self._judge: asyncio.Task[None] | None = None
        self._report_at = 0.0
        self._started_at = time.monotonic()
        self.refused_count = 0

    def listen(self) -> zmq.asyncio.Socket:
        self._zap = self._context.socket(zmq.ROUTER)
        self._zap.setsockopt(zmq.LINGER, 0)
        self._zap.bind(_ZAP_ENDPOINT)
        self._judge = asyncio.create_task(self._judge_connections(self._zap), name="bus connections")
        router = self._socket(zmq.ROUTER, _CLOSE_LINGER_MS)
        # Replies are bounded by the requests that a peer has on the way; a limit here would make a ROUTER drop them.
        router.setsockopt(zmq.SNDHWM, 0)
        router.setsockopt(zmq.PLAIN_SERVER, 1)
        router.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())
        router.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_TIMEOUT_MS)
        listener_fd = self._inheritance.listener_fd
        router.setsockopt(zmq.USE_FD, os.dup(listener_fd))  # the socket closes its own
        router.bind(f"ipc://{place_path(listener_fd)}")  # what it is called does not matter
        return router

    def dial(self, shard: int) -> zmq.asyncio.Socket:
        name = shard_name(shard)
        own_id, key = self._trust.credentials(name)
        dealer = self._socket(zmq.DEALER, 0)
        dealer.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES_MAX)
        dealer.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_INTERVAL_MS)
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_INTERVAL_MAX_MS)
        dealer.setsockopt_string(zmq.PLAIN_USERNAME, own_id)
        dealer.setsockopt_string(zmq.PLAIN_PASSWORD, key)
        dealer.connect(f"ipc://{place_path(self._inheritance.places[name])}")
        return dealer

    async def receive(self, router: zmq.asyncio.Socket) -> tuple[int, list[bytes]]:
        while True:
            frames = await router.recv_multipart(copy=False)
            sender = self._sender(frames[-1])
            if sender is not None:
                return sender, [frame.bytes for frame in frames]
            self._refused("a message of a connection whose process is dead")

    def close(self) -> None:
        if self._judge is not None:
            self._judge.cancel()
        if self._zap is not None:
            self._zap.close()
        self._context.term()

    def _socket(self, kind: int, linger_ms: int) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, linger_ms)
        socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES_MAX)
        socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        return socket

    def _sender(self, frame: zmq.Frame) -> int | None:
        name = self._trust.sender(str(frame.get("User-Id")))
        return None if name is None else self._shards.get(name)

    async def _judge_connections(self, zap: zmq.asyncio.Socket) -> None:
        """Answers the questions of the ROUTER (ZeroMQ RFC 27)."""
        while True:
            frames = await zap.recv_multipart()
            end = frames.index(b"") + 1
            version, number, _domain, address, _identity, mechanism, *credentials = frames[end:]
            refusal = self._judge_one(address.decode(), mechanism, credentials)
            if refusal is not None:
                self._refused(f"a connection of {address.decode()} (uid:gid:pid): {refusal}", refusal == WRONG_KEY)
            user = credentials[0] if refusal is None else b""
            with contextlib.suppress(zmq.ZMQError):
                status = _ALLOWED if refusal is None else _REFUSED
                await zap.send_multipart([*frames[:end], version, number, status, b"", user, b""])

    def _judge_one(self, address: str, mechanism: bytes, credentials: list[bytes]) -> str | None:
        """`address`: what the kernel says, "localhost:uid:gid:pid"."""
        if mechanism != b"PLAIN" or len(credentials) != 2:
            return "it brings no key"
        self._hear()
        id_, key = (each.decode(errors="replace") for each in credentials)
        _, uid, _, _ = address.rsplit(":", 3)
        return self._trust.refusal(int(uid), id_, key)

    def _refused(self, what: str, wrong_key: bool = False) -> None:
        """One line in 10 s; all are counted."""
        self.refused_count += 1
        if wrong_key and time.monotonic() - self._started_at < _PREDECESSOR_S:
            return
        now = asyncio.get_running_loop().time()
        if now >= self._report_at:
            self._report_at = now + _REPORT_INTERVAL_S
            _log.warning("the bus refuses %s", what)
