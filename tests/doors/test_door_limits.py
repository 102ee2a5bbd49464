"""A client of a door counts as a connection of its own address: who may connect, and who waits for a login."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec
import pytest

from shardd.engine import owner
from shardd.protocol.door_frames import CLIENT_CLOSED, CloseClient, Command, Kind, Login, OpenClient, encode_request
from shardd.protocol.namespaces import namespace
from shardd.protocol.send_request import NewMessage, Partitioning, PartitioningKind, SendMessages
from tests.doors.door_server import WAIT_S, DoorServer, StatusError
from tests.support import wire
from tests.support.stalls import stopped


def test_only_so_many_logins_fail_before_a_client_is_closed(tmp_path: Path) -> None:
    settings = {"SHARDD_SERVER_LOGIN_ATTEMPTS_MAX": "3"}
    with DoorServer(tmp_path / "data", settings, doors=("relay",)) as server, server.relay(0) as relay:
        client = relay.proven().open()
        said = [relay.ask(Kind.LOGIN, Login(client, "iggy", "wrong"))[:2] for _ in range(3)]
        assert said == [(42, 0), (42, 0), (42, CLIENT_CLOSED)]
        assert relay.ask(Kind.LOGIN, Login(client, "iggy", "iggy"))[0] == 100


def test_connections_count_by_the_address_of_the_client(tmp_path: Path) -> None:
    settings = {
        "SHARDD_SERVER_CONNECTIONS_MAX": "40",
        "SHARDD_SERVER_CONNECTIONS_PER_ADDRESS_MAX": "4",
        "SHARDD_SERVER_CONNECTIONS_BEFORE_LOGIN_MAX": "9",
    }
    with DoorServer(tmp_path / "data", settings, doors=("json", "relay")) as server, server.relay(0) as relay:
        relay.proven()
        held = [wire.connect(server.address) for _ in range(2)]
        with server.root(), server.root():  # two of this host through the door, on both workers
            with wire.Wire(server.address) as fifth, pytest.raises((ConnectionError, wire.StatusError)):
                fifth.login()
            with server.client() as refused, pytest.raises(StatusError) as caught:
                refused.ask("ping")
            assert caught.value.status == 8
            clients = [relay.open(f"192.0.2.1:{port}") for port in range(4)]
            assert relay.ask(Kind.OPEN_CLIENT, OpenClient("192.0.2.1:5"))[0] == 8
            assert relay.ask(Kind.OPEN_CLIENT, OpenClient("[::ffff:192.0.2.1]:5"))[0] == 8
            clients += [relay.open(f"192.0.2.{host}:1") for host in range(2, 7)]
            assert relay.ask(Kind.OPEN_CLIENT, OpenClient("192.0.2.9:1"))[0] == 8, "all without a login"
            relay.login(clients[0])
            clients.append(relay.open("192.0.2.9:1"))
            relay.ask(Kind.CLOSE_CLIENT, CloseClient(clients[1]))
            relay.open("192.0.2.1:6")
        for each in held:
            each.close()


def test_a_door_has_half_of_the_connections_at_most(tmp_path: Path) -> None:
    settings = {"SHARDD_SERVER_CONNECTIONS_MAX": "40"}
    with DoorServer(tmp_path / "data", settings, doors=("relay",)) as server:
        for shard in (0, 1):
            with server.relay(shard) as relay:
                relay.proven()
                for host in range(10):
                    relay.open(f"192.0.2.{host}:1")
                assert relay.ask(Kind.OPEN_CLIENT, OpenClient("192.0.2.99:1"))[0] == 8


def test_failed_logins_slow_down_the_address_of_the_client(tmp_path: Path) -> None:
    """And nobody else: neither the door nor another address."""
    with DoorServer(tmp_path / "data", doors=("relay",)) as server, server.relay(0) as relay:
        relay.proven()
        into_minute_s = time.monotonic() % 60  # each minute halves what is counted: not in the middle of this
        time.sleep(60 - into_minute_s if into_minute_s > 30 else 0)
        for _ in range(9):
            assert relay.ask(Kind.LOGIN, Login(relay.open("192.0.2.1:1"), "nobody", "wrong"))[0] == 42
        # one behind the other, a second apart: nothing depends on how fast this machine comes to the first of them
        started = time.monotonic()
        line = [Login(relay.open(f"192.0.2.1:{port}"), "nobody", "wrong") for port in (2, 3)]
        line.append(Login(relay.open("192.0.2.1:4"), "iggy", "iggy"))
        slow = [relay.send(Kind.LOGIN, login) for login in line]
        quick = relay.send(Kind.LOGIN, Login(relay.open("192.0.2.2:1"), "iggy", "iggy"))
        assert [relay.answer(each)[0] for each in (*slow, quick)] == [42, 42, 0, 0]
        assert time.monotonic() - started > 1.0, "it waits"
        assert relay.answered.index(quick) < relay.answered.index(slow[-1]), "among those of its address"


def test_a_client_without_a_login_is_closed_in_time(tmp_path: Path) -> None:
    settings = {"SHARDD_SERVER_LOGIN_TIMEOUT": "5 s"}
    with DoorServer(tmp_path / "data", settings, doors=("relay",)) as server, server.relay(0) as relay:
        stays, goes = relay.proven().open(), relay.open()
        handle = relay.login(stays)
        deadline = time.monotonic() + WAIT_S
        while relay.ask(Kind.LOGIN, Login(goes, "iggy", ""))[0] != 100:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert relay.command(handle, "ping") == 0


def test_a_door_that_reads_nothing_is_given_up(tmp_path: Path) -> None:
    settings = {"SHARDD_SERVER_SLOW_READER_TIMEOUT": "3 s"}
    with DoorServer(tmp_path / "data", settings, doors=("relay",)) as server, server.relay(0) as relay:
        with wire.connect(server.address) as tcp:
            tcp.create_topic(tcp.create_stream("s"), "t", 1)
            tcp.send("s", "t", wire.to_partition(0), [wire.message(bytes(1 << 20))])
        handle = relay.proven().login(relay.open())
        where = {"consumer": {"kind": 1, "identifier": 1}, "stream": "s", "topic": "t", "partition": 0}
        poll = {**where, "strategy": 1, "value": 0, "count": 1, "auto_commit": False}
        request = Command(handle, "poll_messages", msgspec.Raw(msgspec.msgpack.encode(poll)))
        frame = encode_request(9, Kind.COMMAND, request) * 100  # small answers would cost the worker seconds
        relay.socket.settimeout(0.5)
        deadline = time.monotonic() + WAIT_S
        while "refuses door-relay, which does not read" not in server.log():
            assert time.monotonic() < deadline, server.log()
            with contextlib.suppress(TimeoutError):
                relay.socket.sendall(frame)
        with server.relay(0) as again:
            again.proven().open()


def test_a_request_without_an_answer_gets_a_status_in_time(tmp_path: Path) -> None:
    settings = {"SHARDD_SERVER_REQUEST_TIMEOUT": "3 s"}
    with DoorServer(tmp_path / "data", settings, doors=("relay",)) as server, server.relay(0) as relay:
        with wire.connect(server.address) as tcp:
            tcp.create_topic(tcp.create_stream("s"), "t", 8)
        elsewhere = next(each for each in range(8) if owner(namespace(0, 0, each), 2) == 1)
        client = relay.proven().open()
        handle, other = relay.login(client), relay.login(relay.open())
        send = SendMessages.of("s", "t", Partitioning(PartitioningKind.PARTITION, elsewhere), [NewMessage(b"x")])
        request = Command(handle, "send_messages", msgspec.Raw(msgspec.msgpack.encode(send)))
        with stopped(server, server.worker_pids()[1]):
            status, flags, _ = relay.ask(Kind.COMMAND, request)
        assert (status, flags) == (12001, CLIENT_CLOSED)
        assert relay.command(handle, "ping") == 40
        assert relay.ask(Kind.LOGIN, Login(client, "iggy", "iggy"))[0] == 100
        assert relay.command(other, "ping") == 0
