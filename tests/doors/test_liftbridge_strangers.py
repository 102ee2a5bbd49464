"""Strangers at the door for Liftbridge that have calls answered without end: they are apart from clients that have
logged in, which are served, and what they cost has its bound."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from shardd.protocol.liftbridge import api
from tests.doors.liftbridge_server import ROOT, WAIT_S, LiftbridgeServer
from tests.doors.liftbridge_wire import PREFACE, SETTINGS_TAKEN, opened, request_frames
from tests.hostile.matrix.crowd import Order
from tests.hostile.matrix.doors import process_bytes_max
from tests.hostile.matrix.judge import crowd_of
from tests.hostile.matrix.lines import HALF_SENT, PIPELINED, STRANGER, UNREAD
from tests.hostile.matrix.report import Report
from tests.hostile.matrix.target import Target

ROUNDS: Final = 20
GROWTH_BYTES_MAX: Final = process_bytes_max("grpc")  # the first burst of 200, where the CPU is busy, has had 338 MiB
HEALTH: Final = "/grpc.health.v1.Health"
PATHS: Final = {
    "no login": f"/{api.SERVICE}/FetchMetadata",
    "health": f"{HEALTH}/Check",
    "no such method": f"/{api.SERVICE}/Nothing",
    "no such service": "/other.Service/Call",
}
AT_ONCE: Final = 50  # calls


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiftbridgeServer]:
    with LiftbridgeServer(tmp_path / "data", {"SHARDD_LIFTBRIDGE_ANONYMOUS_USER": ""}) as running:
        yield running


@pytest.mark.parametrize(("attack", "connections"), [(PIPELINED, 60), (PIPELINED, 200), (UNREAD, 60), (HALF_SENT, 60)])
def test_crowd_of_strangers_clients_at_work_and_newcomers_are_served(
    server: LiftbridgeServer, attack: str, connections: int
) -> None:
    door, reports = server.door(), list[Report]()
    target = Target({"grpc": server.liftbridge_address}, {}, {})
    with server.client(ROOT) as working:
        assert working.status("FetchMetadata") == ("OK", "")
        before, most = door.memory_info().rss, 0
        with crowd_of(Order("grpc", STRANGER, attack, connections, 0, target), reports):
            for _ in range(ROUNDS):
                assert working.status("FetchMetadata") == ("OK", "")
                with server.client(ROOT) as newcomer:
                    assert newcomer.status("FetchMetadata") == ("OK", "")
                most = max(most, door.memory_info().rss - before)
    assert most < GROWTH_BYTES_MAX, f"the door has grown by {most >> 20} MiB"
    assert door.is_running() and "gives no sign of life" not in server.log()
    assert reports[0].entered >= connections


def flood(server: LiftbridgeServer, path: str, closed: threading.Event) -> None:
    """Calls, as fast as they are answered, until the server closes the connection."""
    host, _, port = server.liftbridge_address.rpartition(":")
    numbers = itertools.count()
    with socket.create_connection((host, int(port)), WAIT_S) as connection:
        connection.sendall(PREFACE + SETTINGS_TAKEN)
        with suppress(ConnectionError):
            while True:
                streams = [2 * number + 1 for number in itertools.islice(numbers, AT_ONCE)]
                connection.sendall(b"".join(opened(path, each) + request_frames(each, b"") for each in streams))
                if not connection.recv(65_536):
                    break
        closed.set()


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
def test_stranger_goes_on_its_connection_ends_and_clients_of_its_address_stay(
    server: LiftbridgeServer, path: str
) -> None:
    closed = threading.Event()
    with server.client(ROOT) as working:
        assert working.status("FetchMetadata") == ("OK", "")
        attacker = threading.Thread(target=flood, args=(server, path, closed), daemon=True)
        attacker.start()
        deadline = time.monotonic() + WAIT_S
        while not closed.wait(0.05):
            assert time.monotonic() < deadline, "it may go on for ever"
            assert working.status("FetchMetadata") == ("OK", "")
        with server.client(ROOT) as newcomer:
            assert newcomer.status("FetchMetadata") == ("OK", "")
        assert working.status("FetchMetadata") == ("OK", "")
        attacker.join(WAIT_S)
    assert "it has too many calls without a login" in server.log()
