"""Polls that wait (POLL_AND_WAIT) over every way in, messages that expire meanwhile, and clients that want too much of
them. What happens to the wait itself: test_waiting_polls.py."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from tests.conftest import MakeServer
from tests.server.test_retention import ENV as QUICK_RETENTION
from tests.server.test_tls import NAMES, logged_in
from tests.server.test_waiting_polls import LONG_MS, SHARDS, answer, ask, is_silent, question, send, waiting_polls
from tests.server.websocket_server import ON, address_of
from tests.support import wire
from tests.support.certificates import Authority, settings
from tests.support.server import ONE_SHARD, Server
from tests.support.stalls import wait_until
from tests.support.tls_wire import client_context
from tests.support.websocket import BINARY, PING, PONG, WebSocket, classic, frame
from tests.support.wire import Wire

pytestmark = pytest.mark.io_engine

ROUNDS = 12
PARTITIONS = 4
SECOND_US = 1_000_000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if len(os.sched_getaffinity(0)) < SHARDS:
        pytest.skip("needs two CPUs")
    path: Path = tmp_path_factory.mktemp("ways")
    path.chmod(0o700)
    env = settings(authority.sign("server", names=NAMES)) | ON
    env |= {"SHARDD_TCP_TLS_MODE": "both", "SHARDD_UNIX_PATH": str(path / "s.sock")}
    env["SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION"] = str(SHARDS)
    with Server(path / "data", env=env) as running:
        with wire.connect(running.address) as connection:
            connection.create_stream("s")
            connection.create_topic("s", "t", PARTITIONS)
        yield running


@pytest.fixture
def other(server: Server) -> Iterator[Wire]:
    with wire.connect(server.address) as connection:
        connection.purge_topic("s", "t")
        yield connection


def waits_well(waiting: Wire, other: Wire) -> None:
    """Whatever shard has the partition, and with requests sent behind it."""
    for number in range(ROUNDS):
        partition = number % PARTITIONS
        if number % 2 == 0:
            ask(waiting, question("s", partition))
        else:
            both = wire.frame(ExtensionCode.POLL_AND_WAIT, question("s", partition)) + wire.frame(wire.PING)
            waiting.send_bytes(both)
        if number % 3 == 0:
            assert is_silent(waiting, 0.05)
        send(other, "s", b"%d" % number, partition)
        assert answer(waiting) == (0, [b"%d" % number])
        if number % 2 == 1:
            assert waiting.reply() == (0, b"")


def test_over_tls(server: Server, authority: Authority, other: Wire) -> None:
    with logged_in(server, client_context(authority.certificate)) as waiting:
        waits_well(waiting, other)


def test_over_the_unix_socket(server: Server, other: Wire) -> None:
    with wire.connect(str(server.data_dir.parent / "s.sock")) as waiting:
        waits_well(waiting, other)


def test_over_websocket_and_its_pings_are_answered_meanwhile(server: Server, other: Wire) -> None:
    with WebSocket(address_of(server)) as waiting:
        waiting.login()
        for number in range(ROUNDS):
            partition = number % PARTITIONS
            waiting.send(frame(BINARY, classic(ExtensionCode.POLL_AND_WAIT, question("s", partition))))
            if number % 2 == 0:
                waiting.send(frame(PING, b"%d" % number))
                assert waiting.receive() == (PONG, b"%d" % number)
            send(other, "s", b"%d" % number, partition)
            status, payload = waiting.answer()
            assert status == 0 and payload.endswith(b"%d" % number)


@pytest.mark.parametrize("way", ["plain", "tls"])
def test_who_leaves_while_it_waits_is_not_waited_for(
    server: Server, authority: Authority, other: Wire, way: str
) -> None:
    context = client_context(authority.certificate)
    many = [logged_in(server, context) if way == "tls" else wire.connect(server.address) for _ in range(10)]
    for number, each in enumerate(many):
        ask(each, question("s", number % PARTITIONS))
    wait_until(lambda: waiting_polls(other) == len(many), "polls that wait")
    for each in many:
        each.close()
    wait_until(lambda: waiting_polls(other) == 0, "their end")


@pytest.mark.parametrize("way", ["plain", "tls", "unix"])
def test_who_leaves_behind_later_requests_is_not_waited_for_and_they_are_carried_out(
    server: Server, authority: Authority, other: Wire, way: str
) -> None:
    if way == "tls":
        waiting: Wire = logged_in(server, client_context(authority.certificate))
    else:
        waiting = wire.connect(str(server.data_dir.parent / "s.sock") if way == "unix" else server.address)
    waiting.send_bytes(wire.frame(ExtensionCode.POLL_AND_WAIT, question("s", 0)))
    wait_until(lambda: waiting_polls(other) == 1, "the poll that waits")
    later = wire.batch("s", "t", wire.to_partition(1), [wire.message(b"later")])
    waiting.send_bytes(wire.frame(wire.SEND_MESSAGES, later))
    assert is_silent(waiting)
    with socket.socket(fileno=os.dup(waiting.socket.fileno())) as same:
        same.shutdown(socket.SHUT_WR)
    assert answer(waiting) == (0, [])
    assert waiting.reply() == (0, b"")
    assert waiting_polls(other) == 0
    assert other.partitions("s", "t")[1].messages_count == 1
    waiting.close()


def test_bytes_behind_a_request_change_nothing(server: Server, other: Wire) -> None:
    """They are not kept while it waits."""
    with wire.connect(server.address) as waiting:
        for partition in range(PARTITIONS):
            ask(waiting, question("s", partition))  # the route is known from here on
            send(other, "s", b"first", partition)
            assert answer(waiting) == (0, [b"first"])
            ask(waiting, question("s", partition) + b"\xff" * 3000)
            assert is_silent(waiting, 0.05)
            send(other, "s", b"second", partition)
            assert answer(waiting) == (0, [b"second"])


def test_one_member_cannot_wait_for_more_than_a_thousand_partitions(make_server: MakeServer) -> None:
    server = make_server(ONE_SHARD)
    with wire.connect(server.address) as waiting:
        waiting.create_stream("s")
        waiting.create_topic("s", "t", 1000)
        address = wire.identifier("s") + wire.identifier("t")
        waiting.request(wire.CREATE_PARTITIONS, address + struct.pack("<I", 1))
        waiting.request(Code.CREATE_CONSUMER_GROUP, address + wire.str8("g"))
        waiting.request(Code.JOIN_CONSUMER_GROUP, address + wire.identifier("g"))
        ask(waiting, question("s", None, group="g"))
        assert answer(waiting)[0] == 2015
        waiting.request(wire.DELETE_PARTITIONS, address + struct.pack("<I", 1))
        ask(waiting, question("s", None, group="g", wait_ms=100))
        assert answer(waiting) == (0, [])


def test_so_many_polls_wait_as_the_settings_say(make_server: MakeServer) -> None:
    bounds = {"SHARDD_SERVER_WAITING_POLLS_MAX": "5", "SHARDD_SERVER_WAITING_POLLS_PER_USER_MAX": "3"}
    server = make_server(ONE_SHARD | bounds)
    with wire.connect(server.address) as other:
        other.create_stream("s")
        other.create_topic("s", "t", 1)
        many = [wire.connect(server.address) for _ in range(4)]
        questions = [question("s", 0)[:3] + struct.pack("<I", each) + question("s", 0)[7:] for each in range(4)]
        for each, asked in zip(many[:3], questions[:3], strict=True):
            ask(each, asked)
        wait_until(lambda: waiting_polls(other) == 3, "polls that wait")
        ask(many[3], questions[3])
        assert answer(many[3])[0] == 5  # one user has enough
        many[0].close()
        wait_until(lambda: waiting_polls(other) == 2, "one that has left")
        ask(many[3], questions[3])
        send(other, "s", b"x")
        for each in many[1:]:
            assert answer(each) == (0, [b"x"])
            each.close()


def test_where_no_poll_may_wait_a_plain_one_is_answered_and_the_client_polls(make_server: MakeServer) -> None:
    server = make_server(ONE_SHARD | {"SHARDD_SERVER_WAITING_POLLS_MAX": "0"})
    with wire.connect(server.address) as other:
        other.create_stream("s")
        other.create_topic("s", "t", 1)
        ask(other, question("s", 0))
        assert answer(other)[0] == 5
        send(other, "s", b"x")
        ask(other, question("s", 0))
        assert answer(other) == (0, [b"x"])  # what is there needs no wait


def test_messages_that_expire_while_somebody_waits_end_no_wait(make_server: MakeServer) -> None:
    server = make_server(QUICK_RETENTION | ONE_SHARD)
    with wire.connect(server.address) as waiting, wire.connect(server.address) as other:
        waiting.create_stream("s")
        fixed = struct.pack("<IBQQB", 1, 1, SECOND_US, 0, 0)
        waiting.request(wire.CREATE_TOPIC, wire.identifier("s") + fixed + wire.str8("t"))
        for _ in range(30):
            send(other, "s", b"x" * 1000)
        last = struct.pack("<BQIB", wire.POLL_OFFSET, 30, 10, 0)  # behind all that is there
        payload = question("s", 0, LONG_MS)
        ask(waiting, payload[: -len(last) - 4] + last + payload[-4:])
        wait_until(lambda: other.partitions("s", "t")[0].messages_count == 0, "the end of all messages")
        assert is_silent(waiting)
        send(other, "s", b"after")
        assert answer(waiting) == (0, [b"after"])
