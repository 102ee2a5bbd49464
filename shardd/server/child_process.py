"""A worker or a door as the supervisor sees it: its process, its control channel, its health, and when it may start
again."""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from shardd.runtime.control_messages import (
    HEARTBEAT_TIMEOUT_MS,
    STARTUP_TIMEOUT_MS,
    ControlError,
    MessageDecoder,
    SupervisorMessage,
    WorkerMessage,
    encode_message,
)
from shardd.runtime.inheritance import DoorInheritance, WorkerInheritance, write_inheritance
from shardd.server.worker_template import child_environment

HEALTHY_AFTER_S: Final = 3.0  # who served for so long starts again at once, whatever happened before
RESTARTS_MAX: Final = 20  # in a row without becoming healthy
_BACKOFF_FIRST_S: Final = 0.1
_BACKOFF_MAX_S: Final = 5.0


class ProcessState(enum.Enum):
    DOWN = "down"  # no process; starts again at `restart_at`
    STARTING = "starting"
    READY = "ready"
    GIVEN_UP = "given up"


class Backoff:
    """When a process that died may start again: at once, then after 0.1 s, doubling up to 5 s."""

    def __init__(self) -> None:
        self.unhealthy_deaths = 0

    def delay_s(self, served_s: float) -> float | None:
        """After a death of one that served for `served_s` (0: never ready). None: restart limit reached."""
        if served_s >= HEALTHY_AFTER_S:
            self.unhealthy_deaths = 0
        self.unhealthy_deaths += 1
        if self.unhealthy_deaths == 1:
            return 0.0
        if self.unhealthy_deaths > RESTARTS_MAX:
            return None
        return min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2.0 ** (self.unhealthy_deaths - 2))


class RunningProcess(Protocol):
    """Of a `subprocess.Popen`, what is needed here."""

    @property
    def pid(self) -> int: ...
    def wait(self) -> int: ...
    def kill(self) -> None: ...


class ChildProcess:
    """One process that the supervisor runs. Times are of the monotonic clock, in seconds.

    `command`: what the interpreter runs; the number of the descriptor with the inheritance comes behind it.
    `heartbeat_timeout_ms`: of one that serves."""

    def __init__(self, command: Sequence[str], heartbeat_timeout_ms: int = HEARTBEAT_TIMEOUT_MS) -> None:
        self._command = [*command]
        self._heartbeat_timeout_ms = heartbeat_timeout_ms
        self.state = ProcessState.DOWN
        self.backoff = Backoff()
        self.restart_at = 0.0
        self.respawns = 0
        self.failed_spawns = 0
        self.fatal: str | None = None
        self.pidfd = -1
        self.control: socket.socket | None = None
        self.control_ended = False
        self._process: RunningProcess | None = None
        self._decoder: MessageDecoder[WorkerMessage] = MessageDecoder(WorkerMessage)
        self.heard_at = 0.0
        self._last_seen = 0.0  # behind `heard_at` by what is forgiven
        self._ready_at = 0.0

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def spawn(self, inheritance: WorkerInheritance | DoorInheritance) -> None:
        """Starts the process; `inheritance.control_fd` is filled in here. Raises OSError."""
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        inheritance = msgspec.structs.replace(inheritance, control_fd=theirs.fileno(), respawns=self.respawns)
        inheritance_fd = write_inheritance(inheritance)
        try:
            self._process = self._launched(inheritance_fd, inheritance.descriptors())
            self.pidfd = os.pidfd_open(self._process.pid)
        except OSError:
            own.close()
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                self._process = None
            raise
        finally:
            os.close(inheritance_fd)
            theirs.close()
        own.setblocking(False)
        self.control = own
        self.control_ended = False
        self.state = ProcessState.STARTING
        self.fatal = None
        self.respawns += 1
        self._decoder = MessageDecoder(WorkerMessage)
        self._last_seen = self.heard_at = time.monotonic()

    def _launched(self, inheritance_fd: int, descriptors: list[int]) -> RunningProcess:
        """From nothing. Raises OSError."""
        return subprocess.Popen(
            # -P: nothing is imported from the directory in which the server happens to be started
            [sys.executable, "-P", *self._command, str(inheritance_fd)],
            stdin=subprocess.DEVNULL,
            pass_fds=[inheritance_fd, *descriptors],
            env=child_environment(os.environ),
            process_group=0,  # Ctrl-C reaches the supervisor alone, which stops the others in order
        )

    def send(self, message: SupervisorMessage) -> None:
        """One that does not take its few messages hangs: it is killed; its successor gets the present state."""
        if self.control is None:
            return
        data = encode_message(message)
        try:
            sent = self.control.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # it is dying; its pidfd tells
        if sent != len(data):
            self.kill()

    def receive(self) -> list[WorkerMessage]:
        """What arrived. One that breaks the protocol is killed."""
        messages: list[WorkerMessage] = []
        while self.control is not None:
            try:
                data = self.control.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.control_ended = True  # it is ending; when it does not, it will be taken for one that hangs
                break
            try:
                came = self._decoder.feed(data)
            except ControlError as error:
                self.fatal = str(error)
                self.kill()
                break
            messages += came
            if self.show_life(came):
                self._last_seen = self.heard_at = time.monotonic()
        return messages

    def show_life(self, messages: list[WorkerMessage]) -> bool:
        """Whether they are a sign of life: every byte of a worker is, as its loop sends it."""
        return True

    def close_control(self) -> None:
        if self.control is not None:
            self.control.close()
            self.control = None

    def mark_ready(self) -> None:
        self.state = ProcessState.READY
        self._ready_at = time.monotonic()

    def hangs(self, now: float) -> bool:
        starting = self.state is ProcessState.STARTING and not self.control_ended
        timeout_ms = STARTUP_TIMEOUT_MS if starting else self._heartbeat_timeout_ms
        return self.running and self.silence_s(now) > timeout_ms / 1000

    def silence_s(self, now: float) -> float:
        """Since its last sign of life, without what is forgiven."""
        return now - self._last_seen

    def forgive(self, pause_s: float) -> None:
        """It cannot be blamed for so much of its silence: the supervisor itself did not run, or it stands still."""
        self._last_seen += pause_s

    def kill(self) -> None:
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def reap(self) -> int:
        """After the pidfd became readable: closes what belonged to the process, plans the next start. Exit status as
        subprocess gives it (negative: signal)."""
        assert self._process is not None
        status = self._process.wait()
        served_s = time.monotonic() - self._ready_at if self.state is ProcessState.READY else 0.0
        os.close(self.pidfd)
        self.pidfd = -1
        self.close_control()
        self._process = None
        delay_s = self.backoff.delay_s(served_s)
        if delay_s is None:
            self.state = ProcessState.GIVEN_UP
        else:
            self.state = ProcessState.DOWN
            self.restart_at = time.monotonic() + delay_s
        return status
