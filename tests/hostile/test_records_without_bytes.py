"""Records that bring nothing (updates of keys) cost whoever sends them their turn, and not the worker its life."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.test_tls import NAMES
from tests.server.websocket_server import ON, address_of
from tests.support import wire
from tests.support.certificates import Authority, settings
from tests.support.server import ONE_SHARD, Server
from tests.support.tls_records import APPLICATION_DATA, shake_hands
from tests.support.tls_wire import TlsWire, client_context
from tests.support.websocket import request
from tests.support.wide import wide

pytestmark = pytest.mark.io_engine
UPDATES = 500_000  # 13.5 MB, which take OpenSSL some 5 s
PINGS_MIN = 20


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(authority: Authority, tmp_path: Path) -> Iterator[Server]:
    certificate = authority.sign("server", names=NAMES)
    key = str(certificate.with_suffix(".key"))
    of_port = {"MODE": "required", "CERT_FILE": str(certificate), "KEY_FILE": key}
    over = {f"SHARDD_WEBSOCKET_TLS_{name}": value for name, value in of_port.items()}
    with Server(tmp_path / "data", ONE_SHARD | ON | settings(certificate) | over) as running:
        yield running


class Flood(threading.Thread):
    """Half a frame, then updates of keys, which were all sealed before."""

    def __init__(self, address: str, context: ssl.SSLContext, opening: bytes, key_log: Path) -> None:
        super().__init__(daemon=True)
        self._peer = socket.create_connection(wire.host_and_port(address), 60.0)
        records = shake_hands(self._peer, context, key_log)
        self._bytes = records.seal(APPLICATION_DATA, opening)
        self._bytes += b"".join(records.update_of_keys() for _ in range(UPDATES))

    def run(self) -> None:
        with contextlib.suppress(OSError), self._peer:  # the server may give it up
            self._peer.sendall(self._bytes)


@pytest.mark.parametrize("transport", ["tls", wide("wss")])
def test_updates_of_keys_without_end_leave_the_worker_and_its_clients_alone(
    server: Server, authority: Authority, tmp_path: Path, transport: str
) -> None:
    half = wire.frame(wire.LOGIN_USER, bytes(60))[:20]
    address, opening = (server.address, half) if transport == "tls" else (address_of(server), request())
    flood = Flood(address, client_context(authority.certificate), opening, tmp_path / "keys")
    workers = server.worker_pids()
    with TlsWire(server.address, client_context(authority.certificate)) as stranger:
        stranger.ping()
        flood.start()
        pings = 0
        while flood.is_alive() or pings < PINGS_MIN:
            stranger.ping()  # on the same connection: it does not outlive a worker
            pings += 1
        flood.join()
    assert server.worker_pids() == workers
