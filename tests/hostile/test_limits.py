"""The limits of `tcp.*` through real servers: what the refused and the slow see, and that everybody else goes on."""

from __future__ import annotations

import resource
import socket
import struct
import time
from collections.abc import Callable

import psutil
import pytest

from tests.conftest import MakeServer
from tests.hostile import crowd
from tests.support import wire
from tests.support.server import ONE_SHARD, Server
from tests.support.stalls import stopped

DISCONNECTED, STALE_CLIENT, UNAUTHENTICATED, INVALID_CREDENTIALS, TASK_TIMEOUT = 8, 30, 40, 42, 12001
WAIT_S = 60.0


def eventually(holds: Callable[[], bool], timeout_s: float = WAIT_S) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.02)
    return holds()


def ping_status(connection: wire.Wire) -> int:
    return connection.status(wire.PING)


def is_admitted(server: Server) -> bool:
    with wire.Wire(server.address) as connection:
        return ping_status(connection) == 0


def clients_count(connection: wire.Wire) -> int:
    data, at, count = connection.request(wire.GET_CLIENTS), 0, 0
    while at < len(data):  # id, user, transport, address, groups
        at += 9 + 4 + struct.unpack_from("<I", data, at + 9)[0] + 4
        count += 1
    return count


def test_connections_beyond_the_limits_get_a_status_and_leave_room_when_they_go(make_server: MakeServer) -> None:
    limits = {"CONNECTIONS_MAX": "8", "CONNECTIONS_PER_ADDRESS_MAX": "7", "CONNECTIONS_BEFORE_LOGIN_MAX": "5"}
    server = make_server({f"SHARDD_TCP_{name}": value for name, value in limits.items()})
    anonymous = [wire.Wire(server.address) for _ in range(5)]
    assert [ping_status(each) for each in anonymous] == [0] * 5
    assert not is_admitted(server)  # five are not logged in
    for each in anonymous:
        each.login()
    more = [wire.Wire(server.address) for _ in range(2)]
    assert [ping_status(each) for each in more] == [0] * 2
    with wire.Wire(server.address) as eighth:  # the eighth of this address
        assert ping_status(eighth) == DISCONNECTED
        assert crowd.has_ended(eighth, WAIT_S)
    assert [ping_status(each) for each in anonymous + more] == [0] * 7
    anonymous[0].close()
    assert eventually(lambda: is_admitted(server))
    for each in anonymous[1:] + more:
        each.close()


def test_a_connection_gets_so_many_logins(make_server: MakeServer) -> None:
    server = make_server(ONE_SHARD | {"SHARDD_SERVER_LOGIN_ATTEMPTS_MAX": "3"})
    wrong = wire.str8("iggy") + wire.str8("wrong") + bytes(8)
    with wire.Wire(server.address) as connection:
        for _ in range(2):
            assert connection.status(wire.LOGIN_USER, wrong) == INVALID_CREDENTIALS
        connection.login()  # a right one does not bring the others back
        assert connection.status(wire.LOGIN_USER, wire.str8("x") + wire.str8("wrong") + bytes(8)) == 43  # not counted
        assert connection.status(wire.LOGIN_USER, wrong) == INVALID_CREDENTIALS
        assert crowd.has_ended(connection, WAIT_S)


def test_who_is_silent_too_long_is_told_why(make_server: MakeServer) -> None:
    server = make_server(ONE_SHARD | {"SHARDD_SERVER_LOGIN_TIMEOUT": "5 s", "SHARDD_SERVER_IDLE_TIMEOUT": "6 s"})
    address = server.address
    with wire.Wire(address) as anonymous, wire.connect(address) as silent, wire.connect(address) as busy:
        for _ in range(80):
            time.sleep(0.1)
            busy.ping()
        assert anonymous.reply() == (UNAUTHENTICATED, b"")
        assert crowd.has_ended(anonymous, WAIT_S)
        assert silent.reply() == (STALE_CLIENT, b"")
        assert crowd.has_ended(silent, WAIT_S)
        busy.ping()


def test_a_request_that_the_owner_does_not_answer_gets_a_status(make_server: MakeServer) -> None:
    server = make_server({"SHARDD_SERVER_REQUEST_TIMEOUT": "3 s", "SHARDD_TCP_SOCKET_MIGRATION": "false"})
    workers = server.worker_pids()
    if len(workers) < 2:
        pytest.skip("one shard has no peer")
    with wire.connect(server.address) as control:
        control.create_topic(control.create_stream("s"), "t", 8)
    # a connection lives on any shard, the partitions on both: each asks all of them
    connections = [wire.connect(server.address) for _ in range(12)]
    for connection in connections:
        for partition in range(8):
            connection.send("s", "t", wire.to_partition(partition), [wire.message(b"1")])
    address = wire.consumer() + wire.identifier("s") + wire.identifier("t")
    request = [address + wire.optional_partition(part) + struct.pack("<BQIB", 1, 0, 1, 0) for part in range(8)]
    statuses = set()
    with stopped(server, workers[1]):
        for connection in connections:
            connection.send_bytes(b"".join(wire.frame(wire.POLL_MESSAGES, payload) for payload in request))
        time.sleep(5.0)
    for connection in connections:
        try:
            for _ in request:
                statuses.add(connection.reply()[0])
        except OSError:
            statuses.add(-1)  # the connection was closed after the status
        connection.close()
    assert {TASK_TIMEOUT, -1} <= statuses <= {0, TASK_TIMEOUT, -1}
    assert server.worker_pids() == workers
    with wire.connect(server.address) as connection:
        for partition in range(8):
            assert connection.poll("s", "t", partition).messages


def test_pipelined_requests_without_reading_cost_little_and_end(make_server: MakeServer) -> None:
    server = make_server(ONE_SHARD | {"SHARDD_SERVER_SLOW_READER_TIMEOUT": "1 s"})
    with wire.connect(server.address) as control:
        topic = control.create_topic(control.create_stream("s"), "t", 1)
        control.send("s", topic, wire.to_partition(0), [wire.message(bytes(10_000))] * 20)
        control.poll("s", topic, 0)
        before = crowd.resident_bytes(server)
        address = wire.consumer() + wire.identifier("s") + wire.identifier("t") + wire.optional_partition(0)
        polls = wire.frame(wire.POLL_MESSAGES, address + struct.pack("<BQIB", 1, 0, 20, 0)) * 300_000
        with crowd.crowd(server.address, 4, login=True, receive_buffer_bytes=1 << 14) as greedy:
            sent = crowd.push(greedy, polls, stall_s=0.5)
            assert max(sent) < len(polls), "the server takes requests whose answers nobody reads"
            assert crowd.resident_bytes(server) - before < 96 << 20  # what a shard keeps of its pool
            assert eventually(lambda: clients_count(control) == 1), "they take nothing and stay"
        control.ping()


def test_windows_of_requests_whose_answers_nobody_reads_cost_little_and_end(make_server: MakeServer) -> None:
    server = make_server({"SHARDD_SERVER_SLOW_READER_TIMEOUT": "1 s"})
    with wire.connect(server.address) as control:
        control.create_topic(control.create_stream("s"), "t", 1)
        send = wire.frame(wire.SEND_MESSAGES, wire.batch("s", "t", wire.to_partition(0), [wire.message(b"x")]))
        window = wire.frame(wire.PING) * 31 + send
        before = crowd.resident_bytes(server)
        with crowd.crowd(server.address, 8, login=True, receive_buffer_bytes=1 << 14) as greedy:
            sent = crowd.push(greedy, window * 60_000, stall_s=0.5)
            assert max(sent) < 60_000 * len(window), "the server takes requests whose answers nobody reads"
            assert crowd.resident_bytes(server) - before < 32 << 20
            taken = control.poll("s", "t", 0, strategy=wire.POLL_LAST, count=1).messages[0].offset + 1
            assert taken <= sum(sent) // len(window) + 8
            assert eventually(lambda: clients_count(control) == 1), "they take nothing and stay"
        control.ping()


def test_a_large_frame_gets_its_turn_beside_half_sent_ones(make_server: MakeServer) -> None:
    """They hold all that unfinished frames may take; one that waits for its turn is not given up for it."""
    settings = {"SYSTEM_SHARDING_CPU_ALLOCATION": "1", "SYSTEM_MEMORY_POOL_SIZE": "128 MiB"}
    server = make_server(
        {f"SHARDD_{n}": v for n, v in settings.items()} | {"SHARDD_SERVER_PARTIAL_FRAME_TIMEOUT": "2 s"}
    )
    large = wire.frame(wire.SEND_MESSAGES, wire.batch(0, 0, wire.to_partition(0), [wire.message(bytes(8 << 20))]))
    with wire.connect(server.address, timeout_s=30.0) as honest:
        honest.create_topic(honest.create_stream("s"), "t", 1)
        with crowd.crowd(server.address, 8, login=True) as half_sent:
            crowd.push(half_sent, large[: len(large) // 2], stall_s=0.2, timeout_s=1.0)
            honest.send_bytes(large)
            assert honest.reply() == (0, b"")


def test_connections_that_are_cut_or_come_and_go_leave_nothing_behind(make_server: MakeServer) -> None:
    server = make_server()
    frame = wire.frame(wire.SEND_MESSAGES, wire.batch(0, 0, wire.to_partition(0), [wire.message(bytes(50_000))]))
    with wire.connect(server.address) as control:
        control.create_topic(control.create_stream("s"), "t", 1)
        for number in range(300):
            with wire.Wire(server.address) as connection:
                if number % 3 == 0:
                    connection.ping()
                else:
                    connection.send_bytes(frame[: 1 + number * 100])
                if number % 2:
                    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("<ii", 1, 0))
        assert eventually(lambda: clients_count(control) == 1)
        control.send(0, 0, wire.to_partition(0), [wire.message(b"whole")])
        assert [item.payload for item in control.read_all(0, 0, 0)] == [b"whole"]  # nothing of a half one


def test_a_worker_without_descriptors_keeps_its_connections_and_accepts_later(make_server: MakeServer) -> None:
    server = make_server(ONE_SHARD)
    (worker,) = server.worker_pids()
    with wire.connect(server.address) as control:
        soft, hard = resource.prlimit(worker, resource.RLIMIT_NOFILE)
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (psutil.Process(worker).num_fds() + 5, hard))
        crowded = [wire.Wire(server.address) for _ in range(20)]  # the kernel lets them wait
        for _ in range(20):
            control.ping()
            time.sleep(0.02)
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (soft, hard))
        for connection in crowded:
            connection.ping()
            connection.close()
    assert server.worker_pids() == [worker]
