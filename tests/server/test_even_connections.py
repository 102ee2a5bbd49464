"""Connections of every kind are spread evenly over the workers, however the kernel's hash deals them (ADR 0105)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.server.websocket_server import ON, address_of
from tests.support import wire
from tests.support.certificates import Authority, settings
from tests.support.server import Server
from tests.support.stalls import TWO_SHARDS, stopped, wait_until
from tests.support.tls_wire import TlsWire, client_context
from tests.support.websocket import WebSocket

pytestmark = pytest.mark.io_engine
CONNECTIONS = 64


def held(server: Server) -> list[int]:
    """Open connections of each worker."""
    return [
        Counter(each.status for each in psutil.Process(pid).net_connections("tcp"))[psutil.CONN_ESTABLISHED]
        for pid in server.worker_pids()
    ]


def check_spread(server: Server, connect: Callable[[], Any]) -> None:
    """By the hash alone the counts differ by 8 on average."""
    for _ in range(3):
        with ExitStack() as open_ones:
            for _ in range(CONNECTIONS):
                open_ones.enter_context(closing(connect()))
            counts = held(server)
            assert sum(counts) == CONNECTIONS and max(counts) - min(counts) <= 2, counts
        wait_until(lambda: sum(held(server)) == 0, "all are closed")


def test_plain_connections(tmp_path: Path) -> None:
    with Server(tmp_path / "data", TWO_SHARDS) as server:

        def connect() -> wire.Wire:
            made = wire.Wire(server.address)
            made.ping()
            return made

        check_spread(server, connect)


def test_connections_with_tls(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    env = settings(authority.sign("server", names="DNS:localhost,IP:127.0.0.1"))
    with Server(tmp_path / "data", TWO_SHARDS | env) as server:

        def connect() -> TlsWire:
            made = TlsWire(server.address, client_context(authority.certificate), "localhost")
            made.ping()
            return made

        check_spread(server, connect)


def test_connections_by_websocket(tmp_path: Path) -> None:
    with Server(tmp_path / "data", TWO_SHARDS | ON) as server:

        def connect() -> WebSocket:
            made = WebSocket(address_of(server))
            assert made.request(wire.PING) == (0, b"")
            return made

        check_spread(server, connect)


def test_a_worker_that_stands_still_is_given_few_clients_of_the_others(tmp_path: Path) -> None:
    """Its half by the hash waits for it, and of the others' half 8 (DEALT_MAX of native/src/peer/handover.c). Were it
    given as many as it has fewer, only a quarter of all would be answered."""
    with Server(tmp_path / "data", TWO_SHARDS) as server, ExitStack() as open_ones:
        still, alive = server.worker_pids()
        with stopped(server, still):
            made = [open_ones.enter_context(closing(wire.Wire(server.address))) for _ in range(5 * CONNECTIONS)]
            for each in made:
                each.send_bytes(wire.frame(wire.PING))
            wait_until(
                lambda: len(psutil.Process(alive).net_connections("tcp")) > len(made) * 3 // 8, "a half is served"
            )
        assert all(each.reply() == (0, b"") for each in made)
