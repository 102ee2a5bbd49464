"""Hellos without end to a door with an RSA key of 4,096 bits: the door stays, and others' handshakes go on."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import ssl
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final

import pytest

from tests.doors.http_server import HttpServer
from tests.doors.test_http_tls import TLS, trusting
from tests.hostile import crowd
from tests.server.test_tls_handshakes import hello
from tests.support.certificates import Authority

OPEN: Final = 1_000
FLOOD_S: Final = 12.0  # a loop that stands still is replaced after 10
REQUESTS: Final = 3
ANSWER_S: Final = 120.0  # of a door that gives way to everything else on a busy machine


def flood(address: tuple[str, int], first: bytes, stop: Event) -> None:
    """So many connections that say hello and read nothing, then as many new ones."""
    crowd.allow_descriptors(OPEN + 100)
    os.nice(19)  # it attacks the door, not the machine
    while not stop.is_set():
        streams: list[socket.socket] = []
        with contextlib.suppress(OSError):
            for _ in range(OPEN):
                streams.append(socket.create_connection(address, timeout=2.0))
                streams[-1].send(first)
        stop.wait(1.0)
        for stream in streams:
            stream.close()


def ping(server: HttpServer, context: ssl.SSLContext) -> bytes:
    """With a handshake of its own, from an address of its own."""
    plain = socket.create_connection(server.http_address, ANSWER_S, source_address=("127.0.0.2", 0))
    with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as stream:
        stream.sendall(b"GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return stream.makefile("rb").read()


@contextlib.contextmanager
def flooding(address: tuple[str, int], first: bytes) -> Iterator[None]:
    """Two processes open connections without end, with `first` on each."""
    many = multiprocessing.get_context("spawn")
    stop = many.Event()
    flooders = [many.Process(target=flood, args=(address, first, stop), daemon=True) for _ in range(2)]
    for each in flooders:
        each.start()
    try:
        yield
    finally:
        stop.set()
        for each in flooders:
            each.join(10.0)
            each.kill()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[tuple[HttpServer, ssl.SSLContext]]:
    crowd.allow_descriptors(OPEN + 1_000)
    authority = Authority.make(tmp_path)
    certificate = authority.sign("large", names="IP:127.0.0.1", algorithm="rsa:4096")
    files = {"CERT_FILE": str(certificate), "KEY_FILE": str(certificate.with_suffix(".key"))}
    env = TLS | {f"SHARDD_HTTP_TLS_{name}": value for name, value in files.items()}
    with HttpServer(tmp_path / "data", env) as server:
        yield server, trusting(authority)


def test_a_flood_of_hellos_leaves_the_door_and_its_clients_alone(door: tuple[HttpServer, ssl.SSLContext]) -> None:
    server, context = door
    process = server.door()
    with flooding(server.http_address, hello(context)):
        until_s, answered, tried = time.monotonic() + FLOOD_S, 0, 0
        while time.monotonic() < until_s or answered < REQUESTS:
            assert time.monotonic() < until_s + ANSWER_S, f"{answered} of {tried} handshakes ended beside the flood"
            tried += 1
            with contextlib.suppress(ssl.SSLEOFError, ConnectionResetError):  # it took longer than a login may
                answered += b"pong" in ping(server, context)
        print(f"{answered} of {tried} handshakes ended beside the flood")
    assert server.door().pid == process.pid
    assert "gives no sign of life" not in server.log()
