"""A worker's or a door's end of the control channel (control_messages.py): heartbeats out, peers and stop in. Loop
thread only."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Final

from shardd.config.schema import Server as ServerLimits
from shardd.runtime.bounded_loop import Progress
from shardd.runtime.control_messages import (
    HEARTBEAT_INTERVAL_MS,
    MessageDecoder,
    Ready,
    Stalls,
    SupervisorMessage,
    WorkerMessage,
    encode_message,
)
from shardd.runtime.log_levels import set_level
from shardd.runtime.sign_of_life import SignOfLife
from shardd.runtime.trust import PeerKey

PAUSE_S: Final = 0.5  # a heartbeat so late means that this loop stood still

LOGS_TIMEOUT_S: Final = 0.5


class ControlLink:
    """`peer_down` is called with a shard number, after `peer_key`; `peer_up` also with the generation of its process;
    `paused` with the seconds for which this loop stood still, `door_key` after the death of a door, `tls`
    when there are other certificates, `limits` with those of `server.*`, `drain` when no new clients are wanted.
    `connections` is asked from then on. Made inside a running loop; beats from then on: by itself, or with `progress`
    by a thread that tells that."""

    def __init__(
        self,
        fd: int,
        peer_down: Callable[[int], None],
        peer_up: Callable[[int, int], None],
        peer_key: Callable[[PeerKey], None],
        stalls: Callable[[Stalls], None] = lambda stalls: None,
        paused: Callable[[float], None] = lambda seconds: None,
        door_key: Callable[[PeerKey], None] = lambda key: None,
        tls: Callable[[], object] = lambda: None,
        limits: Callable[[ServerLimits], object] = lambda limits: None,
        drain: Callable[[], object] = lambda: None,
        connections: Callable[[], int] = lambda: 0,
        progress: Progress | None = None,
    ) -> None:
        self._socket = socket.socket(fileno=os.dup(fd))
        self._socket.setblocking(False)
        self._decoder = MessageDecoder(SupervisorMessage)
        self._peer_down = peer_down
        self._peer_up = peer_up
        self._stalls = stalls
        self._paused = paused
        self._peer_key = peer_key
        self._door_key = door_key
        self._tls = tls
        self._limits = limits
        self._drain = drain
        self._connections = connections
        self._draining = False
        self._loop = asyncio.get_running_loop()
        self._stop: asyncio.Future[float] = self._loop.create_future()
        self._beats = 0
        self._due = self._loop.time()
        self._logs: asyncio.Future[list[str]] | None = None
        self._loop.add_reader(self._socket, self.hear)
        self._life = None if progress is None else SignOfLife(progress, self._tell_progress)
        if self._life is not None:
            self._life.start()
        self._beat()

    def ready(self, root_created: bool = False, generation: int = 0) -> None:
        """The shard serves, or the door, which has neither."""
        self._send(WorkerMessage(ready=Ready(root_created, generation)))

    async def supervisor_logs(self) -> list[str]:
        """The newest log lines of the supervisor; none when it does not answer in time. It is asked again only when it
        has answered: its answers never pile up in the socket."""
        if self._logs is None:
            self._logs = self._loop.create_future()
            self._send(WorkerMessage(logs=True))
        try:
            return await asyncio.wait_for(asyncio.shield(self._logs), LOGS_TIMEOUT_S)
        except TimeoutError:
            return []

    async def stop_requested(self) -> float:
        """Waits for the stop; seconds that are left for it."""
        return await self._stop

    def close(self) -> None:
        self._timer.cancel()
        if self._life is not None:
            self._life.end()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _beat(self) -> None:
        self._beats += 1
        if self._life is None:
            self._send(WorkerMessage(self._beats, connections=self._connections() if self._draining else None))
        now = self._loop.time()
        if now - self._due > PAUSE_S:
            self._paused(now - self._due)  # before any timer that is due since then runs
        self._due = now + HEARTBEAT_INTERVAL_MS / 1000
        self._timer = self._loop.call_at(self._due, self._beat)

    def _tell_progress(self, count: int) -> None:
        self._send(WorkerMessage(count))

    def _send(self, message: WorkerMessage) -> None:
        """Lines are far smaller than the socket's buffer; a supervisor that does not read them is about to end us."""
        try:
            self._socket.send(encode_message(message))
        except BlockingIOError:
            return
        except OSError:
            os._exit(1)  # the supervisor is gone: a worker never outlives it

    def hear(self) -> None:
        """Follows everything that the supervisor has said so far."""
        while True:
            try:
                data = self._socket.recv(65_536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                os._exit(1)
            self._follow(data)

    def _follow(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            if message.peer_down is not None:
                self._peer_down(message.peer_down)
            elif message.peer_up is not None:
                self._peer_up(message.peer_up.shard, message.peer_up.generation)
            elif message.stalls is not None:
                self._stalls(message.stalls)
            elif message.peer_key is not None:
                self._peer_key(message.peer_key)
            elif message.door_key is not None:
                self._door_key(message.door_key)
            elif message.tls:
                self._tls()
            elif message.limits is not None:
                self._limits(message.limits)
            elif message.drain:
                self._drain()
                self._draining = True
            elif message.log_level:
                set_level(message.log_level)
            elif message.stop is not None and not self._stop.done():
                self._stop.set_result(message.stop)
            elif message.logs is not None and self._logs is not None:
                self._logs.set_result(message.logs)
                self._logs = None
