"""Each case of the Autobahn suite, by its number (`websocket_cases.py`), against a server with its own limits. Sections
12 and 13 are about compression, which is declined: `test_websocket_frames.py`."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

import pytest

from tests.server.websocket_cases import LARGE, LIVES, NORMAL, Case, cases
from tests.server.websocket_server import ON, address_of, pongs, serves
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving
from tests.support.websocket import PONG, WebSocket, close_frame

pytestmark = pytest.mark.io_engine

CASES = {case.number: case for case in cases()}
SECTIONS = (*range(1, 8), 9, 10)
SERVER: Final = Serving(env=ON | ONE_SHARD)


def run(server: Server, case: Case) -> None:
    with WebSocket(address_of(server)) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError):  # the server has broken off already, and says why
            for part in case.parts:
                client.send(part)
        for payload in case.pongs:
            while (said := client.receive()) != (PONG, payload):
                assert said[0] == PONG, said  # of a PING before: 5.5.3 lets a server skip those
        if case.later:
            client.send(*case.later)
        pongs(client, case.answers)
        if case.end == LIVES:
            assert serves(client)
            client.send(close_frame(NORMAL))
            assert client.closed_with() == NORMAL
        else:
            assert client.closed_with() == case.end


@pytest.mark.parametrize("number", CASES)
def test_case(server: Server, number: str) -> None:
    run(server, CASES[number])


@pytest.mark.parametrize("group", LARGE)
def test_cases_of_large_messages(server: Server, group: str) -> None:
    for case in LARGE[group]():
        run(server, case)


def test_the_table_has_all_cases_of_these_sections() -> None:
    """As many as the suite has in sections 1 to 7, 9 and 10."""
    numbers = [*CASES, *(case.number for make in LARGE.values() for case in make())]
    counts = {section: sum(each.startswith(f"{section}.") for each in numbers) for section in SECTIONS}
    assert counts == {1: 16, 2: 11, 3: 7, 4: 10, 5: 20, 6: 145, 7: 37, 9: 54, 10: 1}
    assert len(set(numbers)) == len(numbers)
