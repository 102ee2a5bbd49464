"""Clients behind a trusted proxy that passes bytes on to the HTTP door: a PROXY protocol header in front of everything
tells each of them, so each has its own address in shares, in the pace of handshakes, and in the log."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from shardd.doors.asgi_crowd import AsgiLimits, introductions_of
from shardd.doors.openings import PER_ADDRESS
from tests.doors.http_server import WAIT_S, HttpServer
from tests.doors.test_http_forwarded import answer_of, head
from tests.doors.test_http_tls import TLS, trusting
from tests.hostile import crowd
from tests.server.test_tls_handshakes import hello
from tests.support import proxy
from tests.support.certificates import Authority
from tests.support.serving import Serving
from tests.support.stalls import wait_until

ONE: Final = "192.0.2.1"
TWO: Final = "2001:db8:0:2::7"
PATIENT: Final = {"SHARDD_SERVER_PARTIAL_FRAME_TIMEOUT": "30 m"}
SETTINGS: Final = proxy.TRUSTED | {"SHARDD_HTTP_PROXY_PROTOCOL": "true", "SHARDD_HTTP_ACCESS_LOG": "true"}
HELLOS: Final = 16 * PER_ADDRESS
CONNECTIONS: Final = 64
SILENT: Final = 100
SERVER: Final = Serving(HttpServer, SETTINGS)


def asked(server: HttpServer, path: str, first: bytes, *forwarded: str, source: str = proxy.PROXY_HOST) -> int:
    """The status of a request behind these bytes."""
    with server.connect(source) as stream:
        stream.sendall(first + head("GET", path, forwarded))
        return answer_of(stream)[0]


def seen_as(server: HttpServer, path: str, first: bytes, *forwarded: str, source: str = proxy.PROXY_HOST) -> str:
    """What the access log calls the client of such a request."""
    asked(server, path, first, *forwarded, source=source)

    def lines() -> list[str]:
        return [each for each in server.log().splitlines() if f"GET {path} " in each]

    wait_until(lambda: bool(lines()), f"a line for {path}", WAIT_S)
    return lines()[-1].partition(" GET ")[0].split()[-1].rpartition(":")[0].strip("[]")


def is_closed(stream: socket.socket) -> bool:
    stream.settimeout(WAIT_S)
    with contextlib.suppress(ConnectionResetError):
        return stream.recv(1) == b""
    return True


def test_header_in_front_of_a_request_tells_its_client(server: HttpServer) -> None:
    assert seen_as(server, "/a1", proxy.header(ONE)) == ONE
    assert seen_as(server, "/a2", proxy.header(TWO, bytes(500))) == TWO
    assert seen_as(server, "/a3", proxy.LOCAL) == proxy.PROXY_HOST
    assert seen_as(server, "/a4", proxy.header(ONE), "203.0.113.9") == ONE, "the client may have written that field"
    assert seen_as(server, "/a5", b"", source="127.0.0.3") == "127.0.0.3"
    assert asked(server, "/a6", proxy.header(ONE), source="127.0.0.3") == 400


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\n\r\n", b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n", proxy.header(ONE)[:12] + b"3"]
)
def test_connection_of_a_proxy_without_a_good_header_is_closed(server: HttpServer, first: bytes) -> None:
    with server.connect(proxy.PROXY_HOST) as stream:
        stream.sendall(first)
        assert is_closed(stream)
    wait_until(lambda: "no PROXY protocol header, version 2, came in time" in server.log(), "the sentence", WAIT_S)


def test_header_in_pieces_is_waited_for_until_its_time_is_over(tmp_path: Path) -> None:
    with HttpServer(tmp_path / "data", SETTINGS | {"SHARDD_SERVER_PARTIAL_FRAME_TIMEOUT": "3 s"}) as server:
        with server.connect(proxy.PROXY_HOST) as silent:
            assert is_closed(silent)
        with server.connect(proxy.PROXY_HOST) as stream:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in proxy.header(ONE):
                stream.sendall(bytes([byte]))
            stream.sendall(head("GET", "/ping", ()))
            assert answer_of(stream)[0] == 200


def test_silent_connections_of_a_proxy_leave_places_to_other_clients(tmp_path: Path) -> None:
    """They are more than the door may have connections; the longest waits end."""
    settings = SETTINGS | PATIENT | {"SHARDD_SERVER_CONNECTIONS_MAX": str(CONNECTIONS)}
    with HttpServer(tmp_path / "data", settings) as server, contextlib.ExitStack() as held:
        silent = [held.enter_context(server.connect(proxy.PROXY_HOST)) for _ in range(SILENT)]
        for _ in range(4):
            assert asked(server, "/ping", proxy.header(ONE)) == 200
            assert asked(server, "/ping", b"", source="127.0.0.3") == 200
        assert is_closed(silent[0])
        ended = select.select(silent, [], [], 0)[0]
        assert SILENT - len(ended) <= introductions_of(AsgiLimits(connections_max=CONNECTIONS))


@pytest.fixture
def over_tls(tmp_path: Path) -> Iterator[tuple[HttpServer, ssl.SSLContext]]:
    crowd.allow_descriptors(2 * HELLOS)
    authority = Authority.make(tmp_path)
    certificate = authority.sign("large", names="IP:127.0.0.1", algorithm="rsa:4096")
    files = {"CERT_FILE": str(certificate), "KEY_FILE": str(certificate.with_suffix(".key"))}
    env = TLS | {f"SHARDD_HTTP_TLS_{name}": value for name, value in files.items()}
    with HttpServer(tmp_path / "data", SETTINGS | PATIENT | env) as running:
        yield running, trusting(authority)


def test_hellos_of_one_client_behind_a_proxy_hold_up_no_other_client_of_it(
    over_tls: tuple[HttpServer, ssl.SSLContext],
) -> None:
    """Nothing is measured: the crowd is shown to wait still when the other client has its answer."""
    server, context = over_tls
    first = proxy.header(ONE) + hello(context)
    with contextlib.ExitStack() as held:
        crowd_of_one = []
        for _ in range(HELLOS):
            crowd_of_one.append(held.enter_context(server.connect(proxy.PROXY_HOST)))
            crowd_of_one[-1].sendall(first)
        plain = held.enter_context(proxy.socket_for(server.http_address, TWO))
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as other:
            other.sendall(head("GET", "/ping", ()))
            assert answer_of(other)[0] == 200
        poll = select.poll()
        for each in crowd_of_one:
            poll.register(each, select.POLLIN)
        assert len(poll.poll(0)) < HELLOS, "they wait still"
