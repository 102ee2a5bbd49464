"""The servers under measurement: processes that are started, given streams, and stopped."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import psutil

from bench import lines
from bench.lines import BALANCED_PARTITIONS, GROUP_PARTITIONS, KEYED_PARTITIONS, Line, Placement
from bench.native_build import build
from bench.wire import Wire, send_request
from shardd.protocol.codes import Code

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
STREAMS_TRIED_MAX = 256
DISK_LEFT_BYTES_MAX = 64 << 20
PARTITIONS = {  # of the one stream; else 1
    Placement.KEYED: KEYED_PARTITIONS,
    Placement.GROUP: GROUP_PARTITIONS,
    Placement.BALANCED: BALANCED_PARTITIONS,
    Placement.EIGHT: 8,
    Placement.THOUSAND: 1000,
}
EPOLL = "ours-epoll"  # name of the target that is shardd forced onto epoll
RING = "ring-floor"  # of the floor on io_uring
RING_FEATURES = ("deferred", "multishot", "incremental", "quiet")  # bench/native/floor_ring.h


class Target(Protocol):
    """A running server. `directory` holds everything it writes."""

    name: str
    port: int
    directory: Path

    def make_streams(self, line: Line) -> tuple[list[int], str]:
        """Stream ids for the connections of `line`, and how they are spread."""

    def drop_streams(self, streams: list[int]) -> None: ...

    def serving_cpu(self, stream: int) -> int:
        """CPU of the thread that ends up serving a single connection to partition 0 of `stream`."""

    def cpu_s(self) -> float:
        """CPU time that all processes of the server have used so far, in seconds."""

    def stop(self) -> None: ...


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _cpu_s(process: subprocess.Popen[bytes]) -> float:
    parent = psutil.Process(process.pid)
    times = [each.cpu_times() for each in (parent, *parent.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def _streams_needed(line: Line) -> int:
    shared = line.placement in PARTITIONS or line.placement in (Placement.ONE, Placement.SPREAD)
    return 1 if shared else line.connections


def _for_connections(line: Line, streams: list[int]) -> list[int]:
    return streams * line.connections if line.placement is Placement.ONE else streams


class Floor:
    """The floor (native/load/floor.c; `ring`: bench/native/floor_ring.c) with one thread per CPU, pinned as shardd's
    workers are. `without`: of RING_FEATURES, as if the kernel had them not. `features`: those that the ring has."""

    def __init__(
        self,
        directory: Path,
        cpus: list[int],
        *,
        sync: bool = False,
        offsets: bool = True,
        ring: bool = False,
        without: Sequence[str] = (),
    ) -> None:
        self.name = RING if ring else "floor"
        self.directory = directory
        directory.mkdir(parents=True)
        self._cpus = cpus
        command = [str(build("floor")), "--directory", str(directory), "--threads", str(len(cpus))]
        command += [*(["--sync"] if sync else []), *(["--offsets"] if offsets else []), *(["--ring"] if ring else [])]
        command += [word for feature in without for word in ("--without", feature)]
        self._process = subprocess.Popen([*command, "--cpus", ",".join(map(str, cpus))], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], READY_TIMEOUT_S)
        words = self._process.stdout.readline().decode().split() if ready else []
        if len(words) < 2:
            _stop(self._process)
            raise RuntimeError(f"the {self.name} server did not start")
        self.port, self.features = int(words[1]), tuple(words[2:])

    def make_streams(self, line: Line) -> tuple[list[int], str]:
        """Nothing has to be made: the floor opens a file at the first append."""
        threads = len(self._cpus)
        per_thread = [len(range(thread, line.connections, threads)) for thread in range(threads)]
        return _for_connections(line, list(range(_streams_needed(line)))), ":".join(map(str, per_thread))

    def drop_streams(self, streams: list[int]) -> None:
        with Wire(self.port) as wire:
            for stream in dict.fromkeys(streams):
                wire.delete_stream(stream)

    @property
    def process_id(self) -> int:
        return self._process.pid

    def serving_cpu(self, stream: int) -> int:
        """The first thread's: it gets a connection when all threads are free."""
        return self._cpus[0]

    def cpu_s(self) -> float:
        return _cpu_s(self._process)

    def stop(self) -> None:
        _stop(self._process)


class Shardd:
    """`shardd serve` with its own data directory, configured through the environment only."""

    def __init__(
        self, directory: Path, cpus: list[int], command: str | None, settings: Mapping[str, str], name: str = "shardd"
    ) -> None:
        self.name = name
        directory.mkdir(parents=True)
        self.directory = directory / "data"
        self.shards = len(cpus)
        self._cpus = cpus  # cpu_allocation N takes the first N of the cpuset, as the caller did
        self.configuration = {
            "SHARDD_TCP_ADDRESS": "127.0.0.1:0",
            "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": str(len(cpus)),
            **settings,
        }
        self._log = directory / "server.log"
        words = shlex.split(command) if command else [str(Path(sys.executable).with_name("shardd"))]
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("SHARDD_", "IGGY_"))}
        environment |= self.configuration | {"SHARDD_SYSTEM_PATH": str(self.directory)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*words, "serve", "--with-default-root-credentials"],
                env=environment,
                cwd=directory,  # early builds import from the current directory: theirs, not this checkout's
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self.port = self._wait_ready()
        except BaseException:
            _stop(self._process)
            raise

    def _wait_ready(self) -> int:
        path = self.directory / "runtime" / "current_config.toml"
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if path.exists():
                address = str(tomllib.loads(path.read_text())["tcp"]["address"])
                return int(address.rpartition(":")[2])
            time.sleep(0.02)
        raise RuntimeError("shardd did not become ready:\n" + self.log_tail())

    @property
    def process_id(self) -> int:
        """Of the supervisor."""
        return self._process.pid

    def log_tail(self, lines_max: int = 20) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines_max:])

    def start_line(self) -> str:
        """The start-up line with version, engine and CPUs."""
        found = [text for text in self._log.read_text(errors="replace").splitlines() if "ready" in text]
        return found[0].strip() if found else "(no start-up line)"

    def make_streams(self, line: Line) -> tuple[list[int], str]:
        spread = line.placement is Placement.SPREAD
        partitions = self.shards if spread else PARTITIONS.get(line.placement, 1)
        with Wire(self.port) as wire:
            if line.placement is Placement.EVEN:
                streams = self._even(wire, line.connections)
            elif spread:
                streams = [self._spread(wire)]
            else:
                streams = [wire.create_stream(f"bench-{number}") for number in range(_streams_needed(line))]
            for stream in streams:
                if wire.create_topic(stream, "bench", partitions) != 0:
                    raise RuntimeError("the first topic of a stream must have id 0")
                if line.placement is Placement.GROUP and wire.create_group(stream, "bench") != 0:
                    raise RuntimeError("the first group of a topic must have id 0")
        return _for_connections(line, streams), lines.share(streams, self.shards, partitions)

    def _spread(self, wire: Wire) -> int:
        """A stream whose first partitions, one for each shard, have different owners."""
        tried = []
        for number in range(STREAMS_TRIED_MAX):
            tried.append(wire.create_stream(f"bench-{number}"))
            if lines.share(tried[-1:], self.shards, self.shards) == ":".join("1" * self.shards):
                break
        else:
            raise RuntimeError(f"{STREAMS_TRIED_MAX} streams have no partition on each of {self.shards} shards")
        for surplus in tried[:-1]:
            wire.delete_stream(surplus)
        return tried[-1]

    def _even(self, wire: Wire, count: int) -> list[int]:
        wanted = {shard: count // self.shards + (shard < count % self.shards) for shard in range(self.shards)}
        kept: list[int] = []
        surplus: list[int] = []
        for number in range(STREAMS_TRIED_MAX):
            stream = wire.create_stream(f"bench-{number}")
            shard = lines.owner(stream, self.shards)
            (kept if wanted[shard] else surplus).append(stream)
            wanted[shard] -= bool(wanted[shard])
            if len(kept) == count:
                break
        for stream in surplus:
            wire.delete_stream(stream)
        if len(kept) < count:
            raise RuntimeError(f"{STREAMS_TRIED_MAX} streams do not spread evenly over {self.shards} shards")
        return sorted(kept)

    def drop_streams(self, streams: list[int]) -> None:
        with Wire(self.port) as wire:
            for stream in dict.fromkeys(streams):
                wire.delete_stream(stream)
            self._empty_trash(wire)

    def _empty_trash(self, wire: Wire) -> None:
        """Shard 0 looks into the trash when files of its own go there, else every 15 s: something of it goes last."""
        for number in range(STREAMS_TRIED_MAX):
            stream = wire.create_stream(f"bench-last-{number}")
            last = lines.owner(stream, self.shards) == 0
            if last:
                wire.create_topic(stream, "bench", 1)
                wire.request(Code.SEND_MESSAGES, send_request(stream, b"x"))
            wire.delete_stream(stream)
            if last:
                return

    def serving_cpu(self, stream: int) -> int:
        """The owner's: a connection moves there after its first requests."""
        return self._cpus[lines.owner(stream, self.shards)]

    def cpu_s(self) -> float:
        return _cpu_s(self._process)

    def worker_pid(self, shard: int) -> int:
        """Process id of a worker. RuntimeError when it does not run."""
        for child in psutil.Process(self._process.pid).children():
            if " ".join(child.cmdline()).startswith(f"shardd: shard {shard}"):
                return child.pid
        raise RuntimeError(f"shard {shard} does not run")

    def stop(self) -> None:
        _stop(self._process)


def disk_bytes(directory: Path) -> int:
    """Bytes that the files below `directory` occupy; files that vanish meanwhile do not count."""
    total = 0
    for parent, _, names in os.walk(directory):
        for file in names:
            try:
                total += (Path(parent) / file).lstat().st_blocks * 512
            except OSError:
                continue
    return total


def wait_for_free_disk(directory: Path, timeout_s: float = 10.0) -> None:
    """Waits until deleted segments are really gone, so that the next measurement recycles their pages."""
    deadline = time.monotonic() + timeout_s
    while disk_bytes(directory) > DISK_LEFT_BYTES_MAX and time.monotonic() < deadline:
        time.sleep(0.05)
