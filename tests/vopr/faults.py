"""What the run does to the processes, the disk, the descriptors and the clock of its server."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psutil

from tests.crash.fault_control import FaultControl
from tests.crash.faults import is_running, kill9
from tests.support.server import Server
from tests.support.wall_clock import WallClock
from tests.vopr.plan import FAULTS

STOPPED_S: Final = (0.1, 2.5)
FULL_S: Final = (0.3, 2.0)
FEW_S: Final = (0.5, 2.0)
WORKER_KILLS_MAX: Final = 3  # under one supervisor, which waits longer before each further restart
HOUR_US: Final = 3_600_000_000
JUMPS_US: Final = (2 * HOUR_US, 24 * HOUR_US, 365 * 24 * HOUR_US, -HOUR_US, -24 * HOUR_US)
# What may fail without making a message unreadable: those are a test of their own (corruption/, crash/).
FAILING: Final = (
    ("write", "/partitions/", (errno.EIO, errno.ENOSPC)),
    ("write", ".log$", (errno.EIO, errno.ENOSPC)),
    ("write", "state.messages$", (errno.ENOSPC,)),
    ("write", "/archive/", (errno.EIO, errno.ENOSPC)),
    ("sync", "/partitions/", (errno.EIO,)),
    ("sync", "/archive/", (errno.EIO,)),
    ("open", "/partitions/", (errno.EMFILE, errno.ENFILE, errno.ENOMEM)),
    ("read", ".manifest$", (errno.EIO,)),
    ("read", "consumer-offsets$", (errno.EIO,)),
    ("rename", "/partitions/", (errno.EIO, errno.ENOSPC)),
    ("rename", "/archive/", (errno.EIO, errno.ENOSPC)),
    ("unlink", "/trash/", (errno.EIO,)),
    ("mkdir", "/archive/", (errno.ENOSPC,)),
    ("truncate", ".index$", (errno.EIO,)),
    ("allocate", ".log$", (errno.ENOSPC,)),
)


@contextlib.contextmanager
def small_disk(root: Path, size: str) -> Iterator[bool]:
    """A file system of its own at `root`, which can be full; False where none can be mounted."""
    root.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(root)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(root)], check=False)


class Faults:
    """`revive`: called when the supervisor is gone, starts the next one."""

    def __init__(
        self,
        server: Server,
        control: FaultControl,
        clock: WallClock,
        dice: random.Random,
        revive: Callable[[], None],
        *,
        has_own_disk: bool,
    ) -> None:
        self.server, self.control, self.clock, self.dice, self.revive = server, control, clock, dice, revive
        self.weights = {name: weight for name, weight in FAULTS.items() if has_own_disk or name != "disk full"}
        self.done: Counter[str] = Counter()
        self._worker_kills = 0

    def one(self) -> str:
        """Does one and takes it back; what it was."""
        [name] = self.dice.choices(list(self.weights), list(self.weights.values()))
        about = getattr(self, f"_{name.replace(' ', '_')}")()
        self.done[about] += 1
        return f"{name}: {about}"

    def _processes(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return self.server.processes()
        return []

    def _kill(self) -> str:
        victim = self.dice.choice(("worker", "worker", "any process", "supervisor", "all"))
        if self._worker_kills >= WORKER_KILLS_MAX:
            victim = "all"
        if victim in ("worker", "any process"):
            workers = list(self.server.running_workers().values())
            pids = workers if victim == "worker" else [each.pid for each in self._processes()[1:]]
            if pids:
                self._worker_kills += 1
                kill9(self.dice.choice(pids))
        else:
            self._kill_all(workers_too=victim == "all")
        return f"kill of {victim}"

    def _kill_all(self, *, workers_too: bool = True) -> None:
        processes = [each.pid for each in self._processes()[1:]]
        self.server.kill_supervisor()
        for pid in processes:
            if workers_too and is_running(pid):
                kill9(pid)
        self._worker_kills = 0
        self.revive()

    def _restart(self) -> str:
        self.server.stop()
        self._worker_kills = 0
        self.revive()
        return "orderly restart"

    def _stop(self) -> str:
        processes = self._processes()
        victim = self.dice.choice(processes)
        with contextlib.suppress(ProcessLookupError):
            about = "supervisor" if victim is processes[0] else "another process"
            os.kill(victim.pid, signal.SIGSTOP)
            time.sleep(self.dice.uniform(*STOPPED_S))
            os.kill(victim.pid, signal.SIGCONT)
            return f"stop of {about}"
        return "stop of one that has gone"

    def _disk_full(self) -> str:
        ballast = self.server.data_dir.parent / "ballast"
        try:
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 20))
            with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            time.sleep(self.dice.uniform(*FULL_S))
            if killed := self.dice.random() < 0.3:
                self._kill_all_and_wait_for_room(ballast)
        finally:
            ballast.unlink(missing_ok=True)
        return "kill on a full disk" if killed else "full disk"

    def _kill_all_and_wait_for_room(self, ballast: Path) -> None:
        """The next server starts on the full disk."""
        self._kill_all()
        time.sleep(self.dice.uniform(*FULL_S))
        ballast.unlink(missing_ok=True)

    def _disk_fails(self) -> str:
        operation, path, codes = self.dice.choice(FAILING)
        self.control.arm(operation, path, 1, self.dice.choice(codes), for_ever=True)
        time.sleep(self.dice.uniform(*FULL_S))
        _, failed, _ = self.control.disarm()
        self._kill_all()  # what a failed sync has stopped goes on with the next start
        return f"{operation} fails on {path}" if failed else "no call that is to fail"

    def _few_descriptors(self) -> str:
        workers = list(self.server.running_workers().values())
        if not workers:
            return "no worker has few descriptors"
        pid = self.dice.choice(workers)
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            few = psutil.Process(pid).num_fds() + self.dice.randint(0, 3)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, before[1]))
            time.sleep(self.dice.uniform(*FEW_S))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        return "few descriptors"

    def _clock(self) -> str:
        ahead_us = self.dice.choice(JUMPS_US)
        self.clock.set_us(ahead_us)
        time.sleep(self.dice.uniform(*FULL_S))
        if self.dice.random() < 0.3:
            self._kill_all()
            time.sleep(self.dice.uniform(*FULL_S))
        self.clock.set_us(0)
        return f"clock {ahead_us // HOUR_US:+} h"
