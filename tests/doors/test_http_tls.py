"""HTTPS: the certificates of the settings, read again when somebody asks."""

from __future__ import annotations

import http.client
import signal
import ssl
import time
from pathlib import Path

import psutil
import pytest

from tests.doors.http_server import WAIT_S, HttpServer
from tests.support.certificates import Authority
from tests.support.descriptors import links

TLS = {"SHARDD_HTTP_TLS_ENABLED": "true"}


def get(server: HttpServer, context: ssl.SSLContext, path: str = "/ping") -> tuple[int, bytes]:
    connection = http.client.HTTPSConnection(*server.http_address, timeout=WAIT_S, context=context)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.certificate))


def subject(server: HttpServer, context: ssl.SSLContext) -> str:
    with server.connect() as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as stream:
        shown = stream.getpeercert()
        assert shown is not None
        return str(dict(pair for part in shown["subject"] for pair in part)["commonName"])  # type: ignore[misc]


@pytest.mark.parametrize("section", ["HTTP", "TCP"])
def test_the_certificate_is_its_own_or_that_of_tcp(tmp_path: Path, section: str) -> None:
    authority = Authority.make(tmp_path)
    certificate = authority.sign("one", names="IP:127.0.0.1")
    files = {
        f"SHARDD_{section}_TLS_CERT_FILE": str(certificate),
        f"SHARDD_{section}_TLS_KEY_FILE": str(certificate.with_suffix(".key")),
    }
    with HttpServer(tmp_path / "data", TLS | files) as server:
        context = trusting(authority)
        assert get(server, context) == (200, b"pong")
        assert get(server, context, "/streams")[0] == 401
        with server.connect() as plain:
            plain.sendall(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"pong" not in plain.makefile("rb").read()
        with pytest.raises(ssl.SSLError):
            get(server, ssl.create_default_context())  # which does not know the authority
        door = server.door()
        descriptors = links(door.pid)
        assert not [each for each in descriptors if f"{tmp_path}/data/" in each and ".sockets" not in each]


def test_another_certificate_is_shown_when_somebody_asks(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    first, second = (authority.sign(name, names="IP:127.0.0.1") for name in ("first", "second"))
    files = {
        "SHARDD_HTTP_TLS_CERT_FILE": str(tmp_path / "shown.pem"),
        "SHARDD_HTTP_TLS_KEY_FILE": str(tmp_path / "shown.key"),
    }

    def show(certificate: Path) -> None:
        for suffix in (".pem", ".key"):
            (tmp_path / f"shown{suffix}").write_bytes(certificate.with_suffix(suffix).read_bytes())

    show(first)
    with HttpServer(tmp_path / "data", TLS | files) as server:
        context = trusting(authority)
        assert subject(server, context) == "first"
        show(second)
        psutil.Process(server.pid).send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + WAIT_S
        while subject(server, context) != "second":
            assert time.monotonic() < deadline, server.log()
            time.sleep(0.05)
        (tmp_path / "shown.pem").write_text("nothing")
        psutil.Process(server.pid).send_signal(signal.SIGUSR1)
        while "the certificates stay as they were" not in server.log():
            assert time.monotonic() < deadline, server.log()
            time.sleep(0.05)
        assert subject(server, context) == "second"
        door = server.door()
        door.kill()
        server.door(other_than=door.pid)
        assert subject(server, context) == "second"


def test_wrong_settings_are_refused_in_a_sentence(tmp_path: Path) -> None:
    for number, (more, said) in enumerate(
        (({}, "http.tls.cert_file"), ({"SHARDD_HTTP_TLS_CERT_FILE": "/nowhere"}, "one of them alone"))
    ):
        server = HttpServer(tmp_path / f"data-{number}", {**TLS, **more})
        server.spawn()
        assert server.wait() == 2
        assert said in server.log()


def test_a_certificate_for_this_host_alone(tmp_path: Path) -> None:
    with HttpServer(tmp_path / "data", {**TLS, "SHARDD_HTTP_TLS_SELF_SIGNED": "true"}) as server:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        assert get(server, context) == (200, b"pong")
        assert "self-signed" in server.log()


def test_beside_the_door_for_quic_which_always_has_a_certificate(tmp_path: Path) -> None:
    quic = {"SHARDD_QUIC_ENABLED": "true", "SHARDD_QUIC_ADDRESS": "127.0.0.1:0"}
    with HttpServer(tmp_path / "data", quic) as server:
        assert server.root().get("/streams").json == []
