"""A page whose name was pointed at this host (DNS rebinding) gets nothing, at any port (docs/adr/0134)."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import ssl
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from shardd.config.keys import KEYS
from tests.doors.http_server import HTTP, WAIT_S, HttpServer
from tests.doors.liftbridge_server import LIFTBRIDGE
from tests.doors.metrics_server import METRICS, eventually
from tests.support.certificates import Authority
from tests.support.doors import serving_door

EVIL: Final = "rebound.example"
PORTS: Final = tuple(key.path.removesuffix(".address") for key in KEYS if key.path.endswith(".address"))
OVER_UDP: Final = ("quic",)  # which no page of HTTP/1.1 or 2 reaches
WITH_THE_SETTING: Final = ("http", "metrics")
OF_HTTP: Final = (*WITH_THE_SETTING, "websocket")  # which looks at Origin, as browsers send it with every upgrade
ENABLED: Final = {
    **METRICS,
    **LIFTBRIDGE,
    **HTTP,
    "SHARDD_WEBSOCKET_ENABLED": "true",
    "SHARDD_WEBSOCKET_ADDRESS": "127.0.0.1:0",
    "SHARDD_LIFTBRIDGE_NATS_SERVER_ENABLED": "true",
    "SHARDD_LIFTBRIDGE_NATS_SERVER_ADDRESS": "127.0.0.1:0",
}
REQUESTS: Final = {
    "figures": b"GET /metrics HTTP/1.1\r\n",
    "probe": b"GET /readyz HTTP/1.1\r\n",
    "page": b"GET /ui HTTP/1.1\r\n",
    "preflight": b"OPTIONS /users/login HTTP/1.1\r\nAccess-Control-Request-Method: POST\r\n",
    "login": b"POST /users/login HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 37\r\n",
    "upgrade": b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
}
LOGIN: Final = b'{"username":"iggy","password":"iggy"}'


class Ports:
    """Where a running server listens, by the section of the setting."""

    def __init__(self, server: HttpServer) -> None:
        self._settings = tomllib.loads(server.runtime_config.read_text())

    def __getitem__(self, section: str) -> tuple[str, int]:
        table = self._settings
        for part in section.split("."):
            table = table[part]
        host, _, port = str(table["address"]).rpartition(":")
        return host.strip("[]"), int(port)


def exchange(address: tuple[str, int], data: bytes, *, http: bool = True) -> bytes:
    """All that comes until the port closes. `http`: it does so by itself, as the request asks; others see an end."""
    answer = b""
    with socket.create_connection(address, timeout=WAIT_S) as stream, contextlib.suppress(ConnectionResetError):
        stream.sendall(data)
        if not http:
            stream.shutdown(socket.SHUT_WR)
        while part := stream.recv(65_536):
            answer += part
    return answer


def ask(address: tuple[str, int], host: bytes | None, path: str = "/metrics", version: str = "1.1") -> tuple[int, str]:
    """`host`: None sends no such line."""
    line = b"" if host is None else b"Host: " + host + b"\r\n"
    answer = exchange(address, f"GET {path} HTTP/{version}\r\n".encode() + line + b"Connection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    with HttpServer(tmp_path_factory.mktemp("hosts") / "data", ENABLED) as running:
        serving_door(running, "liftbridge")
        serving_door(running, "metrics")
        yield Ports(running)


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("port", [port for port in PORTS if port not in OVER_UDP])
def test_a_page_of_a_rebound_name_gets_nothing_at_any_port(ports: Ports, port: str, kind: str) -> None:
    names = f"Host: {EVIL}:{ports[port][1]}\r\nOrigin: http://{EVIL}\r\nConnection: close\r\n\r\n".encode()
    data = REQUESTS[kind] + names + (LOGIN if kind == "login" else b"")
    answer = exchange(ports[port], data, http=port in OF_HTTP)
    assert not answer.startswith((b"HTTP/1.1 1", b"HTTP/1.1 2")), answer
    assert b"access_token" not in answer and b"shardd_build_info" not in answer
    if port in WITH_THE_SETTING:
        assert answer.startswith(b"HTTP/1.1 421 "), answer
        assert f"{port}.allowed_hosts".encode() in answer and EVIL.encode() in answer


@pytest.mark.parametrize("port", WITH_THE_SETTING)
@pytest.mark.parametrize(
    "host",
    [
        b"localhost",
        b"LOCALHOST.:80",
        b"127.0.0.1",
        b"127.1.2.3:1",
        b"[::1]",
        b"[::1]:9",
        b"[0:0:0:0:0:0:0:1]",
        b"",
        None,
    ],
)
def test_names_of_this_host_and_no_name_are_served(ports: Ports, port: str, host: bytes | None) -> None:
    assert ask(ports[port], host)[0] == 200
    assert ask(ports[port], host, version="1.0")[0] == 200


@pytest.mark.parametrize("port", WITH_THE_SETTING)
@pytest.mark.parametrize(
    "host",
    [
        *(b"127.0.0.1.rebound.example", b"localhost.rebound.example", b"rebound.example.", b"10.0.0.1", b"[::2]"),
        *(b"localhost@rebound.example", b"rebound.example:80:80", b"localhost,rebound.example", b"localhost..", b"::1"),
        *(b"[::1", b"[localhost]", b"localhost:x", b"\xff", b"a" * 300, b"*", b"127.1", b"2130706433", b"local host"),
    ],
)
def test_other_and_broken_names_are_refused_with_the_setting(ports: Ports, port: str, host: bytes) -> None:
    status, text = ask(ports[port], host)
    assert status == 421 and f"{port}.allowed_hosts" in text and text.isascii() and len(text) < 400


@pytest.mark.parametrize("port", WITH_THE_SETTING)
def test_several_names_in_a_request_are_bad_whatever_they_say(ports: Ports, port: str) -> None:
    assert ask(ports[port], b"localhost\r\nHost: localhost")[0] == 400
    assert ask(ports[port], b"localhost\r\nhost: " + EVIL.encode())[0] == 400


def test_a_connection_goes_on_behind_a_refusal(ports: Ports) -> None:
    connection = http.client.HTTPConnection(*ports["http"], timeout=WAIT_S)
    for method in ("HEAD", "GET"):
        connection.request(method, "/ping", headers={"Host": EVIL})
        answer = connection.getresponse()
        assert (answer.status, bool(answer.read())) == (421, method == "GET")
    connection.request("GET", "/ping")
    assert connection.getresponse().read() == b"pong"
    connection.close()


def started(tmp_path: Path, **env: str) -> HttpServer:
    return HttpServer(tmp_path / "data", {**METRICS, **{f"SHARDD_{name}": value for name, value in env.items()}})


def statuses(address: tuple[str, int], *hosts: bytes) -> list[int]:
    return [ask(address, host)[0] for host in hosts]


def test_listed_names_of_a_proxy_are_served_beside_those_of_this_host(tmp_path: Path) -> None:
    listed = {"HTTP_ALLOWED_HOSTS": "Broker.example, *.apps.example", "METRICS_ALLOWED_HOSTS": "*"}
    asked = (
        b"broker.EXAMPLE:443",
        b"broker.example.",
        b"a.apps.example",
        b"localhost",
        b"a.b.apps.example",
        b"apps.example",
    )
    with started(tmp_path, **listed) as server:
        ports = Ports(server)
        assert statuses(ports["http"], *asked) == [200, 200, 200, 200, 421, 421]
        assert statuses(ports["metrics"], *asked, EVIL.encode()) == [200] * 7


def test_a_port_of_other_networks_looks_at_names_only_when_they_are_listed(tmp_path: Path) -> None:
    anywhere = {
        "HTTP_ADDRESS": "0.0.0.0:0",
        "METRICS_ADDRESS": "0.0.0.0:0",
        "METRICS_ALLOWED_HOSTS": "10.1.2.3,[fd00::1]",
    }
    with started(tmp_path, **anywhere) as server:
        ports = {name: ("127.0.0.1", Ports(server)[name][1]) for name in WITH_THE_SETTING}
        asked = (b"broker", b"10.1.2.3:9464", b"[FD00:0::1]", b"127.0.0.1:9464", b"10.1.2.4")
        assert statuses(ports["http"], *asked) == [200] * 5
        assert statuses(ports["metrics"], *asked) == [421, 200, 200, 200, 421]


def over_tls(server: HttpServer, authority: Authority, host: str) -> int:
    context: ssl.SSLContext = ssl.create_default_context(cafile=str(authority.certificate))
    context.check_hostname = False
    connection = http.client.HTTPSConnection(*server.http_address, timeout=WAIT_S, context=context)
    try:
        connection.request("GET", "/ping", headers={"Host": host})
        return connection.getresponse().status
    finally:
        connection.close()


def test_names_of_the_certificate_are_served_over_https(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    certificate = authority.sign("one", names="DNS:broker.example,DNS:*.pods.example,IP:10.9.8.7,IP:fd00::7")
    files: Mapping[str, str] = {
        "HTTP_TLS_ENABLED": "true",
        "HTTP_TLS_CERT_FILE": str(certificate),
        "HTTP_TLS_KEY_FILE": str(certificate.with_suffix(".key")),
    }
    asked = [
        "broker.example:8443",
        "a.pods.example",
        "10.9.8.7",
        "[fd00::7]:1",
        "localhost",
        "one",
        "pods.example",
        EVIL,
    ]
    with started(tmp_path, **files) as server:
        assert [over_tls(server, authority, host) for host in asked] == [200] * 5 + [421] * 3
        authority.sign("one", names="DNS:other.example")
        os.kill(server.pid, signal.SIGHUP)
        eventually(lambda: over_tls(server, authority, "other.example") == 200, server.log)
        assert over_tls(server, authority, "broker.example") == 421


@pytest.mark.parametrize("entry", ["broker.example:80", "http://broker.example", "a b", "*.*.example", "a..b", "[::1"])
def test_an_entry_that_is_no_name_refuses_the_start(tmp_path: Path, entry: str) -> None:
    server = started(tmp_path, HTTP_ALLOWED_HOSTS=entry)
    server.spawn()
    assert server.wait() == 2
    assert "http.allowed_hosts" in server.log() and entry in server.log()
