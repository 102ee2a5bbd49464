"""What each server has to tell, and processes that are started for one measurement."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import psutil

from shardd.benchmark.options import BenchError, Options
from shardd.benchmark.servers.connection import CONNECT_TIMEOUT_S, Connection
from shardd.client.values import Stats

if TYPE_CHECKING:
    from shardd.benchmark.plan import Actor

START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 15.0
TOPIC: Final = "topic-1"


@dataclass
class Places:
    """Ids at the server by the numbers of the plan."""

    streams: dict[int, int] = field(default_factory=dict)
    topics: dict[int, int] = field(default_factory=dict)
    groups: dict[int, int] = field(default_factory=dict)


def same_places(options: Options) -> Places:
    """Of servers without ids: the numbers themselves."""
    groups = options.groups if options.kind.groups is not None else 0
    numbers = {number: number for number in range(1, options.streams + 1)}
    return Places(numbers, dict.fromkeys(numbers, 0), {number: number for number in range(1, groups + 1)})


class Server(ABC):
    """`dialect`: of native/load/dialect.h. A server that is started is so for one measurement: it begins empty.

    `durability` says what an acknowledgement means there, `version` who it is: both after `start`.
    """

    name: ClassVar[str] = ""
    dialect: ClassVar[int] = 0
    version: str = ""
    durability: str = "as it is configured"

    def dialect_of(self, options: Options) -> int:
        return self.dialect

    @abstractmethod
    def check(self, options: Options) -> None:
        """BenchError for what this server cannot do, or when it is not there."""

    @abstractmethod
    def start(self, options: Options) -> None:
        """BenchError."""

    @abstractmethod
    def prepare(self, options: Options) -> Places:
        """Streams, topics and groups. BenchError, ClientError, OSError."""

    @abstractmethod
    def open(self, options: Options, actor: Actor) -> Connection:
        """A connection on which an actor can begin, still blocking. BenchError, ClientError, OSError."""

    def stats(self, options: Options) -> Stats | None:
        return None

    def cpu_s(self) -> float | None:
        """CPU time of all its processes; None: it is elsewhere."""
        return None

    def memory_bytes(self) -> int | None:
        """PSS of all its processes; None: it is elsewhere, or nobody may look."""
        return None

    def written_bytes(self) -> int | None:
        """What all its processes have given to block devices; None: it is elsewhere, or nobody may look."""
        return None

    @abstractmethod
    def stop(self) -> None:
        """Also after a start that failed."""


def processes_cpu_s(process_id: int) -> float | None:
    """Of a process and all below it, those that have ended too (these in steps of 10 ms)."""
    try:
        parent = psutil.Process(process_id)
        found = (parent, *parent.children(recursive=True))
        ended = [each.cpu_times() for each in found]
        return sum(time.clock_gettime_ns(_cpu_clock(each.pid)) for each in found) / 1e9 + sum(
            each.children_user + each.children_system for each in ended
        )
    except (psutil.Error, OSError):
        return None


def _cpu_clock(process_id: int) -> int:
    """Of all threads, those that have ended too, as clock_getcpuclockid(3) names it: psutil counts in 10 ms."""
    return (~process_id << 3) | 2


def processes_memory_bytes(process_id: int) -> int | None:
    try:
        parent = psutil.Process(process_id)
        return sum(int(each.memory_full_info().pss) for each in (parent, *parent.children(recursive=True)))
    except psutil.Error:
        return None


def processes_written_bytes(process_id: int) -> int | None:
    """Of a process and all below it, those that have ended too."""
    try:
        parent = psutil.Process(process_id)
        return sum(int(each.io_counters().write_bytes) for each in (parent, *parent.children(recursive=True)))
    except psutil.Error:
        return None


class Started(Server):
    """A server with a directory of its own, on a free port of 127.0.0.1."""

    def __init__(self) -> None:
        self.port = 0
        self.directory = Path()
        self.process_id = 0
        self._process: subprocess.Popen[bytes] | None = None

    def make_directory(self, options: Options) -> Path:
        base = options.directory or tempfile.gettempdir()
        try:
            self.directory = Path(tempfile.mkdtemp(prefix=f"shardd-bench-{self.name}-", dir=base))
        except OSError as error:
            raise BenchError(f"{base}: {error.strerror or error}") from error
        return self.directory

    def run(self, command: Sequence[str], options: Options, environment: Mapping[str, str] | None = None) -> None:
        """Starts a process; what it says is in `log`. BenchError."""
        pinned = ["taskset", "-c", options.server_cpus] if options.server_cpus else []
        try:
            with self.log.open("wb") as log:
                self._process = subprocess.Popen(
                    [*pinned, *command],
                    cwd=self.directory,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # an interrupt of the benchmark is not one of the server
                )
        except OSError as error:
            raise BenchError(f"{command[0]} cannot be started: {error.strerror or error}") from error
        self.process_id = self._process.pid

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    def wait_for(self, ready: str) -> None:
        """Until somebody accepts connections. BenchError with the end of the log."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.is_running():
            if self.port:
                try:
                    self.connect().close()
                    return
                except OSError:
                    pass
            time.sleep(0.02)
        words = self.log.read_text(errors="replace").splitlines()[-5:] if self.log.exists() else []
        raise BenchError(f"{self.name} did not start ({ready}): " + " | ".join(words))

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def connect(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), CONNECT_TIMEOUT_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def cpu_s(self) -> float | None:
        return processes_cpu_s(self.process_id)

    def memory_bytes(self) -> int | None:
        return processes_memory_bytes(self.process_id)

    def written_bytes(self) -> int | None:
        return processes_written_bytes(self.process_id)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None
        if self.directory != Path():
            shutil.rmtree(self.directory, ignore_errors=True)


def free_port() -> int:
    """Nobody listened on it a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def plain_environment() -> dict[str, str]:
    """Without settings that are meant for other servers."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "IGGY_"))}
