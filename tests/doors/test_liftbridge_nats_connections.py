"""How many connections the NATS server of the door for Liftbridge has, in all and of one address."""

from __future__ import annotations

import contextlib
import socket
import tomllib
from pathlib import Path
from typing import Final

from tests.doors.liftbridge_server import WAIT_S, LiftbridgeServer
from tests.support import wire

MAX: Final = 100
OF_DOOR: Final = MAX // 2
OF_ADDRESS: Final = OF_DOOR * 9 // 10
SETTINGS: Final = {
    "SHARDD_SERVER_CONNECTIONS_MAX": str(MAX),
    "SHARDD_LIFTBRIDGE_NATS_SERVER_ENABLED": "true",
    "SHARDD_LIFTBRIDGE_NATS_SERVER_ADDRESS": "127.0.0.1:0",
}
FULL: Final = b"-ERR 'maximum connections exceeded'\r\n"


class Nats:
    """A connection of the anonymous user. `told`: what came behind INFO, up to the answer to a PING or the end."""

    def __init__(self, address: tuple[str, int], source: str) -> None:
        self._peer = socket.create_connection(address, WAIT_S, source_address=(source, 0))
        self.told = b""
        with contextlib.suppress(ConnectionError):  # it has been refused
            self._peer.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
            while not self.told.endswith(b"PONG\r\n") and (more := self._peer.recv(4096)):
                self.told += more

    @property
    def is_served(self) -> bool:
        return self.told.endswith(b"PONG\r\n")

    def close(self) -> None:
        self._peer.close()


def test_connections_beyond_the_share_of_an_address_and_of_the_door_are_refused(tmp_path: Path) -> None:
    with LiftbridgeServer(tmp_path / "data", SETTINGS) as server, contextlib.ExitStack() as held:
        told = tomllib.loads(server.runtime_config.read_text())
        address = wire.host_and_port(told["liftbridge"]["nats_server"]["address"])

        def connect(source: str) -> Nats:
            return held.enter_context(contextlib.closing(Nats(address, source)))

        first = [connect("127.0.0.1") for _ in range(OF_ADDRESS)]
        assert all(each.is_served for each in first)
        assert connect("127.0.0.1").told.endswith(FULL)
        others = [connect("127.0.0.2") for _ in range(OF_DOOR - OF_ADDRESS)]
        assert all(each.is_served for each in others), "another address has room"
        assert connect("127.0.0.3").told.endswith(FULL)
