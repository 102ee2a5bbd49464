"""Clients of 0.9 that come with their id on another connection (docs/protocol/iggy-0.9.md#session)."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import time
from typing import Final

from tests.support import wire
from tests.support.iggy09 import Connection
from tests.support.server import TWO_SHARDS, Server
from tests.support.serving import Serving

CREATE_STREAM, CREATE_USER, LOGOUT = 128, 141, 3
PING, GET_STREAMS = 1, 201
SESSION_ERROR, SESSION_TOO_LOW, ALREADY_APPLIED, EXISTS = 12, 7, 59, 1012
CONNECTIONS = 6  # so many that both shards have some of them
WAIT_S = 60.0
SERVER: Final = Serving(env=TWO_SHARDS)


def create_stream(connection: Connection, name: bytes) -> tuple[int, int]:
    """Status, and reason of an eviction."""
    answer = connection.change(CREATE_STREAM, bytes([len(name)]) + name)
    return answer.status, answer.reason


def test_only_the_latest_connection_of_a_client_may_change_something(own_server: Server) -> None:
    client = os.urandom(16)
    connections = [Connection(own_server.address, client) for _ in range(CONNECTIONS)]
    for number, latest in enumerate(connections):
        assert latest.login().reason == 0
        latest.request = number + 1  # it goes on where the one before has stopped
        assert create_stream(latest, b"s%d" % number) == (0, 0)
        for earlier in connections[:number]:
            assert create_stream(earlier, b"never") == (0, SESSION_TOO_LOW)
            assert earlier.read(PING).status == 0
    sessions = [connection.session for connection in connections]
    assert sessions == sorted(set(sessions))
    with wire.connect(own_server.address) as classic:
        assert b"never" not in classic.request(GET_STREAMS)


def test_numbers_of_requests_go_on_over_connections(own_server: Server) -> None:
    client, connections = os.urandom(16), list[Connection]()  # none of them is closed
    for number in range(CONNECTIONS):
        connection = Connection(own_server.address, client)
        connections.append(connection)
        assert connection.login().reason == 0
        if number > 0:
            connection.request = number
            assert create_stream(connection, b"n%d" % (number - 1)) == (0, 0)  # the answer comes along
        if number > 1:
            connection.request = number - 1
            assert create_stream(connection, b"n%d" % (number - 2)) == (ALREADY_APPLIED, 0)
        connection.request = number + 1
        assert create_stream(connection, b"n%d" % number) == (0, 0)


def test_an_id_stays_with_its_user(own_server: Server) -> None:
    client = os.urandom(16)
    root = Connection(own_server.address, client)
    assert root.login().reason == 0
    name = b"\x05other" + b"\x08password" + b"\x01\x00"
    assert root.change(CREATE_USER, name).status == 0
    for _ in range(CONNECTIONS):
        other = Connection(own_server.address, client)
        assert other.login(b"other", b"password").reason == SESSION_ERROR
        assert other.read(GET_STREAMS).status == 40
    assert create_stream(root, b"still") == (0, 0)
    assert root.change(LOGOUT).status == 0
    other = Connection(own_server.address, client)
    assert other.login(b"other", b"password").reason == 0


def test_ids_of_different_clients_do_not_touch_each_other(own_server: Server) -> None:
    connections = [Connection(own_server.address) for _ in range(CONNECTIONS)]
    for connection in connections:
        assert connection.login().reason == 0
    for number, connection in enumerate(connections):
        assert create_stream(connection, b"own%d" % number) == (0, 0)


def test_a_client_comes_again_after_the_death_of_a_worker(own_server: Server) -> None:
    client = os.urandom(16)
    connections = [Connection(own_server.address, client) for _ in range(CONNECTIONS)]
    for connection in connections:
        assert connection.login().reason == 0
    os.kill(own_server.worker_pids()[1], signal.SIGKILL)
    latest = comes_again(own_server, client)
    for earlier in connections:
        with contextlib.suppress(OSError, EOFError):  # it was on the shard that died
            assert create_stream(earlier, b"never") == (0, SESSION_TOO_LOW)
    latest.request = 1000
    assert create_stream(latest, b"again") in ((0, 0), (EXISTS, 0))


def comes_again(server: Server, client: bytes) -> Connection:
    until = time.monotonic() + WAIT_S
    while True:
        try:
            connection = Connection(server.address, client)
            if connection.login().reason == 0 and connection.session != 0:
                return connection
        except (OSError, EOFError, struct.error):
            pass
        assert time.monotonic() < until, "nobody logs in"
        time.sleep(0.1)
