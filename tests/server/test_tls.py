"""TLS on a real server: who is let in, what both sides agree on, how long it holds."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.certificates import Authority, settings
from tests.support.server import Server
from tests.support.stalls import wait_until
from tests.support.tls_wire import TlsWire, client_context

NAMES = "DNS:localhost,IP:127.0.0.1"
TWO_SHARDS = {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2", "SHARDD_SYSTEM_MEMORY_POOL_SIZE": "256 MiB"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def server(authority: Authority, directory: Path) -> Iterator[Server]:
    other = authority.sign("other", names="DNS:other.example")
    env = settings(authority.sign("server", names=NAMES), other_certificates=f"{other}:{other.with_suffix('.key')}")
    with Server(directory / "data", TWO_SHARDS | env) as running:
        yield running


def logged_in(server: Server, context: ssl.SSLContext, name: str = "localhost") -> TlsWire:
    connection = TlsWire(server.address, context, name)
    connection.login()
    return connection


@pytest.mark.io_engine
def test_messages_of_every_size_come_back_whole(server: Server, authority: Authority) -> None:
    with logged_in(server, client_context(authority.certificate)) as client:
        client.create_stream("sizes")
        client.create_topic("sizes", "t", 8)  # on both shards: what belongs to the other one is forwarded
        for partition in range(8):
            payloads = [os.urandom(size) for size in (1, 100, 4000, 16_300, 16_384, 70_000, 1_000_000)]
            for payload in payloads:
                client.send("sizes", "t", wire.to_partition(partition), [wire.message(payload)])
            seen = client.poll("sizes", "t", partition, count=100).messages
            assert [each.payload for each in seen] == payloads


@pytest.mark.io_engine
def test_many_records_of_one_byte_are_one_request(server: Server, authority: Authority) -> None:
    with TlsWire(server.address, client_context(authority.certificate)) as client:
        for byte in wire.frame(wire.PING):
            client.send_bytes(bytes([byte]))
        assert client.reply() == (0, b"")


@pytest.mark.io_engine
def test_requests_sent_ahead_are_answered_in_order(server: Server, authority: Authority) -> None:
    with logged_in(server, client_context(authority.certificate)) as client:
        client.create_stream("ahead")
        client.create_topic("ahead", "t", 1)
        frames = [
            wire.frame(wire.SEND_MESSAGES, wire.batch("ahead", "t", wire.to_partition(0), [wire.message(bytes([n]))]))
            for n in range(200)
        ]
        client.send_bytes(b"".join(frames))
        assert all(client.reply() == (0, b"") for _ in frames)
        seen = client.poll("ahead", "t", 0, count=1000).messages
        assert [each.payload for each in seen] == [bytes([n]) for n in range(200)]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_are_served_and_sessions_go_on(
    server: Server, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = client_context(authority.certificate)
    context.minimum_version = context.maximum_version = version
    session = None
    for attempt in range(8):  # whichever worker gets it: all have the same keys
        with TlsWire(server.address, context, session=session) as client:
            client.ping()
            assert client.tls.session_reused == (attempt > 0)
            session = client.tls.session


def offered(server: Server, *options: str) -> str:
    command = ["openssl", "s_client", "-connect", server.address, *options]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("-tls1", "-cipher", "ALL:@SECLEVEL=0"),
        ("-tls1_1", "-cipher", "ALL:@SECLEVEL=0"),
        ("-tls1_2", "-cipher", "AES128-SHA"),
        ("-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA"),
        ("-tls1_2", "-cipher", "aNULL:@SECLEVEL=0"),
        ("-tls1_2", "-cipher", "DHE"),
    ],
)
def test_what_is_old_is_refused(server: Server, options: tuple[str, ...]) -> None:
    assert "Cipher is (NONE)" in offered(server, *options)


def test_what_is_good_is_agreed_on(server: Server) -> None:
    assert "TLS_AES_128_GCM_SHA256" in offered(server, "-tls1_3")
    assert "TLS_AES_256_GCM_SHA384" in offered(server, "-tls1_3", "-ciphersuites", "TLS_AES_256_GCM_SHA384")
    seen = offered(server, "-tls1_2")
    assert "ECDHE-ECDSA-AES256-GCM-SHA384" in seen
    assert "Compression: NONE" in seen


def test_the_name_chooses_the_certificate(server: Server) -> None:
    assert "CN = other" in offered(server, "-servername", "other.example")
    assert "CN = server" in offered(server, "-servername", "localhost")
    assert "CN = server" in offered(server, "-servername", "unknown.example")


def test_who_trusts_another_authority_does_not_connect(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        TlsWire(server.address, client_context(Authority.make(tmp_path).certificate))


@pytest.mark.io_engine
def test_a_plain_client_is_closed_and_harms_nobody(server: Server, authority: Authority) -> None:
    with wire.Wire(server.address) as plain, pytest.raises(ConnectionError):
        plain.ping()
        plain.receive(1)
    with TlsWire(server.address, client_context(authority.certificate)) as client:
        client.ping()


def test_a_renegotiation_is_refused(server: Server) -> None:
    command = ["openssl", "s_client", "-connect", server.address, "-tls1_2", "-legacy_renegotiation"]
    done = subprocess.run(command, input=b"R\n", capture_output=True, timeout=60)
    assert b"no renegotiation" in done.stderr or b"RENEGOTIATING" in done.stdout + done.stderr
    assert b"read R BLOCK" not in done.stdout


@pytest.mark.io_engine
def test_a_client_that_reads_nothing_holds_nobody_up(server: Server, authority: Authority) -> None:
    context = client_context(authority.certificate)
    with logged_in(server, context) as other, logged_in(server, context) as deaf:
        other.create_stream("deaf")
        other.create_topic("deaf", "t", 1)
        for _ in range(16):
            other.send("deaf", "t", wire.to_partition(0), [wire.message(bytes(1_000_000))])
        ask = wire.consumer() + wire.identifier("deaf") + wire.identifier("t") + wire.optional_partition(0)
        ask += bytes([wire.POLL_OFFSET]) + bytes(8) + (16).to_bytes(4, "little") + b"\0"
        deaf.send_bytes(wire.frame(wire.POLL_MESSAGES, ask))
        for _ in range(50):
            other.ping()
        status, answer = deaf.reply()
        assert (status, len(answer) > 16_000_000) == (0, True)


@pytest.mark.io_engine
def test_what_comes_while_an_answer_leaves_does_not_send_it_twice(server: Server, authority: Authority) -> None:
    with logged_in(server, client_context(authority.certificate)) as client:
        client.create_stream("leaving")
        client.create_topic("leaving", "t", 1)
        payload = os.urandom(500_000)
        for _ in range(8):
            client.send("leaving", "t", wire.to_partition(0), [wire.message(payload)])
        ask = wire.consumer() + wire.identifier("leaving") + wire.identifier("t") + wire.optional_partition(0)
        ask += bytes([wire.POLL_OFFSET]) + bytes(8) + (8).to_bytes(4, "little") + b"\0"
        for _ in range(3):
            client.send_bytes(wire.frame(wire.POLL_MESSAGES, ask))
            pings, answer = 0, b""
            while len(answer) < 4_000_000:  # an answer is on its way, and more requests come
                client.send_bytes(wire.frame(wire.PING))
                pings += 1
                answer += client.tls.recv(50_000)
            size = int.from_bytes(answer[4:8], "little") + 8
            answer += client.receive(max(0, size - len(answer)))
            assert answer[:4] == bytes(4) and answer.count(payload) == 8
            rest = answer[size:]
            assert rest + client.receive(8 * pings - len(rest)) == bytes(8 * pings)


@pytest.mark.io_engine
def test_the_end_of_a_client_is_seen(server: Server, authority: Authority) -> None:
    clients = [TlsWire(server.address, client_context(authority.certificate)) for _ in range(5)]
    for client in clients:
        client.ping()
    with logged_in(server, client_context(authority.certificate)) as watcher:
        everybody = watcher.request(wire.GET_CLIENTS)
        for client in clients:
            client.tls.unwrap().close()
        wait_until(lambda: len(watcher.request(wire.GET_CLIENTS)) < len(everybody), "they are gone")


@pytest.mark.io_engine
def test_the_end_of_the_server_is_told_in_tls(authority: Authority, tmp_path: Path) -> None:
    env = settings(authority.sign("ending", names=NAMES))
    with Server(tmp_path / "data", TWO_SHARDS | env) as server:
        client = logged_in(server, client_context(authority.certificate))
        server.stop()
        assert client.reply()[0] == 8
        assert client.socket.recv(1) == b""  # and no SSLEOFError: it is told, not cut
        client.close()


# ---- both on one port ----


@pytest.mark.io_engine
def test_both_share_a_port(authority: Authority, tmp_path: Path) -> None:
    env = settings(authority.sign("shared", names=NAMES), mode="both")
    with Server(tmp_path / "data", TWO_SHARDS | env) as server:
        assert "passwords in clear" in server.log()
        with wire.Wire(server.address) as plain, TlsWire(server.address, client_context(authority.certificate)) as tls:
            plain.login()
            tls.login()
            plain.create_stream("a")
            assert tls.status(wire.CREATE_STREAM, wire.str8("a")) == 1012
        with wire.Wire(server.address) as plain:  # a frame whose first byte is that of a handshake
            plain.send_bytes((22).to_bytes(4, "little") + wire.LOGIN_USER.to_bytes(4, "little") + bytes(18))
            assert plain.reply()[0] != 0
            for byte in wire.frame(wire.PING):
                plain.send_bytes(bytes([byte]))
            assert plain.reply() == (0, b"")


# ---- certificates of clients ----


def test_clients_are_known_by_their_certificates(authority: Authority, tmp_path: Path) -> None:
    env = settings(
        authority.sign("knows", names=NAMES),
        client_certificates="required",
        client_ca_file=str(authority.certificate),
        client_users="CN:alice=iggy, DNS:nobody.example=nobody",
    )
    alice = client_context(authority.certificate, authority.sign("alice"))
    bob = client_context(authority.certificate, authority.sign("bob"))
    nobody = client_context(authority.certificate, authority.sign("carol", names="DNS:nobody.example"))
    stranger = client_context(authority.certificate, Authority.make(tmp_path, "foreign").sign("alice2"))
    with Server(tmp_path / "data", TWO_SHARDS | env) as server:
        with TlsWire(server.address, alice) as client:
            client.create_stream("of alice")  # without a login
        for context in (bob, nobody):
            with TlsWire(server.address, context) as client:
                assert client.status(wire.CREATE_STREAM, wire.str8("x")) == 40
                client.login()
                assert client.status(wire.CREATE_STREAM, wire.str8("of alice")) == 1012
        for context in (stranger, client_context(authority.certificate)):
            with pytest.raises(OSError), TlsWire(server.address, context) as client:
                client.ping()


# ---- reading them again ----


def shown(server: Server) -> str:
    pem = ssl.get_server_certificate(server.endpoint)
    command = ["openssl", "x509", "-noout", "-subject"]
    return subprocess.run(command, input=pem, capture_output=True, text=True, check=True).stdout


def shows(server: Server, text: str) -> bool:
    return text in shown(server)


def more_than(counts: list[int], goal: int) -> bool:
    return sum(counts) > goal


def cli(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shardd", *arguments]
    return subprocess.run(command, env=os.environ | env, capture_output=True, text=True, timeout=120)


@pytest.mark.io_engine
def test_a_reload_loses_no_connection(authority: Authority, tmp_path: Path) -> None:
    first = authority.sign("first", names=NAMES)
    env = settings(first)
    with Server(tmp_path / "data", TWO_SHARDS | env) as server:
        context = client_context(authority.certificate)
        stop, counts, faults = threading.Event(), [0], list[Exception]()

        def load() -> None:
            try:
                with logged_in(server, context) as client:
                    client.create_stream("load")
                    client.create_topic("load", "t", 4)
                    while not stop.is_set():
                        partition = wire.to_partition(counts[0] % 4)
                        client.send("load", "t", partition, [wire.message(b"%d" % counts[0])])
                        counts[0] += 1
            except Exception as problem:
                faults.append(problem)

        thread = threading.Thread(target=load)
        thread.start()
        try:
            for number, how in enumerate((signal.SIGHUP, None, signal.SIGHUP)):
                renewed = authority.sign(f"renewed{number}", names=NAMES)
                for suffix in (".key", ".pem"):
                    renewed.with_suffix(suffix).replace(first.with_suffix(suffix))
                before = counts[0]
                if how is not None:
                    os.kill(server.pid, how)
                else:
                    told = cli("tls", "reload", "--data", str(server.data_dir), env=env)
                    assert told.returncode == 0, told.stderr
                wait_until(partial(shows, server, f"CN = renewed{number}"), "the new certificate")
                wait_until(partial(more_than, counts, before + 10), "the load goes on")
        finally:
            stop.set()
            thread.join()
        assert not faults
        with logged_in(server, context) as client:
            total = sum(len(client.poll("load", "t", partition, count=1_000_000).messages) for partition in range(4))
        assert total == counts[0]


def test_a_broken_certificate_is_not_taken(authority: Authority, tmp_path: Path) -> None:
    good = authority.sign("good", names=NAMES)
    env = settings(good)
    with Server(tmp_path / "data", TWO_SHARDS | env) as server:
        good.write_text("-----BEGIN CERTIFICATE-----\nrubbish\n-----END CERTIFICATE-----\n")
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda: "the certificates stay as they were" in server.log(), "a sentence")
        assert "it holds no certificate in PEM form" in server.log()
        refused = cli("tls", "reload", "--data", str(server.data_dir), env=env)
        assert refused.returncode == 1 and "it holds no certificate in PEM form" in refused.stderr
        os.kill(server.worker_pids()[0], signal.SIGKILL)  # the next process gets the good one as well
        wait_until(lambda: "shard 0 is back" in server.log(), "the worker is back")
        for _ in range(8):
            assert "CN = good" in shown(server)


# ---- refused starts ----


def refused_start(tmp_path: Path, env: dict[str, str]) -> str:
    server = Server(tmp_path / "data", TWO_SHARDS | env)
    with pytest.raises(RuntimeError) as refused:
        server.start()
    lines = [line for line in server.log().splitlines() if "WARN" not in line]
    server.log_path.unlink()
    assert len(lines) == 1, lines
    assert "Traceback" not in str(refused.value)
    return lines[0]


def test_wrong_files_are_refused_in_a_sentence(authority: Authority, tmp_path: Path) -> None:
    good, other = authority.sign("refused", names=NAMES), authority.sign("another")
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    cases = {
        "No such file": settings(tmp_path / "missing.pem"),
        "no certificate in PEM form": settings(text, key_file=str(good.with_suffix(".key"))),
        "no private key": settings(good, key_file=str(text)),
        "belongs to another certificate": settings(good, key_file=str(other.with_suffix(".key"))),
        "says nothing": settings(good, key_file=""),
        "has no certificate": settings(good, cert_file="", key_file=""),
        "nobody says whose": settings(good, client_certificates="required"),
        "tcp.tls.client_ca_file holds no": settings(good, client_certificates="required", client_ca_file=str(text)),
        "names no cipher": settings(good, ciphers="NONSENSE"),
        "are not asked for": settings(good, client_users="CN:a=iggy"),
    }
    for sentence, env in cases.items():
        assert sentence in refused_start(tmp_path, env), env


def test_an_expired_certificate_starts_and_warns(authority: Authority, tmp_path: Path) -> None:
    env = settings(authority.sign("expired", names=NAMES, days=-1))
    with Server(tmp_path / "data", TWO_SHARDS | env) as server:
        assert "expired.pem has expired" in server.log()
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            TlsWire(server.address, client_context(authority.certificate))
        with pytest.raises(ssl.SSLCertVerificationError), socket.create_connection(server.endpoint):
            TlsWire(server.address, client_context(authority.certificate), "wrong.example")
