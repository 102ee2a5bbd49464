"""A real server for tests: `shardd serve` as a process of its own, on a free port, stopped and killed by process id."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from weakref import WeakSet

import psutil

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 60.0
_TITLE: Final = re.compile(r"shardd: shard (\d+)")
IO_ENGINE_VARIABLE: Final = "SHARDD_SYSTEM_IO_ENGINE"
ONE_SHARD: Final = {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "1"}  # a worker less to start, where one is enough
TWO_SHARDS: Final = {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}
UP_TO_TWO_SHARDS: Final = {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": str(min(2, len(os.sched_getaffinity(0))))}
CHEAP_HASHES: Final = {"SHARDD_SERVER_PASSWORD_HASH_MEMORY": "1 MiB", "SHARDD_SERVER_PASSWORD_HASH_PASSES": "1"}
OF_TESTS: Final[dict[str, str]] = {}  # what conftest.py adds to the settings of each server; batteries serve as anybody
_READY: Final = re.compile(r" (\d+) shards? on CPU ")
SERVERS: Final[WeakSet[Server]] = WeakSet()  # what a failed test prints the logs of


def io_engine_environment() -> dict[str, str]:
    """The engine that this test run asks for, as every server of it gets it; empty: the default."""
    wanted = os.environ.get(IO_ENGINE_VARIABLE)
    return {IO_ENGINE_VARIABLE: wanted} if wanted else {}


def children_of(pid: int) -> list[psutil.Process]:
    """Those that run now; none of a process that has ended. Tests ask in loops, and `psutil.Process.children` takes
    3 ms: it reads the state of every process of the machine."""
    found: list[psutil.Process] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            for child in thread.read_text().split():
                with contextlib.suppress(psutil.NoSuchProcess):
                    found.append(psutil.Process(int(child)))
    return found


class Server:
    """One `shardd serve`; can be started again after it ended. Also a context manager.

    `env`: settings as SHARDD_ (or IGGY_) variables; those of the test's own environment do not reach the server,
    but for SHARDD_SYSTEM_IO_ENGINE: with it every test runs on the other engine.
    `launcher`: a command that ends in executing the server.
    The output of all its processes is in `log_path`, beside the data directory.
    """

    def __init__(
        self,
        data_dir: Path,
        env: Mapping[str, str] | None = None,
        arguments: Sequence[str] = ("--with-default-root-credentials",),
        launcher: Sequence[str] = (),
    ) -> None:
        SERVERS.add(self)
        self.data_dir = data_dir
        self.log_path = data_dir.with_name(f"{data_dir.name}.log")
        self.address = ""
        self._env = dict(env or {})
        # --dev has a temporary directory of its own: `start` cannot wait for it, `spawn` can be used
        self._arguments = [*arguments] if "--dev" in arguments else [*arguments, "--data", str(data_dir)]
        self._launcher = [*launcher]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---- life ----

    def change(self, env: Mapping[str, str]) -> None:
        """Settings from the next start on."""
        self._env |= env

    def spawn(self) -> subprocess.Popen[bytes]:
        """Starts the process and does not wait for it to be ready."""
        assert self._process is None or self._process.poll() is not None, "it runs already"
        if self.runtime_config.exists():  # a killed server leaves its own behind; an unlink may wait for the device
            self.runtime_config.unlink()
        self.address = ""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "IGGY_"))}
        environment |= {"SHARDD_TCP_ADDRESS": "127.0.0.1:0"} | OF_TESTS | io_engine_environment() | self._env
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._launcher, *self._command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        return self._process

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "shardd", "serve", *self._arguments]

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Returns when the server is ready; `address` is known then. RuntimeError with its log when it ends instead."""
        self.spawn()
        self.wait_ready(timeout_s)

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """What `start` does after `spawn`."""
        process = self._process
        assert process is not None, "never started"
        deadline = time.monotonic() + timeout_s
        while not self.runtime_config.exists():
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with status {process.returncode}:\n{self.log()}")
            if time.monotonic() > deadline:
                self.kill_supervisor()
                raise RuntimeError(f"the server was not ready within {timeout_s} s:\n{self.log()}")
            time.sleep(0.01)
        self.address = tomllib.loads(self.runtime_config.read_text())["tcp"]["address"]

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM, then waits; exit status. Killed when it takes longer. An ended server: its status."""
        assert self._process is not None, "never started"
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill_supervisor()
        return self._process.returncode

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Waits for its end; exit status. subprocess.TimeoutExpired."""
        assert self._process is not None, "never started"
        return self._process.wait(timeout_s)

    def kill_supervisor(self) -> None:
        """SIGKILL to the supervisor alone, as a crash would; its workers must follow by themselves."""
        assert self._process is not None, "never started"
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)

    # ---- what is known about it ----

    @property
    def started(self) -> bool:
        """True from the first start on, also after its end."""
        return self._process is not None

    @property
    def supervised(self) -> bool:
        """False when the supervisor has ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def runtime_config(self) -> Path:
        return self.data_dir / "runtime" / "current_config.toml"

    @property
    def endpoint(self) -> tuple[str, int]:
        """`address` as socket.create_connection wants it."""
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        assert self._process is not None, "never started"
        return self._process.pid

    def running_workers(self) -> dict[int, int]:
        """Process ids of the workers that run now, by shard."""
        workers: dict[int, int] = {}
        for child in children_of(self.pid):
            try:
                title = _TITLE.match(" ".join(child.cmdline()))
                if title is not None and child.status() != psutil.STATUS_ZOMBIE:
                    workers[int(title[1])] = child.pid
            except psutil.NoSuchProcess:
                continue
        return workers

    def worker_pids(self, timeout_s: float = START_TIMEOUT_S) -> list[int]:
        """Process ids of all workers, by shard; waits for one that is being replaced. TimeoutError."""
        starts = _READY.findall(self.log())
        assert starts, "not ready yet"
        shards = int(starts[-1])
        deadline = time.monotonic() + timeout_s
        while True:
            workers = self.running_workers()
            if len(workers) == shards:
                return [workers[shard] for shard in range(shards)]
            if time.monotonic() > deadline:
                raise TimeoutError(f"only shards {sorted(workers)} of {shards} run:\n{self.log()}")
            time.sleep(0.01)

    def processes(self) -> list[psutil.Process]:
        """Supervisor and workers, for memory and CPU figures."""
        supervisor = psutil.Process(self.pid)
        return [supervisor, *supervisor.children(recursive=True)]

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
