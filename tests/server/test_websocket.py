"""Clients over WebSocket: all that they can do over TCP, in however many messages; what is refused; what bad
clients get. Frames: test_websocket_frames.py."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess

import pytest

from tests.conftest import MakeServer
from tests.hostile.test_limits import eventually
from tests.server.websocket_server import ON, SERVER, address_of, client, pongs, send_payload, serves
from tests.support import wire
from tests.support.server import ONE_SHARD, Server
from tests.support.websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    WebSocket,
    classic,
    frame,
    request,
)

__all__ = ["SERVER", "client"]  # pytest looks for them in this file
pytestmark = pytest.mark.io_engine

GOING_AWAY, PROTOCOL_ERROR = 1001, 1002
NODE = shutil.which("node")

# ---- the classic protocol in messages ----


def test_a_request_is_answered_in_one_message(client: WebSocket) -> None:
    client.login()
    for _ in range(10):
        client.send(frame(BINARY, classic(wire.PING)))
        assert client.receive() == (BINARY, bytes(8))


def test_messages_are_one_stream_of_bytes(client: WebSocket) -> None:
    """Frames of the protocol may be split over messages, and packed into them."""
    login = classic(wire.LOGIN_USER, wire.str8("iggy") + wire.str8("iggy") + bytes(8))
    client.send(*(frame(BINARY, login[at : at + 3]) for at in range(0, len(login), 3)))
    assert client.answer()[0] == 0
    client.send(frame(BINARY, classic(wire.PING) * 50))
    pongs(client, 50)
    client.send(*(frame(BINARY, classic(wire.PING)) for _ in range(100)))
    pongs(client, 100)


@pytest.mark.parametrize("size", [1, 1000, 70_000, 900_000])
def test_messages_of_every_size_go_in_and_come_out(server: Server, client: WebSocket, size: int) -> None:
    client.login()
    for partition in range(4):
        assert client.request(wire.SEND_MESSAGES, send_payload(size, partition)) == (0, b"")
        place = wire.identifier(0) + wire.identifier(0) + wire.optional_partition(partition)
        poll = wire.consumer(1) + place + struct.pack("<BQIB", wire.POLL_LAST, 0, 1, 0)
        status, polled = client.request(wire.POLL_MESSAGES, poll)
        assert status == 0 and polled.endswith(b"x" * size)


def test_a_request_may_be_larger_than_a_frame(client: WebSocket) -> None:
    client.login()
    data = classic(wire.SEND_MESSAGES, send_payload(1_500_000))
    client.send(frame(BINARY, data[:700_000], final=False), frame(PING, b"between"))
    client.send(frame(CONTINUATION, data[700_000:1_400_000], final=False), frame(CONTINUATION, data[1_400_000:]))
    assert client.receive() == (PONG, b"between")
    assert client.answer() == (0, b"")


def test_clients_are_told_how_they_have_come_and_the_port_is_told(server: Server, client: WebSocket) -> None:
    client.login()
    status, me = client.request(wire.GET_ME)
    assert status == 0 and me[8] == 4
    _, metadata = client.request(wire.GET_CLUSTER_METADATA)
    assert struct.pack("<H", int(address_of(server).rpartition(":")[2])) in metadata


def test_the_protocol_of_0_9_is_told_by_its_first_bytes(server: Server) -> None:
    with WebSocket(address_of(server)) as client:
        client.send(frame(BINARY, bytes(8)))
        with pytest.raises(ConnectionError):
            while True:
                assert client.receive()[0] in (BINARY, CLOSE)


# ---- the upgrade ----


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST / HTTP/1.1\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 426),
        (b"GET / HTTP/1.1\r\nHost: a\r\nbad line\r\n\r\n", 400),
        (b"\x04\x00\x00\x00\x01\x00\x00\x00" * 2, 400),
        (b"GET /" + b"x" * 2000 + b" HTTP/1.1\r\n\r\n", 414),
        (request("short"), 400),
    ],
)
def test_what_is_no_upgrade_is_told_so_in_http(server: Server, sent: bytes, status: int) -> None:
    with WebSocket(address_of(server), upgrade=False) as client:
        client.socket.sendall(sent)
        assert client.http()[0] == status
        assert client.socket.recv(1) == b""


def test_pages_of_other_origins_are_refused(server: Server, make_server: MakeServer) -> None:
    other = make_server(env=ON | ONE_SHARD | {"SHARDD_WEBSOCKET_ALLOWED_ORIGINS": "https://a.example, http://b:1"})
    for address, origin, status in [
        (address_of(server), "https://a.example", 403),
        (address_of(other), "https://a.example", 101),
        (address_of(other), "http://b:1", 101),
        (address_of(other), "http://b", 403),
        (address_of(other), "null", 403),
    ]:
        with WebSocket(address, upgrade=False) as client:
            client.socket.sendall(request("dGhlIHNhbXBsZSBub25jZQ==", f"Origin: {origin}"))
            assert client.http()[0] == status


def test_an_upgrade_that_does_not_come_is_given_up_and_one_too_many_is_told(make_server: MakeServer) -> None:
    limits = {
        "SHARDD_SERVER_PARTIAL_FRAME_TIMEOUT": "2 s",
        "SHARDD_SERVER_CONNECTIONS_MAX": "2",
        "SHARDD_SERVER_CONNECTIONS_PER_ADDRESS_MAX": "2",
        "SHARDD_SERVER_CONNECTIONS_BEFORE_LOGIN_MAX": "2",
    }
    server = make_server(env=ON | ONE_SHARD | limits)
    slow = [WebSocket(address_of(server), upgrade=False) for _ in range(2)]
    slow[0].socket.sendall(b"GET / HTTP/1.1\r\nHo")
    with WebSocket(address_of(server), upgrade=False) as third:
        assert third.http()[0] == 503
    for each in slow:
        assert each.socket.recv(1) == b""
        each.close()

    def is_let_in() -> bool:
        with WebSocket(address_of(server), upgrade=False) as client:
            client.socket.sendall(request("dGhlIHNhbXBsZSBub25jZQ=="))
            return client.http()[0] == 101

    assert eventually(is_let_in), "a connection that was given up keeps its place"


# ---- life, and bad clients ----


def test_a_stop_tells_clients_and_closes_in_order(make_server: MakeServer) -> None:
    server = make_server(env=ON | ONE_SHARD)
    with WebSocket(address_of(server)) as client:
        client.login()
        assert server.stop() == 0
        assert client.answer()[0] == 8
        assert client.closed_with() == GOING_AWAY


def test_it_outlives_a_worker_and_loses_nothing_acknowledged(make_server: MakeServer) -> None:
    server = make_server(env=ON)
    address = address_of(server)
    with wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("s"), "t", 2)
    acknowledged = [0, 0]
    for shard in range(2):
        clients = [WebSocket(address) for _ in range(6)]
        for each in clients:
            each.login()
            for partition in range(2):
                assert each.request(wire.SEND_MESSAGES, send_payload(10, partition)) == (0, b"")
                acknowledged[partition] += 1
        os.kill(server.worker_pids()[shard], signal.SIGKILL)
        server.worker_pids()
        for each in clients:
            each.close()
        wire.connect(server.address).close()
    with wire.connect(server.address) as connection:
        for partition in range(2):
            polled = connection.poll(0, 0, partition, strategy=wire.POLL_FIRST, count=100)
            assert len(polled.messages) == acknowledged[partition]
    assert eventually(lambda: upgrades(address))


def upgrades(address: str) -> bool:
    try:
        with WebSocket(address) as client:
            return serves(client)
    except (OSError, AssertionError):
        return False


def test_a_flood_of_pings_of_one_that_does_not_read_costs_it_its_connection_alone(make_server: MakeServer) -> None:
    server = make_server(env=ON | ONE_SHARD | {"SHARDD_SERVER_SLOW_READER_TIMEOUT": "2 s"})
    pings = b"".join(frame(PING, b"x" * 125) for _ in range(500))
    flooders = [WebSocket(address_of(server)) for _ in range(4)]
    for flooder in flooders:
        flooder.socket.settimeout(0.2)
        for _ in range(50):
            try:
                flooder.socket.sendall(pings)
            except (TimeoutError, OSError):
                break
    before = sum(process.memory_info().rss for process in server.processes())
    with WebSocket(address_of(server)) as client, wire.connect(server.address) as other:
        assert serves(client)
        assert other.status(wire.PING) == 0
    assert sum(process.memory_info().rss for process in server.processes()) < before + (64 << 20)
    for flooder in flooders:
        flooder.close()


def test_a_tcp_client_at_the_websocket_port_and_the_other_way_round_get_an_end(server: Server) -> None:
    with socket.create_connection(wire.host_and_port(address_of(server)), 60) as wrong:
        wrong.sendall(classic(wire.PING) * 3)
        assert wrong.recv(12).startswith(b"HTTP/1.1 400")
    with WebSocket(server.address, upgrade=False) as client:
        client.socket.sendall(request())
        assert client.socket.recv(100)[:5] != b"HTTP/"


# ---- other implementations ----

NODE_PROGRAM = """
const [url, rounds] = [process.argv[1], 200];
const ping = Buffer.from([4, 0, 0, 0, 1, 0, 0, 0]);
let answers = 0, bytes = 0;
const socket = new WebSocket(url);
socket.binaryType = "arraybuffer";
socket.onopen = () => { for (let i = 0; i < rounds; i++) socket.send(ping); };
socket.onmessage = (event) => {
  bytes += event.data.byteLength;
  answers++;
  if (bytes === 8 * rounds) socket.close(3000, "ende");
};
socket.onerror = () => { console.log("error"); process.exit(1); };
socket.onclose = (event) => console.log(JSON.stringify({ bytes, code: event.code, clean: event.wasClean }));
"""


def has_websocket() -> bool:
    """Node 22 has it by itself, Node 20 with a flag."""
    if NODE is None:
        return False
    asked = [NODE, "--experimental-websocket", "-e", "process.exit(typeof WebSocket === 'function' ? 0 : 1)"]
    return subprocess.run(asked, check=False, capture_output=True, timeout=60).returncode == 0


@pytest.mark.skipif(not has_websocket(), reason="needs node with WebSocket")
def test_the_websocket_of_node_is_served(server: Server) -> None:
    command = [str(NODE), "--experimental-websocket", "-e", NODE_PROGRAM, f"ws://{address_of(server)}/any/path?x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(done.stdout) == {"bytes": 1600, "code": 3000, "clean": True}, done.stderr
