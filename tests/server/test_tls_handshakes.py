"""Handshakes that flood a server, stop half way, or never read: others are served, and nothing is kept of them."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.test_tls import NAMES, TWO_SHARDS, logged_in
from tests.support import wire
from tests.support.certificates import Authority, settings
from tests.support.server import Server
from tests.support.stalls import wait_until
from tests.support.tls_wire import TlsWire, client_context

pytestmark = pytest.mark.io_engine


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    env = settings(authority.sign("server", names=NAMES)) | {"SHARDD_SERVER_PARTIAL_FRAME_TIMEOUT": "4 s"}
    with Server(tmp_path_factory.mktemp("handshakes") / "data", TWO_SHARDS | env) as running:
        yield running


@pytest.fixture
def patient_server(authority: Authority, tmp_path: Path) -> Iterator[Server]:
    """For floods: how long a handshake takes beside one depends on what else the machine does, and the client may be
    the one who is slow."""
    patience = {"SHARDD_SERVER_PARTIAL_FRAME_TIMEOUT": "120 s"}
    with Server(tmp_path / "data", TWO_SHARDS | settings(authority.sign("flooded", names=NAMES)) | patience) as running:
        yield running


def hello(context: ssl.SSLContext) -> bytes:
    """The first flight of a client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_others_are_served_beside_a_flood_of_handshakes(patient_server: Server, authority: Authority) -> None:
    server = patient_server
    context = client_context(authority.certificate)
    first = hello(context)
    stop, floods = threading.Event(), [0, 0]

    def flood(place: int) -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError), socket.create_connection(server.endpoint, 10) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(first)
                floods[place] += 1

    with logged_in(server, context) as client:
        threads = [threading.Thread(target=flood, args=(place,)) for place in range(2)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: sum(floods) > 200, "the flood")
            for _ in range(300):
                client.ping()
            with wire.Wire(server.address, source="127.0.0.2") as raw:  # another address: its handshake comes first
                raw.socket = context.wrap_socket(raw.socket, server_hostname="localhost")
                raw.ping()
        finally:
            stop.set()
            for thread in threads:
                thread.join()


@pytest.mark.parametrize("part", [0, 1, 5, 100, None])
def test_half_a_handshake_is_closed_in_time(server: Server, authority: Authority, part: int | None) -> None:
    first = hello(client_context(authority.certificate))
    with socket.create_connection(server.endpoint, 60) as connection:
        connection.sendall(first[:part])
        while connection.recv(65536):
            pass


def test_bytes_that_are_no_records_close_the_connection(server: Server, authority: Authority) -> None:
    context = client_context(authority.certificate)
    for rubbish in (
        b"\x16\x03\x01" + bytes(60),
        b"\x16\x03\x01\xff\xff" + bytes(200),
        bytes(100),
        b"GET / HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection(server.endpoint, 60) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(rubbish)
            while connection.recv(65536):
                pass
    with TlsWire(server.address, context) as client:
        client.ping()


def test_a_connection_that_is_broken_later_is_closed(server: Server, authority: Authority) -> None:
    client = logged_in(server, client_context(authority.certificate))
    with socket.socket(fileno=client.tls.detach()) as below, contextlib.suppress(ConnectionError):
        below.settimeout(60)
        below.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        while below.recv(65536):
            pass


def test_a_stopped_server_ends_with_open_handshakes(authority: Authority, tmp_path: Path) -> None:
    env = settings(authority.sign("stopped", names=NAMES))
    with Server(tmp_path / "data", TWO_SHARDS | env) as server:
        first = hello(client_context(authority.certificate))
        connections = [socket.create_connection(server.endpoint, 60) for _ in range(20)]
        for number, connection in enumerate(connections):
            connection.sendall(first[: number * 20])
        assert server.stop() == 0
        for connection in connections:
            connection.close()
