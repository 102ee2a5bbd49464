"""Doors: processes of a server that speak other protocols with its clients (docs/adr/0032-doors-are-processes.md). The
supervisor runs, watches and replaces them as it does workers, but no worker and no client of one ever waits for a door.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from shardd.config.logs import Logging
from shardd.runtime.control_messages import (
    DOOR_HEARTBEAT_TIMEOUT_MS,
    PeerUp,
    Stalls,
    SupervisorMessage,
    WorkerMessage,
    newest_lines,
)
from shardd.runtime.inheritance import DoorInheritance
from shardd.runtime.recent_logs import recent_lines
from shardd.runtime.trust import PeerKey
from shardd.server.child_process import ChildProcess, ProcessState
from shardd.server.door_listeners import DoorListeners
from shardd.server.introductions import Introductions
from shardd.server.standstill import BUSY_SHARE, ThreadSample
from shardd.server.thread_samples import read_thread

STOP_DOORS_S: Final = 3.0  # what doors are told; the workers answer what is under way meanwhile
LOOK_AFTER_S: Final = 1.0  # of silence: then its loop's thread is looked at in every tick
_log = logging.getLogger(__name__)


class DoorSpecification(msgspec.Struct, frozen=True):
    """One door: its name, and what the interpreter runs for it (`"-m", "package.module"`, or a path). `addresses`:
    where its clients connect, by the setting that says so; `options`: its own settings, as it decodes them.
    `before_workers`: it starts first, else when all workers serve. `cpus`: where it runs; none: on all. `listens_as`:
    the door whose addresses it shares."""

    name: str
    command: tuple[str, ...]
    addresses: dict[str, str] = {}
    options: bytes = b""
    before_workers: bool = False
    cpus: tuple[int, ...] = ()
    listens_as: str = ""


class DoorProcess(ChildProcess):
    """The process of one door."""

    def __init__(self, door: DoorSpecification) -> None:
        super().__init__(door.command, DOOR_HEARTBEAT_TIMEOUT_MS)
        self.name = door.name
        self.options = door.options
        self.before_workers = door.before_workers
        self.cpus = door.cpus
        self.listens_as = door.listens_as or door.name
        self._progress = -1
        self._looked: tuple[float, ThreadSample] | None = None  # when, and what its loop's thread did

    def show_life(self, messages: list[WorkerMessage]) -> bool:
        """A thread of it says how far its loop has come: only a loop that has moved is alive."""
        before = self._progress
        for message in messages:
            if message.heartbeat is not None:
                self._progress = message.heartbeat
        return self._progress != before or any(message.ready is not None for message in messages)

    def starved_s(self, now: float) -> float:
        """Seconds of its silence since the last call for which its loop could run and got next to no CPU. Another
        process would get none either, and the connections of this one would be lost."""
        before, self._looked = self._looked, self._look(now) if now - self._last_seen > LOOK_AFTER_S else None
        if before is None or self._looked is None or self._looked[1].state != "R":
            return 0.0
        elapsed_s, ran_s = now - before[0], (self._looked[1].cpu_ns - before[1].cpu_ns) / 1e9
        return elapsed_s if ran_s < BUSY_SHARE * elapsed_s else 0.0

    def _look(self, now: float) -> tuple[float, ThreadSample] | None:
        try:
            return now, read_thread(self.pid)
        except (OSError, ValueError, IndexError):
            return None  # it has just ended


class DoorKeeper:
    """All doors of a server. Lives in the supervisor. Times are of the monotonic clock, in seconds."""

    def __init__(
        self,
        doors: Sequence[DoorSpecification],
        introductions: Introductions,
        selector: selectors.BaseSelector,
        shards: int,
        logs: Logging,
        version: str,
        listeners: DoorListeners | None = None,
        tls_fd: int = -1,
    ) -> None:
        self._tls_fd = tls_fd
        self._listeners = listeners or DoorListeners()
        self._doors = [DoorProcess(door) for door in doors]
        self._introductions = introductions
        self._selector = selector
        self._shards = shards
        self._logs = logs
        self._version = version
        self._down: set[int] = set()  # shards
        self._stalls = Stalls([], {}, {})
        self._stopping = False

    @property
    def any_running(self) -> bool:
        return any(door.running for door in self._doors)

    def start_first(self) -> None:
        """Those that tell others that workers are on their way."""
        for door in self._doors:
            if door.before_workers:
                self._spawn(door)

    def start(self) -> None:
        """When every worker serves."""
        for door in self._doors:
            if not door.before_workers:
                self._spawn(door)

    def stop(self) -> None:
        """Who connects from now on is refused."""
        self._stopping = True
        self._listeners.close()
        self._tell(SupervisorMessage(stop=STOP_DOORS_S))

    def kill_all(self) -> bool:
        """Whether there was one to kill."""
        for door in self._doors:
            if door.running:
                _log.error("door %s (process %d) is killed", door.name, door.pid)
                door.kill()
        return self.any_running

    def tell_stalls(self, stalls: Stalls) -> None:
        """Which shards stand still now."""
        self._stalls = stalls
        self._tell(SupervisorMessage(stalls=stalls))

    def tls_changed(self) -> None:
        """Certificates were read again."""
        self._tell(SupervisorMessage(tls=True))

    def worker_died(self, shard: int) -> None:
        """Its sessions are gone; what its next process is proven with."""
        self._down.add(shard)
        for door in self._doors:
            door.send(SupervisorMessage(peer_key=self._introductions.key_for_door(shard, door.name)))
            door.send(SupervisorMessage(peer_down=shard))

    def worker_ready(self, shard: int, generation: int) -> None:
        self._down.discard(shard)
        self._tell(SupervisorMessage(peer_up=PeerUp(shard, generation)))

    def use_logs(self, logs: Logging) -> None:
        """From now on, and those that start later."""
        self._logs = logs
        self._tell(SupervisorMessage(log_level=logs.level))

    def on_event(self, door: DoorProcess, fd: int) -> PeerNews:
        """Its channel or its pidfd is ready. What every worker must know then."""
        if door.running and fd == door.pidfd:
            return self._on_death(door)
        if door.control is not None and fd == door.control.fileno():
            self._on_control(door)
        return []

    def look(self, now: float, supervisor_pause_s: float) -> None:
        """Replaces who hangs, and starts again whose time has come."""
        if self._stopping:
            return
        for door in self._doors:
            if supervisor_pause_s:
                door.forgive(supervisor_pause_s)
            door.forgive(door.starved_s(now))
            if door.hangs(now):
                _log.error(
                    "door %s (process %d) gives no sign of life; it is replaced after %.3f s",
                    *(door.name, door.pid, door.silence_s(now)),
                )
                door.kill()
                door.forgive(10.0)  # its death arrives through the pidfd; until then one line is enough
            if door.state is ProcessState.DOWN and door.respawns and now >= door.restart_at:
                self._spawn(door)

    def _spawn(self, door: DoorProcess) -> None:
        inheritance = DoorInheritance(
            name=door.name,
            shards=self._shards,
            control_fd=-1,
            trust=self._introductions.inheritance_of_door(door.name),
            logging=self._logs,
            supervisor_pid=os.getpid(),
            version=self._version,
            respawns=0,
            listener_fds=self._listeners.descriptors_of(door.listens_as),
            options=door.options,
            cpus=list(door.cpus),
            tls_fd=self._tls_fd,
            addresses=self._listeners.actual,
        )
        try:
            door.spawn(inheritance)
        except OSError as error:  # no process, memory or descriptor
            _log.error("cannot start door %s: %s", door.name, error)
            door.respawns = max(door.respawns, 1)
            door.restart_at = time.monotonic() + 1.0
            return
        assert door.control is not None
        self._selector.register(door.control, selectors.EVENT_READ, door)
        self._selector.register(door.pidfd, selectors.EVENT_READ, door)
        for shard in self._down:
            door.send(SupervisorMessage(peer_down=shard))
        if self._stalls.standing:
            door.send(SupervisorMessage(stalls=self._stalls))
        _log.debug("started process %d for door %s", door.pid, door.name)

    def _on_control(self, door: DoorProcess) -> None:
        for message in door.receive():
            if message.fatal is not None:
                door.fatal = message.fatal
            elif message.ready is not None:
                door.mark_ready()
                _log.info("door %s serves (process %d)", door.name, door.pid)
            elif message.logs:
                door.send(SupervisorMessage(logs=newest_lines(recent_lines())))
        if door.control is not None and door.control_ended:  # else the selector would report its end for ever
            self._selector.unregister(door.control)
            door.close_control()

    def _on_death(self, door: DoorProcess) -> PeerNews:
        self._on_control(door)  # its last words
        self._selector.unregister(door.pidfd)
        if door.control is not None:
            self._selector.unregister(door.control)
        pid = door.pid
        status = door.reap()
        self._introductions.door_ended(door.name)
        if self._stopping:
            if status != 0:
                _log.error("door %s (process %d) ended with %s", door.name, pid, describe_status(status))
            return []
        why = f": {door.fatal}" if door.fatal else ""
        _log.error("door %s (process %d) ended with %s%s", door.name, pid, describe_status(status), why)
        if door.fatal:
            door.state = ProcessState.GIVEN_UP
        if door.state is ProcessState.GIVEN_UP:
            _log.error("door %s is given up; the server goes on without it", door.name)
        return [(shard, self._introductions.door_key(door.name, shard)) for shard in range(self._shards)]

    def _tell(self, message: SupervisorMessage) -> None:
        for door in self._doors:
            door.send(message)


PeerNews = list[tuple[int, PeerKey]]
"""(shard, what its worker must know of the next process of a door)."""


def describe_status(status: int) -> str:
    """How a process ended, as subprocess gives it."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
