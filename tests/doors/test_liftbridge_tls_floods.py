"""TLS at the door for Liftbridge, where the library ends it: records without bytes and hellos without end leave the
door and its clients alone."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from tests.doors.liftbridge_server import ROOT, LiftbridgeServer
from tests.doors.liftbridge_wire import PREFACE, SETTINGS_TAKEN, await_ping
from tests.doors.test_http_handshakes import ANSWER_S, FLOOD_S, REQUESTS, flooding
from tests.hostile import crowd
from tests.server.test_tls_handshakes import hello
from tests.support import wire
from tests.support.certificates import Authority
from tests.support.tls_records import APPLICATION_DATA, Records, shake_hands

COUNT: Final = 60_000
ROUNDS_MIN: Final = 10
OTHER: Final = "127.0.0.2"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    crowd.allow_descriptors(3_000)
    return Authority.make(tmp_path)


@contextlib.contextmanager
def serving(tmp_path: Path, authority: Authority, algorithm: str, version: str) -> Iterator[LiftbridgeServer]:
    certificate = authority.sign("liftbridge", names="DNS:localhost,IP:127.0.0.1", algorithm=algorithm)
    files = {"CERT_FILE": str(certificate), "KEY_FILE": str(certificate.with_suffix(".key")), "ENABLED": "true"}
    over = {f"SHARDD_LIFTBRIDGE_TLS_{name}": value for name, value in files.items()}
    with LiftbridgeServer(tmp_path / "data", over | {"SHARDD_TCP_TLS_MIN_VERSION": version}) as server:
        yield server


def speaking_http2(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.set_alpn_protocols(["h2"])
    return context


def updates_of_keys(records: Records) -> bytes:
    return b"".join(records.update_of_keys() for _ in range(COUNT))


def empty_records(records: Records) -> bytes:
    return b"".join(records.seal(APPLICATION_DATA, b"") for _ in range(COUNT))


@pytest.mark.parametrize("made", [updates_of_keys, empty_records])
def test_records_without_bytes_leave_others_of_grpc_alone(tmp_path: Path, authority: Authority, made: Any) -> None:
    with serving(tmp_path, authority, "ec", "1.3") as server:
        door = server.door()
        peer = socket.create_connection(wire.host_and_port(server.liftbridge_address), 60.0)
        records = shake_hands(peer, speaking_http2(authority), tmp_path / "keys")
        data = records.seal(APPLICATION_DATA, PREFACE) + made(records)
        taken = threading.Thread(target=send_all, args=(peer, data), daemon=True)
        credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
        with server.client(ROOT, credentials=credentials) as other:
            other.call("FetchMetadata")
            taken.start()
            rounds = 0
            while taken.is_alive() or rounds < ROUNDS_MIN:
                other.call("FetchMetadata")
                rounds += 1
        assert server.door().pid == door.pid
        assert "gives no sign of life" not in server.log()


def send_all(peer: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError), peer:  # the server may give it up
        peer.sendall(data)


def knock(server: LiftbridgeServer, context: ssl.SSLContext) -> None:
    """With a handshake of its own, from an address of its own."""
    address = wire.host_and_port(server.liftbridge_address)
    plain = socket.create_connection(address, ANSWER_S, source_address=(OTHER, 0))
    with plain, context.wrap_socket(plain, server_hostname="localhost") as stream:
        stream.sendall(PREFACE + SETTINGS_TAKEN)
        await_ping(stream)


def test_hellos_without_end_leave_the_door_for_liftbridge_and_its_clients_alone(
    tmp_path: Path, authority: Authority
) -> None:
    with serving(tmp_path, authority, "rsa:4096", "1.2") as server:
        door, context = server.door(), speaking_http2(authority)
        address = wire.host_and_port(server.liftbridge_address)
        credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
        with server.client(ROOT, credentials=credentials) as other:
            other.call("FetchMetadata")
            with flooding(address, hello(context)):
                until_s, answered, rounds = time.monotonic() + FLOOD_S, 0, 0
                while time.monotonic() < until_s or answered < REQUESTS:
                    assert time.monotonic() < until_s + ANSWER_S, f"{answered} handshakes ended beside the flood"
                    with contextlib.suppress(ssl.SSLEOFError, ConnectionError):
                        knock(server, context)
                        answered += 1
                    other.call("FetchMetadata", timeout_s=ANSWER_S)
                    rounds += 1
                print(f"{answered} of {rounds} handshakes ended beside the flood")
        assert server.door().pid == door.pid
        assert "gives no sign of life" not in server.log()
