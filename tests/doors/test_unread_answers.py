"""Answers that clients do not read, at every door: what the processes and the sockets of the server keep of them has a
bound and is given back within the time of slow readers, and others are served meanwhile. `make test-unread` walks all
doors with 1,500 connections of one address."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.doors.http_server import HttpClient
from tests.doors.liftbridge_server import ROOT, LiftbridgeClient
from tests.doors.unread_crowd import LONG_NAME, NAMES, Order
from tests.hostile.matrix.door import ATTACKER, connected
from tests.hostile.matrix.doors import QUIC, client_of, kernel_bytes_max
from tests.hostile.matrix.https import SecureClient
from tests.hostile.matrix.judge import Watch
from tests.hostile.matrix.lines import DOORS, READER, RIGHTLESS, STRANGER, UNREAD, Line
from tests.hostile.matrix.memory import process_bytes_max
from tests.hostile.matrix.target import MatrixServer
from tests.support import wire
from tests.support.memory import shared_out_bytes
from tests.support.stalls import wait_until
from tests.support.wide import wide_but

CONNECTIONS: Final = 40
FULL: Final = 1_500
COUNT_MAX: Final = {"metrics": 30, QUIC: 300}
"""The door for metrics takes no more from an address; a client of QUIC costs its own process as much as several."""
SLOW_READER_S: Final = 3
WAIT_S: Final = 120.0  # polls of a crowd over HTTP wait for room for 30 s, and have it one after the other
STEP_S: Final = 0.1
SETTINGS: Final = {
    "SHARDD_SERVER_SLOW_READER_TIMEOUT": f"{SLOW_READER_S} s",
    "SHARDD_SERVER_CONNECTIONS_PER_ADDRESS_MAX": str(2 * FULL),
}
KERNEL_BYTES_MIN: Final = 32 << 10  # of a connection: it has not been read
UNREAD_MIN: Final = 10  # so many of a crowd at least: room is given to a part of it at a time
KERNEL_LEFT_BYTES_MAX: Final = 4 << 10  # of a connection that has nothing to send
PROCESS_BYTES_MAX: Final = {("http", STRANGER): 160 << 20, ("https", STRANGER): 224 << 20}
PROCESS_LEFT_BYTES_MAX: Final = {CONNECTIONS: 64 << 20, FULL: 128 << 20}
"""Beyond what they had: allocators keep what objects of connections and requests took, and use it again."""
ENGINE: Final = ("tcp", "tls", "unix", "websocket", "wss", "iggy09")
WINDOWS_BYTES_MAX: Final = 1 << 20  # of a connection: one that is sent, one that is read, in blocks of 512 KiB
SMALL_WINDOWS_BYTES_MAX: Final = 128 << 10  # the same, once a quarter of the pool is in use for output
POOL_BYTES: Final = 4 << 30  # of all workers, the default
MADE_BESIDE: Final = {"iggy09": POOL_BYTES // 16}  # what is made of windows (native/src/core/output.c)
CASES: Final = (
    ("http", STRANGER), ("http", READER), ("https", STRANGER), ("https", READER), ("metrics", STRANGER),
    ("grpc", NAMES), ("grpc", READER), ("nats", RIGHTLESS), ("nats", READER), ("tcp", READER), ("tls", READER),
    ("unix", READER), ("websocket", READER), ("wss", READER), ("iggy09", READER), ("quic", READER),
)  # fmt: skip
SHORT: Final = (
    ("http", STRANGER), ("http", READER), ("https", STRANGER), ("metrics", STRANGER), ("grpc", NAMES),
    ("nats", RIGHTLESS), ("tcp", READER), ("websocket", READER), ("quic", READER),
)  # fmt: skip


@contextlib.contextmanager
def watched(place: Path, doors: list[str]) -> Iterator[Watch]:
    server = MatrixServer(place / "data", doors)
    server.change(SETTINGS)
    with server:
        if "grpc" in doors:
            with LiftbridgeClient(server.target.addresses["grpc"], [ROOT]) as root:
                root.create(LONG_NAME)
        yield Watch(server)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    with watched(tmp_path_factory.mktemp("u"), [door for door in DOORS if door != "https"]) as watch:
        yield watch


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    with watched(tmp_path_factory.mktemp("s"), ["https"]) as watch:
        yield watch


@pytest.fixture
def watch(case: tuple[str, str], request: pytest.FixtureRequest) -> Watch:
    found: Watch = request.getfixturevalue("secure" if case[0] == "https" else "plain")
    return found


@contextlib.contextmanager
def crowd(order: Order) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.doors.unread_crowd"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"ready %d\n" % order.count
        yield
        process.stdin.close()


def is_served(watch: Watch, door: str, role: str) -> bool:
    """Whether somebody else is, from an address of its own, and a stranger of the crowd's address."""
    target = watch.server.target
    other = client_of(door, target)
    try:
        other.ask()
    finally:
        other.close()
    if door not in ("http", "https") or role != STRANGER:
        return True
    kind = SecureClient if door == "https" else HttpClient
    beside = kind(wire.host_and_port(target.addresses[door]), "", ATTACKER)
    try:
        return beside.get("/openapi.json").status == 200
    finally:
        beside.close()


def windows_bytes_max(door: str, count: int) -> int:
    """Large windows until a quarter of the pool is in use for output, then small ones."""
    of_pool = POOL_BYTES // 4 + count * SMALL_WINDOWS_BYTES_MAX + MADE_BESIDE.get(door, 0)
    return min(count * WINDOWS_BYTES_MAX, of_pool)


class Sampler(threading.Thread):
    """Looks at a server for as long as a crowd is there. `kernel`, `process`: bytes now, and the most there were."""

    def __init__(self, watch: Watch, door: str) -> None:
        super().__init__(daemon=True)
        self._watch, self._door = watch, door
        self._rested = shared_out_bytes(watch.server.processes())
        self._stopping = threading.Event()
        self.kernel = self.process = self.most_kernel = self.most_process = self.looks = 0

    def run(self) -> None:
        while not self._stopping.wait(STEP_S):
            self.kernel, _ = self._watch.kernel_bytes(self._door)
            self.process = shared_out_bytes(self._watch.server.processes()) - self._rested
            self.most_kernel = max(self.most_kernel, self.kernel)
            self.most_process = max(self.most_process, self.process)
            self.looks += 1

    def stop(self) -> None:
        self._stopping.set()
        self.join(WAIT_S)


def unread_by_a_crowd_is_bounded(watch: Watch, door: str, role: str, count: int) -> None:
    left_max = PROCESS_LEFT_BYTES_MAX[count]
    count = min(count, COUNT_MAX.get(door, count))
    found = Sampler(watch, door)
    found.start()
    try:
        with crowd(Order(door, role, count, watch.server.target)):
            unread_bytes = min(count, UNREAD_MIN) * KERNEL_BYTES_MIN
            if door != QUIC:
                wait_until(lambda: found.most_kernel > unread_bytes, "something is not read")
            wait_until(lambda: is_served(watch, door, role), "others are served")
            if door == QUIC:  # what its kernel keeps does not tell that something is unread
                time.sleep(SLOW_READER_S + 1)
            looks = found.looks
            given_back_by_s = time.monotonic() + WAIT_S
            while found.looks <= looks + 1 or found.kernel > count * KERNEL_LEFT_BYTES_MAX or found.process > left_max:
                kept = f"{found.kernel >> 10} KiB of the kernel, {found.process >> 10} KiB of processes are kept"
                assert time.monotonic() < given_back_by_s, kept
                time.sleep(STEP_S)
    finally:
        found.stop()
    kernel, process = found.most_kernel, found.most_process
    print(f"{door}/{role}: {count} connections, kernel {kernel >> 10} KiB, processes {process >> 10} KiB")
    assert kernel <= count * kernel_bytes_max(Line(door, role, UNREAD))
    if door in ENGINE:
        assert process <= max(process_bytes_max(door), windows_bytes_max(door, count))
    else:
        assert process <= PROCESS_BYTES_MAX.get((door, role), process_bytes_max(door))


def send_buffer_bytes(port: int) -> list[int]:
    """Of the server's connections at this port."""
    command = ["ss", "-tmnH", "state", "connected", f"sport = :{port}"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [int(size) for size in re.findall(r"skmem:\(.*?,tb(\d+),", told)]


@pytest.mark.parametrize("door", ["tcp", "tls", "websocket", "wss", "http", "metrics", "grpc", "nats"])
def test_default_port_leaves_its_send_buffers_to_the_kernel(plain: Watch, door: str) -> None:
    """A size that a port sets would stay, however fast its client is."""
    with socket.create_server(("127.0.0.1", 0)) as control, connected(plain.server.target.addresses[door]) as client:
        port = control.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), control.accept()[0]:
            expected = send_buffer_bytes(port)
            found = send_buffer_bytes(client.getpeername()[1])
    assert len(expected) == 1 and found and min(found) >= expected[0]


@pytest.mark.parametrize("case", wide_but(SHORT, CASES), ids="-".join)
def test_unread_answers_of_a_crowd_are_bounded_and_given_back(watch: Watch, case: tuple[str, str]) -> None:
    unread_by_a_crowd_is_bounded(watch, *case, CONNECTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_unread_answers_of_1500_connections_are_bounded_and_given_back(watch: Watch, case: tuple[str, str]) -> None:
    unread_by_a_crowd_is_bounded(watch, *case, FULL)
