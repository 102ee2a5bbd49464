"""WebSocket over TLS (`wss`): what holds for each of them holds for both together."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.test_tls import NAMES, TWO_SHARDS, cli, refused_start
from tests.server.test_tls_handshakes import hello
from tests.server.test_websocket import NODE, NODE_PROGRAM, has_websocket
from tests.server.websocket_server import ON, address_of, pongs, send_payload, serves
from tests.support import wire
from tests.support.certificates import Authority, settings
from tests.support.server import Server
from tests.support.stalls import wait_until
from tests.support.tls_wire import TlsWire, client_context
from tests.support.websocket import BINARY, CONTINUATION, PING, PONG, WebSocket, classic, close_frame, frame, request
from tests.support.worker_kills import PARTITIONS, Send, check_all_there, kill_workers_under_load

pytestmark = pytest.mark.io_engine
GOING_AWAY = 1001


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


def over_tls(certificate: Path, **others: str) -> dict[str, str]:
    own = {"mode": "required", "cert_file": str(certificate), "key_file": str(certificate.with_suffix(".key"))}
    of_port = {f"SHARDD_WEBSOCKET_TLS_{name.upper()}": value for name, value in (own | others).items()}
    return TWO_SHARDS | ON | of_port


@pytest.fixture(scope="module")
def server(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    env = over_tls(authority.sign("server", names=NAMES)) | {"SHARDD_SERVER_PARTIAL_FRAME_TIMEOUT": "4 s"}
    with Server(tmp_path_factory.mktemp("wss") / "data", env) as running:
        with wire.connect(running.address) as connection:
            connection.create_topic(connection.create_stream("s"), "t", 4)
        yield running


@pytest.fixture
def client(server: Server, authority: Authority) -> Iterator[WebSocket]:
    with WebSocket(address_of(server), context=client_context(authority.certificate)) as connection:
        yield connection


# ---- the classic protocol in messages in records ----


@pytest.mark.parametrize("size", [1, 1000, 16_384, 70_000, 900_000])
def test_messages_of_every_size_go_in_and_come_out(client: WebSocket, size: int) -> None:
    client.login()
    for partition in range(4):  # on both shards: what belongs to the other one is forwarded
        assert client.request(wire.SEND_MESSAGES, send_payload(size, partition)) == (0, b"")
        status, polled = client.request(wire.POLL_MESSAGES, last_of(partition))
        assert status == 0 and polled.endswith(b"x" * size)


def last_of(partition: int, count: int = 1) -> bytes:
    place = wire.identifier(0) + wire.identifier(0) + wire.optional_partition(partition)
    return wire.consumer(1) + place + struct.pack("<BQIB", wire.POLL_LAST, 0, count, 0)


def test_frames_cut_into_records_of_one_byte(client: WebSocket) -> None:
    for byte in frame(BINARY, classic(wire.PING)) + frame(PING, b"a") + frame(BINARY, classic(wire.PING)):
        client.send(bytes([byte]))
    seen = [client.receive()]
    while sum(len(payload) for opcode, payload in seen if opcode == BINARY) < 16:
        seen.append(client.receive())
    assert b"".join(payload for opcode, payload in seen if opcode == BINARY) == bytes(16)
    if (PONG, b"a") not in seen:  # it goes between answers, as it fits
        assert client.receive() == (PONG, b"a")


def test_many_frames_in_one_record_and_fragments_over_many(client: WebSocket) -> None:
    client.login()
    client.send(*(frame(BINARY, classic(wire.PING)) for _ in range(100)))
    pongs(client, 100)
    data = classic(wire.SEND_MESSAGES, send_payload(900_000))
    client.send(
        frame(BINARY, data[:500_000], final=False), frame(PING, b"between"), frame(CONTINUATION, data[500_000:])
    )
    assert client.receive() == (PONG, b"between")
    assert client.answer() == (0, b"")


def test_requests_behind_the_upgrade_in_one_record(server: Server, authority: Authority) -> None:
    with WebSocket(address_of(server), upgrade=False, context=client_context(authority.certificate)) as client:
        client.socket.sendall(request() + frame(BINARY, classic(wire.PING)) * 3)
        assert client.http()[0] == 101
        pongs(client, 3)


def test_an_upgrade_byte_by_byte(server: Server, authority: Authority) -> None:
    with WebSocket(address_of(server), upgrade=False, context=client_context(authority.certificate)) as client:
        for byte in request():
            client.socket.sendall(bytes([byte]))
        assert client.http()[0] == 101
        assert serves(client)


@pytest.mark.parametrize("piece", [3000, 200_000])
def test_a_slow_reader_gets_all_of_it_in_order(server: Server, client: WebSocket, piece: int) -> None:
    """Answers wait in the socket, sealed and not; PONGs come between messages, never inside one."""
    client.login()
    for _ in range(4):
        assert client.request(wire.SEND_MESSAGES, send_payload(900_000, 1)) == (0, b"")
    with WebSocket(address_of(server), context=_trusting(client)) as other:
        client.send(*(frame(BINARY, classic(wire.POLL_MESSAGES, last_of(1, 4))) for _ in range(3)))
        assert serves(other)
    answers, echoed, sent, read = b"", 0, 0, 0
    while len(answers) < 3 * 3_600_000:
        if read < 20:
            client.send(frame(PING, struct.pack("<I", sent)))
            sent += 1
        read += 1
        opcode, payload = _receive_slowly(client, piece)
        if opcode == PONG:
            echoed += 1
        else:
            answers += payload
    size = struct.unpack_from("<I", answers, 4)[0] + 8
    while len(answers) < 3 * size:
        opcode, payload = client.receive()
        answers += payload if opcode == BINARY else b""
    first = answers[:size]
    assert first.count(b"x" * 900_000) == 4 and answers == first * 3
    assert echoed <= sent


def _trusting(client: WebSocket) -> ssl.SSLContext:
    assert isinstance(client.socket, ssl.SSLSocket)
    return client.socket.context


def _receive_slowly(client: WebSocket, piece: int) -> tuple[int, bytes]:
    more = client.socket.recv(piece)
    assert more
    client.unread(more)
    return client.receive()


def test_ends_are_told_in_frames_and_in_tls(server: Server, client: WebSocket, authority: Authority) -> None:
    client.login()
    client.send(frame(BINARY, classic(wire.SEND_MESSAGES, send_payload(900_000))), close_frame(1000))
    assert client.answer() == (0, b"")
    assert client.closed_with() == 1000  # and no SSLEOFError behind it
    with WebSocket(address_of(server), upgrade=False, context=client_context(authority.certificate)) as refused:
        refused.socket.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert refused.http()[0] == 426
        assert refused.socket.recv(1) == b""
    with WebSocket(address_of(server), upgrade=False, context=client_context(authority.certificate)) as page:
        page.socket.sendall(request("dGhlIHNhbXBsZSBub25jZQ==", "Origin: https://a.example"))
        assert page.http()[0] == 403


def test_a_stop_is_told(authority: Authority, tmp_path: Path) -> None:
    with (
        Server(tmp_path / "data", over_tls(authority.sign("stopping", names=NAMES))) as server,
        WebSocket(address_of(server), context=client_context(authority.certificate)) as client,
    ):
        client.login()
        assert server.stop() == 0
        assert client.answer()[0] == 8
        assert client.closed_with() == GOING_AWAY


# ---- who does not belong there ----


def test_what_is_no_handshake_is_closed_and_harms_nobody(server: Server, client: WebSocket) -> None:
    for sent in (request(), classic(wire.PING) * 3, b"\x16\x03\x01\xff\xff" + bytes(200)):
        with socket.create_connection(wire.host_and_port(address_of(server)), 60) as wrong:
            wrong.sendall(sent)
            with contextlib.suppress(ConnectionResetError):
                assert b"101 Switching" not in wrong.recv(1000)
    assert serves(client)


@pytest.mark.parametrize("part", [0, 5, 100, None])
def test_half_a_handshake_and_half_an_upgrade_end_in_time(
    server: Server, authority: Authority, part: int | None
) -> None:
    with socket.create_connection(wire.host_and_port(address_of(server)), 60) as connection:
        connection.sendall(hello(client_context(authority.certificate))[:part])
        while connection.recv(65536):
            pass
    with WebSocket(address_of(server), upgrade=False, context=client_context(authority.certificate)) as connection:
        connection.socket.sendall(request()[: part and part // 3])
        if part is None:
            assert connection.http()[0] == 101
            return
        while connection.socket.recv(65536):
            pass


def test_a_record_that_was_changed_closes_its_connection_alone(server: Server, authority: Authority) -> None:
    context = client_context(authority.certificate)
    with (
        WebSocket(address_of(server), context=context) as changed,
        WebSocket(address_of(server), context=context) as other,
    ):
        assert isinstance(changed.socket, ssl.SSLSocket)
        with socket.socket(fileno=changed.socket.detach()) as below:
            below.settimeout(60)
            below.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
            with contextlib.suppress(ConnectionResetError):
                while below.recv(65536):
                    pass
        assert serves(other)


# ---- settings ----


def test_both_share_the_port(authority: Authority, tmp_path: Path) -> None:
    env = over_tls(authority.sign("shared", names=NAMES), mode="both")
    with Server(tmp_path / "data", env) as server:
        assert "websocket.tls.mode is both" in server.log()
        with (
            WebSocket(address_of(server)) as plain,
            WebSocket(address_of(server), context=client_context(authority.certificate)) as tls,
        ):
            assert serves(plain) and serves(tls)


def test_it_shows_what_tcp_shows_unless_it_has_its_own(authority: Authority, tmp_path: Path) -> None:
    tcp = settings(authority.sign("of tcp", names=NAMES)) | {"SHARDD_TCP_TLS_CLIENT_CERTIFICATES": "off"}
    own = authority.sign("own", names=NAMES)
    for number, (more, name) in enumerate([({}, "of tcp"), (over_tls(own), "own")]):
        env = TWO_SHARDS | ON | tcp | {"IGGY_WEBSOCKET_TLS_ENABLED": "true"} | more
        with Server(tmp_path / str(number), env) as server:
            context = client_context(authority.certificate)
            with TlsWire(server.address, context) as client:
                assert _common_name(client.tls) == "of tcp"
            with WebSocket(address_of(server), context=context) as browser:
                assert isinstance(browser.socket, ssl.SSLSocket)
                assert _common_name(browser.socket) == name and serves(browser)


def _common_name(connection: ssl.SSLSocket) -> str:
    shown: Any = connection.getpeercert()
    return str(dict(part for (part,) in shown["subject"])["commonName"])


def test_clients_are_known_by_their_certificates(authority: Authority, tmp_path: Path) -> None:
    env = over_tls(authority.sign("knows", names=NAMES)) | {
        "SHARDD_TCP_TLS_CLIENT_CERTIFICATES": "required",
        "SHARDD_TCP_TLS_CLIENT_CA_FILE": str(authority.certificate),
        "SHARDD_TCP_TLS_CLIENT_USERS": "CN:alice=iggy",
    }
    alice = client_context(authority.certificate, authority.sign("alice"))
    bob = client_context(authority.certificate, authority.sign("bob"))
    with Server(tmp_path / "data", env) as server:
        with WebSocket(address_of(server), context=alice) as client:
            assert client.request(wire.CREATE_STREAM, wire.str8("of alice"))[0] == 0  # without a login
        with WebSocket(address_of(server), context=bob) as client:
            assert client.request(wire.CREATE_STREAM, wire.str8("x"))[0] == 40
            client.login()
        with pytest.raises(OSError), WebSocket(address_of(server), context=client_context(authority.certificate)):
            pass


def test_a_reload_loses_no_connection_and_a_broken_certificate_changes_nothing(
    authority: Authority, tmp_path: Path
) -> None:
    certificate = authority.sign("first", names=NAMES)
    env = over_tls(certificate)
    context = client_context(authority.certificate)
    with Server(tmp_path / "data", env) as server, WebSocket(address_of(server), context=context) as before:

        def shows(name: str) -> bool:
            with WebSocket(address_of(server), context=context) as client:
                assert isinstance(client.socket, ssl.SSLSocket)
                return _common_name(client.socket) == name

        assert shows("first")
        second = authority.sign("second", names=NAMES)
        certificate.with_suffix(".key").write_bytes(second.with_suffix(".key").read_bytes())
        certificate.write_bytes(second.read_bytes())
        done = cli("tls", "reload", "--data", str(server.data_dir), env=env)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: all(shows("second") for _ in range(6)), "the new certificate")
        certificate.write_text("rubbish")
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda: "the certificates stay as they were: websocket.tls: " in server.log(), "a sentence")
        assert all(shows("second") for _ in range(6))
        assert serves(before)


def test_wrong_settings_are_refused_in_a_sentence(authority: Authority, tmp_path: Path) -> None:
    good = authority.sign("refused", names=NAMES)
    cases = {
        "websocket.tls: certificate " + str(tmp_path / "missing.pem"): over_tls(tmp_path / "missing.pem"),
        "websocket.tls.cert_file and websocket.tls.key_file": over_tls(good, key_file=""),
        "websocket.tls.cert_file: TLS is on": over_tls(good, cert_file="", key_file=""),
        "websocket.tls.mode": over_tls(good, mode="sometimes"),
    }
    for sentence, env in cases.items():
        assert sentence in refused_start(tmp_path, env), env


# ---- kills, and other implementations ----


def test_kills_of_workers_lose_nothing_acknowledged(authority: Authority, tmp_path: Path) -> None:
    context = client_context(authority.certificate)
    with Server(tmp_path / "data", over_tls(authority.sign("killed", names=NAMES))) as server:
        with wire.connect(server.address) as connection:
            connection.create_topic(connection.create_stream("k"), "t", PARTITIONS)
        address = address_of(server)

        @contextlib.contextmanager
        def connected() -> Iterator[Send]:
            with WebSocket(address, context=context) as client:
                client.login()

                def send(partition: int, payload: bytes) -> None:
                    batch = wire.batch("k", "t", wire.to_partition(partition), [wire.message(payload)])
                    assert client.request(wire.SEND_MESSAGES, batch)[0] == 0

                yield send

        acknowledged = kill_workers_under_load(server, connected)
        with wire.connect(server.address) as connection:
            check_all_there(connection, acknowledged)


@pytest.mark.skipif(not has_websocket(), reason="needs node with WebSocket")
def test_the_websocket_of_node_is_served(server: Server, authority: Authority) -> None:
    port = address_of(server).rpartition(":")[2]
    command = [str(NODE), "--experimental-websocket", "-e", NODE_PROGRAM, f"wss://localhost:{port}/any/path?x"]
    for trusted in (True, False):
        trust = {"NODE_EXTRA_CA_CERTS": str(authority.certificate)} if trusted else {}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=os.environ | trust)
        if trusted:
            assert json.loads(done.stdout) == {"bytes": 1600, "code": 3000, "clean": True}, done.stderr
        else:
            assert done.stdout == "error\n"
