"""Answers that clients do not read, at every door over TCP: what the processes and the sockets of the server keep of
them has a bound, and is given back when clients are late. QUIC has tests of its own (test_quic_shares.py): its answers
are in the memory of the door alone."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from shardd.protocol.liftbridge import api
from tests.doors.http_server import HTTP
from tests.doors.liftbridge_server import ROOT, LiftbridgeServer
from tests.doors.liftbridge_wire import SETTINGS_TAKEN, opened, request_frames
from tests.doors.nats_peers import wait_until
from tests.support import websocket, wire

CONNECTIONS: Final = 40
FULL: Final = 1_500
SLOW_READER_S: Final = 2
KERNEL_BYTES_MAX: Final = {
    "http": 256 << 10,
    "grpc": 256 << 10,
    "nats": 256 << 10,
    "tcp": 3 << 20,
    "websocket": 3 << 20,
}  # of a connection
KERNEL_BYTES_MIN: Final = 32 << 10  # it has not been read
LEFT_BYTES_MAX: Final = 4 << 10  # of a connection that has nothing to send
PROCESS_BYTES_MAX: Final = 160 << 20  # all of them together, beyond what they had
NAME: Final = "n" * 200
_MEMORY: Final = re.compile(r"skmem:\(r(\d+),rb\d+,t(\d+),tb\d+,f(\d+),w(\d+),")  # read, sent, ahead, queued


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiftbridgeServer]:
    settings = {
        **HTTP,
        "SHARDD_WEBSOCKET_ENABLED": "true",
        "SHARDD_WEBSOCKET_ADDRESS": "127.0.0.1:0",
        "SHARDD_LIFTBRIDGE_NATS_SERVER_ENABLED": "true",
        "SHARDD_LIFTBRIDGE_NATS_SERVER_ADDRESS": "127.0.0.1:0",
        "SHARDD_SERVER_SLOW_READER_TIMEOUT": f"{SLOW_READER_S} s",
        "SHARDD_SERVER_CONNECTIONS_PER_ADDRESS_MAX": str(2 * FULL),
    }
    with LiftbridgeServer(tmp_path_factory.mktemp("unread") / "data", settings) as running:
        with running.client(ROOT) as root:
            root.create(NAME)
        with wire.connect(running.address) as tcp:
            for _ in range(3):
                tcp.send("liftbridge-default", NAME, wire.to_partition(0), [wire.message(bytes(900_000))])
        yield running


def of_http() -> bytes:
    return b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 16


def of_grpc() -> bytes:
    request = bytes(api.message_class("FetchMetadataRequest")(streams=[NAME] * 2_000).SerializeToString())
    calls = [opened("/proto.API/FetchMetadata", 2 * n + 1, [ROOT]) + request_frames(2 * n + 1, request) for n in (0, 1)]
    wide = struct.pack(">HI", 4, 1 << 30)  # the window of each call, and of all of them
    settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000006040000000000") + wide
    return settings + SETTINGS_TAKEN + bytes.fromhex("00000408000000000040000000") + b"".join(calls)


def of_nats() -> bytes:
    return b'CONNECT {"user":"iggy","pass":"iggy","verbose":true}\r\n' + b"PING\r\n" * 100_000


def polls() -> list[bytes]:
    """A login and what comes behind it, as frames."""
    login = wire.frame(wire.LOGIN_USER, wire.str8("iggy") + wire.str8("iggy") + bytes(8))
    poll = wire.consumer() + wire.identifier("liftbridge-default") + wire.identifier(NAME) + wire.optional_partition(0)
    return [login, wire.frame(wire.POLL_MESSAGES, poll + struct.pack("<BQIB", wire.POLL_OFFSET, 0, 3, 0))]


def of_tcp() -> bytes:
    return b"".join(polls())


def of_websocket() -> bytes:
    return websocket.request() + b"".join(websocket.frame(websocket.BINARY, each) for each in polls())


def port_of(server: LiftbridgeServer, door: str) -> int:
    if door == "tcp":
        return int(server.address.rpartition(":")[2])
    found = tomllib.loads(server.runtime_config.read_text())
    for part in {"grpc": ("liftbridge",), "nats": ("liftbridge", "nats_server")}.get(door, (door,)):
        found = found[part]
    return int(found["address"].rpartition(":")[2])


def kernel_bytes(port: int) -> int:
    """Of the server's connections at this port, also those that have no process any more."""
    command = ["ss", "-tmnH", "state", "connected", f"sport = :{port}"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True)
    return sum(int(number) for found in _MEMORY.findall(lines.stdout) for number in found)


def process_bytes(server: LiftbridgeServer) -> int:
    return sum(each.memory_info().rss for each in server.processes())


@pytest.mark.parametrize("count", [CONNECTIONS, pytest.param(FULL, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("door", "requests"),
    [("http", of_http), ("grpc", of_grpc), ("nats", of_nats), ("tcp", of_tcp), ("websocket", of_websocket)],
)
def test_unread_answers_of_a_crowd_are_bounded_and_given_back(
    server: LiftbridgeServer, door: str, requests: Callable[[], bytes], count: int
) -> None:
    port = port_of(server, door)
    before = process_bytes(server)
    most_kernel = most_process = 0
    command = [sys.executable, "-m", "tests.doors.unread_crowd", "127.0.0.1", str(port), str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as crowd:
        assert crowd.stdin is not None and crowd.stdout is not None
        crowd.stdin.write(requests().hex() + "\n")
        crowd.stdin.flush()

        def given_back() -> bool:
            nonlocal most_kernel, most_process
            size = kernel_bytes(port)
            most_kernel = max(most_kernel, size)
            most_process = max(most_process, process_bytes(server) - before)
            return most_kernel > count * KERNEL_BYTES_MIN and size <= count * LEFT_BYTES_MAX

        assert crowd.stdout.readline().startswith("ready")
        wait_until(given_back, "what was not read is kept")
        crowd.stdin.close()
    print(f"{door}: {count} connections, kernel {most_kernel >> 10} KiB, processes {most_process >> 10} KiB")
    assert most_kernel <= count * KERNEL_BYTES_MAX[door]
    assert most_process <= PROCESS_BYTES_MAX
