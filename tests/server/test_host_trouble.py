"""A host that is not as it should be: clocks that jump, limits of the process, foreign users, no memory. A start that
cannot work is refused with a sentence; a running server goes on or comes back, and loses nothing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.server import ONE_SHARD, Server
from tests.support.wall_clock import WallClock

MIB = 1 << 20
PARTITIONS = 4
LOAD_S = 6.0
CGROUP_BYTES = 120 * MIB  # an idle server of two shards uses 80 MiB of it
PAYLOAD_BYTES = 1_000_000
HOUR_S = 3600
TEN_YEARS_S = 87_600 * HOUR_S


def refusal(server: Server) -> str:
    """What the log of a server says that must not start; no traceback, no second try without end."""
    process = server.spawn()
    try:
        assert process.wait(30) == 1
    finally:
        if process.poll() is None:
            server.kill_supervisor()
    log = server.log()
    assert "Traceback" not in log, log
    return log


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ("--fsize=1000000", "what the workers share cannot be made: File too large"),
        ("--nofile=24", "the server cannot start"),
    ],
)
def test_a_limit_that_no_server_fits_in_is_told_and_ends_the_start(tmp_path: Path, limit: str, sentence: str) -> None:
    assert sentence in refusal(Server(tmp_path / "data", launcher=["prlimit", limit]))


def test_another_user_starts_no_server_on_the_directory(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    tmp_path.chmod(0o755)
    with Server(tmp_path / "data", ONE_SHARD):
        pass
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    assert "Permission denied" in refusal(Server(tmp_path / "data", launcher=nobody))


@pytest.fixture
def read_only_directory(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    mounted = subprocess.run(["mount", "--bind", str(source), str(target)], capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a directory cannot be mounted here: {mounted.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(target)], check=True, capture_output=True)
        yield target
    finally:
        subprocess.run(["umount", "--lazy", str(target)], check=True)


def test_a_read_only_directory_is_refused_with_a_sentence(read_only_directory: Path) -> None:
    assert "Read-only file system" in refusal(Server(read_only_directory))


def test_clock_jumps_never_turn_timestamps_back_nor_cost_a_worker(tmp_path: Path) -> None:
    clock = WallClock(tmp_path)
    server = Server(tmp_path / "data", clock.env)
    with server:
        before = server.worker_pids()
        with wire.connect(server.address) as connection:
            connection.create_topic(connection.create_stream("clock"), "t", PARTITIONS)
            for offset_s in (0, -HOUR_S, TEN_YEARS_S, -HOUR_S):
                clock.set(offset_s)
                for partition in range(PARTITIONS):
                    connection.send(0, 0, wire.to_partition(partition), [wire.message(str(offset_s).encode())])
                with wire.connect(server.address) as other:  # tokens, back-off and time limits do not mind either
                    other.ping()
        assert server.worker_pids() == before
    clock.set(-2 * HOUR_S)  # a start an hour before anything that is there
    with server, wire.connect(server.address) as connection:
        for partition in range(PARTITIONS):
            connection.send(0, 0, wire.to_partition(partition), [wire.message(b"restarted")])
            messages = connection.read_all(0, 0, partition)
            assert [message.offset for message in messages] == [0, 1, 2, 3, 4]
            times = [message.timestamp_us for message in messages]
            assert times == sorted(times)
            assert times[-1] - times[0] < HOUR_S * 1_000_000  # nothing of the jumps was believed


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """A control group of its own with that limit, version 1 or 2. The test is skipped where none can be made."""
    first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    base, limit = (first, "memory.limit_in_bytes") if first.is_dir() else (second, "memory.max")
    group = base / f"shardd-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(limit_bytes))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group with a memory limit can be made here: {error}")
    try:
        yield group
    finally:
        deadline = time.monotonic() + 10  # its last process may be on the way out
        while True:
            try:
                group.rmdir()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


class Producer(threading.Thread):
    """Sends messages of 1 MB to one partition and counts what was acknowledged, whatever dies meanwhile."""

    def __init__(self, address: str, partition: int, until: float) -> None:
        super().__init__(daemon=True)
        self.address, self.partition, self.until = address, partition, until
        self.acknowledged: list[bytes] = []

    def run(self) -> None:
        number = 0
        while time.monotonic() < self.until:
            try:
                with wire.connect(self.address, deadline_s=1) as connection:
                    while time.monotonic() < self.until:
                        names = [f"{self.partition}-{number + n}".encode() for n in range(8)]
                        number += 8
                        messages = [wire.message(name.ljust(PAYLOAD_BYTES, b".")) for name in names]
                        connection.send(0, 0, wire.to_partition(self.partition), messages)
                        self.acknowledged += names
            except (OSError, wire.StatusError):
                time.sleep(0.02)


def missing(connection: wire.Wire, producers: Sequence[Producer]) -> list[bytes]:
    """Acknowledged names that cannot be read any more."""
    lost: list[bytes] = []
    for producer in producers:
        kept: set[bytes] = set()
        offset = 0
        while messages := connection.poll(0, 0, producer.partition, value=offset, count=16).messages:
            kept |= {message.payload.rstrip(b".") for message in messages}
            offset = messages[-1].offset + 1
        lost += [name for name in producer.acknowledged if name not in kept]
    return lost


@pytest.mark.slow
def test_processes_that_the_kernel_kills_for_memory_lose_nothing(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a control group needs root")
    with memory_cgroup(CGROUP_BYTES) as group:
        confined = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
        server = Server(tmp_path / "data", launcher=confined)
        server.start()
        try:
            with wire.connect(server.address) as connection:
                connection.create_topic(connection.create_stream("memory"), "t", PARTITIONS)
            until = time.monotonic() + LOAD_S
            producers = [Producer(server.address, partition, until) for partition in range(PARTITIONS)]
            for producer in producers:
                producer.start()
            for producer in producers:
                producer.join(LOAD_S + 30)
        finally:
            server.stop()
    assert "SIGKILL" in server.log(), "the limit was never reached"
    assert any(producer.acknowledged for producer in producers)
    free = Server(tmp_path / "data")  # also when the supervisor was the victim: nothing of it is left behind
    with free, wire.connect(free.address) as connection:
        assert missing(connection, producers) == []
