"""Strangers at the door for Liftbridge that have calls answered without end: they are apart from clients that have
logged in, which are served, and what they cost has its bound."""

from __future__ import annotations

import base64
import itertools
import select
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any, Final

import grpc
import pytest

from shardd.protocol.liftbridge import api
from tests.doors.liftbridge_server import ROOT, WAIT_S, LiftbridgeServer
from tests.doors.liftbridge_wire import PREFACE, SETTINGS_TAKEN, frame, opened, request_frames
from tests.hostile.matrix.crowd import Order
from tests.hostile.matrix.judge import crowd_of
from tests.hostile.matrix.lines import HALF_SENT, PIPELINED, STRANGER, UNREAD
from tests.hostile.matrix.memory import process_bytes_max
from tests.hostile.matrix.report import Report
from tests.hostile.matrix.target import Target
from tests.support.serving import Serving
from tests.support.wide import wide, wide_but

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
WRONG: Final = [("authorization", "Basic " + base64.b64encode(b"iggy:wrong").decode())]
FIRST_CALLS: Final = 400
SERVER: Final = Serving(LiftbridgeServer, {"SHARDD_LIFTBRIDGE_ANONYMOUS_USER": ""})


@pytest.mark.parametrize(
    ("attack", "connections"), [wide(PIPELINED, 60), (PIPELINED, 200), (UNREAD, 60), (HALF_SENT, 60)]
)
def test_crowd_of_strangers_clients_at_work_and_newcomers_are_served(
    own_server: LiftbridgeServer, attack: str, connections: int
) -> None:
    door, reports = own_server.door(), list[Report]()
    target = Target({"grpc": own_server.liftbridge_address}, {}, {})
    with own_server.client(ROOT) as working:
        assert working.status("FetchMetadata") == ("OK", "")
        before, most = door.memory_info().rss, 0
        with crowd_of(Order("grpc", STRANGER, attack, connections, 0, target), reports):
            for _ in range(ROUNDS):
                assert working.status("FetchMetadata") == ("OK", "")
                with own_server.client(ROOT) as newcomer:
                    assert newcomer.status("FetchMetadata") == ("OK", "")
                most = max(most, door.memory_info().rss - before)
    assert most < GROWTH_BYTES_MAX, f"the door has grown by {most >> 20} MiB"
    assert door.is_running() and "gives no sign of life" not in own_server.log()
    assert reports[0].entered >= connections


def given_up(stream: int) -> bytes:
    return frame(3, 0, stream, (8).to_bytes(4))  # RST_STREAM, CANCEL


def flood(server: LiftbridgeServer, path: str, closed: threading.Event, *, gives_up: bool = False) -> None:
    """Calls, as fast as they are answered, until the server closes the connection. `gives_up`: each with a password
    that is to be looked at, and cancelled at once."""
    host, _, port = server.liftbridge_address.rpartition(":")
    numbers = itertools.count()
    with socket.create_connection((host, int(port)), WAIT_S) as connection:
        connection.sendall(PREFACE + SETTINGS_TAKEN)
        with suppress(ConnectionError):
            while True:
                streams = [2 * number + 1 for number in itertools.islice(numbers, AT_ONCE)]
                if gives_up:
                    connection.sendall(b"".join(opened(path, each, WRONG) + given_up(each) for each in streams))
                    readable, _, _ = select.select([connection], [], [], 0.02)
                    if readable and not connection.recv(65_536):
                        break
                    continue
                connection.sendall(b"".join(opened(path, each) + request_frames(each, b"") for each in streams))
                if not connection.recv(65_536):
                    break
        closed.set()


@pytest.mark.parametrize(
    "path", wide_but([PATHS["no login"], PATHS["no such service"]], PATHS.values()), ids=PATHS.keys()
)
def test_stranger_goes_on_its_connection_ends_and_clients_of_its_address_stay(
    own_server: LiftbridgeServer, path: str
) -> None:
    closed = threading.Event()
    with own_server.client(ROOT) as working:
        assert working.status("FetchMetadata") == ("OK", "")
        attacker = threading.Thread(target=flood, args=(own_server, path, closed), daemon=True)
        attacker.start()
        deadline = time.monotonic() + WAIT_S
        while not closed.wait(0.05):
            assert time.monotonic() < deadline, "it may go on for ever"
            assert working.status("FetchMetadata") == ("OK", "")
        with own_server.client(ROOT) as newcomer:
            assert newcomer.status("FetchMetadata") == ("OK", "")
        assert working.status("FetchMetadata") == ("OK", "")
        attacker.join(WAIT_S)
    assert "it has too many calls without a login" in own_server.log()


def test_stranger_gives_up_calls_without_end_its_connection_ends_and_clients_of_its_address_stay(
    own_server: LiftbridgeServer,
) -> None:
    closed = threading.Event()
    path = f"/{api.SERVICE}/FetchMetadata"
    with own_server.client(ROOT) as working:
        assert working.status("FetchMetadata") == ("OK", "")
        threading.Thread(target=flood, args=(own_server, path, closed), kwargs={"gives_up": True}, daemon=True).start()
        deadline = time.monotonic() + WAIT_S
        while not closed.wait(0.05):
            assert time.monotonic() < deadline, "it may go on for ever"
            assert working.status("FetchMetadata") == ("OK", "")
    assert "it has too many calls without a login" in own_server.log()


def test_clients_of_one_address_begin_with_more_calls_than_may_wait_none_loses_its_connection(
    own_server: LiftbridgeServer,
) -> None:
    """Two connections with hundreds of first calls each, and right passwords: 512 find a place to wait."""
    with own_server.client(ROOT) as first, own_server.client(ROOT) as second:
        calls: list[Any] = []
        for client in (first, second):
            grpc.channel_ready_future(client.channel).result(WAIT_S)
        for client in (first, second):
            ask = client.channel.unary_unary(f"/{api.SERVICE}/FetchMetadata")
            calls += [ask.future(b"", timeout=WAIT_S, metadata=client.metadata) for _ in range(FIRST_CALLS)]
        ended = Counter((each.code(), each.details()) for each in calls)
        too_many = (grpc.StatusCode.UNAVAILABLE, "too many calls without a login at a time")
        assert set(ended) <= {(grpc.StatusCode.OK, ""), too_many}, ended
        assert ended[grpc.StatusCode.OK, ""] >= FIRST_CALLS
    assert "are closed" not in own_server.log()
