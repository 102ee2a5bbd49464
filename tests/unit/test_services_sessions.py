"""Login, logout, clients, statistics and the order of checks around them (golden scenarios `login`, `login-session`,
`auth-required`, `clients`, `stats`, `cluster-and-snapshot`)."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from shardd.engine import twin
from shardd.protocol.codes import Code
from shardd.protocol.namespaces import namespace
from shardd.runtime import password_hash
from shardd.service import base, long_answers, system
from shardd.service.sessions import SessionTable
from tests.support import wire
from tests.support.wire import Wire
from tests.unit.services_harness import Workers, moving

__all__ = ["moving"]  # a fixture
NOT_LOGGED_IN = 2**32 - 1


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("data"), shards=2) as running:
        running.create_user("plain")
        running.create_user("asleep", active=False)
        running.create_user("1234")
        yield running


def login(name: str, password: str) -> bytes:
    return wire.str8(name) + wire.str8(password) + bytes(8)


def test_login_errors_in_order(workers: Workers) -> None:
    wire_ = workers.anonymous()
    for name, password, status in (
        ("iggy", "wrong", 42),
        ("nobody", "iggy", 42),
        ("IGGY", "iggy", 42),
        ("ig", "ig", 43),
        ("x" * 51, "iggy", 43),
        ("iggy", "ig", 44),
        ("iggy", "x" * 101, 44),
        ("iggy", "", 44),
        ("x" * 50, "x" * 100, 42),
        ("asleep", "secret", 47),
        ("asleep", "wrong", 47),
        ("", "iggy", 4),
        ("000", "iggy", 42),
    ):
        assert wire_.status(Code.LOGIN_USER, login(name, password)) == status, name
    assert wire_.status(Code.GET_STREAMS) == 40
    assert wire_.exchange(Code.LOGIN_USER, login("1234", "secret")) == (0, struct.pack("<I", 3))


def test_the_password_of_a_client_that_has_left_is_not_verified(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one at work goes on, those behind it that have left cost nothing, who waits and has more to ask is served."""
    seen, go, verify = [], threading.Event(), password_hash.verify_password

    def slowly(password_hash: str, password: str) -> bool:
        seen.append(password)
        go.wait(10)
        return verify(password_hash, password)

    monkeypatch.setattr(password_hash, "verify_password", slowly)
    waiting = workers.passwords_waiting()
    try:
        at_work = workers.anonymous()
        at_work.send_bytes(wire.frame(Code.LOGIN_USER, login("iggy", "iggy")))
        wait_until(lambda: len(seen) == 1)
        crowd = [workers.anonymous() for _ in range(6)]
        for number, one in enumerate(crowd):
            one.send_bytes(wire.frame(Code.LOGIN_USER, login("iggy", f"gone {number}")))
        patient, half = workers.anonymous(), workers.anonymous()
        patient.send_bytes(wire.frame(Code.LOGIN_USER, login("iggy", "iggy")))
        half.send_bytes(wire.frame(Code.LOGIN_USER, login("iggy", "iggy")) + wire.frame(Code.PING))
        half.socket.shutdown(socket.SHUT_WR)  # its PING is still to come
        wait_until(lambda: workers.passwords_waiting() == waiting + 8)
        for one in crowd:
            one.close()
        time.sleep(0.05)  # the other end has it by then
    finally:
        go.set()
    for one in (at_work, patient, half):
        assert one.reply()[0] == 0
    assert half.reply() == (0, b"")
    assert seen == ["iggy"] * 3
    assert patient.status(Code.GET_STREAMS) == 0


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_login_switches_failure_keeps_logout_ends(workers: Workers) -> None:
    wire_ = workers.connect(name="plain", password="secret")
    assert wire_.status(Code.GET_STREAMS) == 41
    assert wire_.login() == 0
    assert wire_.status(Code.GET_STREAMS) == 0
    assert wire_.status(Code.LOGIN_USER, login("plain", "wrong")) == 42
    assert wire_.status(Code.GET_STREAMS) == 0
    assert wire_.status(Code.LOGOUT_USER) == 0
    assert wire_.status(Code.GET_STREAMS) == 40
    assert wire_.status(Code.LOGOUT_USER) == 40
    assert wire_.login() == 0


def test_decoding_comes_before_the_login_check(workers: Workers) -> None:
    wire_ = workers.anonymous()
    assert wire_.status(Code.PING) == 0
    assert wire_.status(Code.GET_STREAM, b"\2\0") == 4
    assert wire_.status(Code.GET_STREAM, b"\2\2s") == 3
    assert wire_.status(Code.GET_STREAM, wire.identifier("st")) == 40
    bad_compression = wire.identifier("st") + struct.pack("<IBQQB", 1, 9, 0, 0, 0) + wire.str8("tp")
    assert wire_.status(Code.CREATE_TOPIC, bad_compression) == 40
    for code in (Code.GET_STATS, Code.GET_CLUSTER_METADATA, Code.GET_ME, Code.GET_CLIENTS, Code.GET_STREAMS):
        assert wire_.status(code) == 40
    for unknown in (0, 2, 9, 23, 40, 99, 400, 401, 500, 502, 606, 2**32 - 1):
        assert wire_.status(unknown, b"payload!") == 3
    root = workers.connect()
    for unknown in (11, 31, 44, 600):
        assert root.status(unknown, b"payload!") == 3
    assert root.status(Code.PING, b"surplus") == 0


def local_address(wire_: Wire) -> str:
    host, port = wire_.socket.getsockname()
    return f"{host}:{port}"


def client(wire_: Wire, user_id: int) -> bytes:
    address = local_address(wire_)
    return struct.pack("<IIB", twin.xxh32(address.encode()), user_id, 1) + wire.str32(address) + bytes(4)


@pytest.mark.parametrize("shard", [0, 1])
def test_clients_of_all_shards(workers: Workers, shard: int) -> None:
    me, other, anonymous = workers.connect(shard), workers.connect(1 - shard, "plain", "secret"), workers.anonymous(1)
    anonymous.ping()
    assert me.request(Code.GET_ME) == client(me, 0)
    assert other.request(Code.GET_ME) == client(other, 1)
    for wire_, user_id in ((me, 0), (other, 1), (anonymous, NOT_LOGGED_IN)):
        entry = client(wire_, user_id)
        assert me.request(Code.GET_CLIENT, entry[:4]) == entry
        assert entry in me.request(Code.GET_CLIENTS)
    assert me.status(Code.GET_CLIENT, bytes(4)) == 101
    assert me.exchange(Code.GET_CLIENT, struct.pack("<I", twin.xxh32(b"nobody"))) == (0, b"")
    assert other.status(Code.GET_CLIENTS) == 41
    assert other.status(Code.GET_CLIENT, bytes(4)) == 41
    other.request(Code.LOGOUT_USER)
    assert me.request(Code.GET_CLIENT, client(other, 0)[:4]) == client(other, NOT_LOGGED_IN)


def test_clients_are_listed_in_pieces(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_ENTRIES_AT_ONCE", 3)
    monkeypatch.setattr(long_answers, "_SORTED_AT_ONCE", 2)
    mine = [workers.connect(number % 2) for number in range(11)]
    listed = mine[0].request(Code.GET_CLIENTS)
    by_id = sorted(mine, key=lambda each: struct.unpack_from("<I", client(each, 0)))
    places = [listed.index(client(each, 0)) for each in by_id]
    assert places == sorted(places)


def test_cluster_metadata_names_the_bound_address(workers: Workers) -> None:
    for shard in (0, 1):
        reply = workers.connect(shard).request(Code.GET_CLUSTER_METADATA)
        port = int(workers.addresses[shard].rpartition(":")[2])
        node = wire.str32("iggy-node") + wire.str32("127.0.0.1") + struct.pack("<HHHHBB", port, 0, 0, 0, 0, 0)
        assert reply == wire.str32("single-node") + struct.pack("<I", 1) + node


def test_stats(workers: Workers) -> None:
    root = workers.connect(1)
    root.create_stream("st")
    root.create_topic("st", "tp", 3)
    root.send("st", "tp", wire.to_partition(0), [wire.message(b"hello"), wire.message(b"you")])
    reply = root.request(Code.GET_STATS)
    (clients,) = struct.unpack_from("<I", reply, 100)
    assert struct.unpack_from("<QIIIIQ", reply, 68) == (136, 1, 1, 3, 3, 2)
    assert clients >= 1
    assert struct.unpack_from("<I", reply, 104) == (0,)
    process_id, _, _, memory, total_memory = struct.unpack_from("<IffQQ", reply)
    assert process_id > 0
    assert 1 << 20 < memory < total_memory
    run_time_us, start_time_us = struct.unpack_from("<QQ", reply, 36)
    assert run_time_us % 1_000_000 == 0 == start_time_us % 1_000_000
    assert wire.str32("0.8.0") + struct.pack("<II", 8000, 0) in reply
    _, free, total = struct.unpack_from("<IQQ", reply, len(reply) - 20)
    assert 0 < free <= total
    assert workers.connect(name="plain", password="secret").status(Code.GET_STATS) == 41
    root.delete_stream("st")


def test_a_moved_connection_keeps_its_session(moving: Workers) -> None:
    moving.create_user("plain")
    root, _ = moving.connect(0), moving.connect(1)  # as many on both: the next one stays where it comes in
    root.create_stream("moving")
    root.create_topic("moving", "tp", 8)
    stream_id = root.streams()["moving"]
    there = next(p for p in range(8) if twin.owner(namespace(stream_id, 0, p), 2) == 1)
    plain = moving.connect(0, "plain", "secret")
    before = plain.request(Code.GET_ME)

    async def moved_in() -> int:
        return int(moving.context(1).engine.counters()["moved_in"])

    moved_before = moving.call(moved_in(), 1)
    for number in range(64):  # consecutive requests to one other shard move the socket there
        root.send("moving", "tp", wire.to_partition(there), [wire.message(b"%d" % number)])
    assert moving.call(moved_in(), 1) == moved_before + 1
    assert root.request(Code.GET_ME) == client(root, 0)
    assert client(root, 0) in root.request(Code.GET_CLIENTS)
    assert plain.request(Code.GET_ME) == before
    assert [m.payload for m in root.poll("moving", "tp", there).messages] == [b"%d" % number for number in range(64)]
    root.delete_stream("moving")


def test_a_fault_is_status_1_and_ends_nothing(workers: Workers) -> None:
    root, services = workers.connect(), workers.context().services
    broken: list[Any] = [services.streams, services.routes]
    metadata = workers.context().metadata
    try:
        for service in broken:
            service._metadata = None
        assert root.status(Code.GET_STREAMS) == 1
        poll = wire.consumer(1) + wire.identifier("a") + wire.identifier("b") + bytes(5) + b"\1" + bytes(13)
        assert root.status(Code.POLL_MESSAGES, poll) == 1
    finally:
        for service in broken:
            service._metadata = metadata
    assert root.status(Code.GET_STREAMS) == 0


def test_login_while_stopping(workers: Workers) -> None:
    anonymous, logins = workers.anonymous(), workers.context().services.logins
    try:
        logins.stopping = True
        assert anonymous.status(Code.LOGIN_USER, login("iggy", "iggy")) == 8
    finally:
        logins.stopping = False
    assert anonymous.login() == 0


def test_a_connection_without_an_entry_is_told_and_closed(workers: Workers) -> None:
    root, context = workers.connect(), workers.context()

    async def forget() -> None:
        own = twin.xxh32(local_address(root).encode())
        session = context.sessions.by_client(own)
        assert session is not None
        context.sessions.close(session.connection)

    workers.call(forget())
    assert root.status(Code.GET_ME) == 100
    with pytest.raises(ConnectionError):
        root.receive(1)


def test_nothing_is_computed_for_a_connection_that_was_closed_before_its_request_began(workers: Workers) -> None:
    client, context = workers.connect(), workers.context()
    session = context.sessions.by_client(twin.xxh32(local_address(client).encode()))
    assert session is not None
    connections = context.services.connections

    async def waits() -> bool:
        return base.waits(context.engine, connections.identity(session.connection, 0))

    assert workers.call(waits())
    client.close()
    deadline = time.monotonic() + 10
    while context.sessions.get(session.connection) is not None:
        assert time.monotonic() < deadline, "its end is not seen"
        time.sleep(0.01)
    late = connections.identity(session.connection, 0)
    assert late.session is not None and late.session.removed
    assert not workers.call(waits())


def test_session_table() -> None:
    table = SessionTable()
    session = table.open(7, "127.0.0.1:51234", 1_000)
    assert (session.client_id, session.user_id) == (3_903_508_764, None)
    session.set_user(5)
    moved = SessionTable().admit(9, "127.0.0.1:51234", table.export(7))
    assert (moved.connection, moved.client_id, moved.user_id, moved.connected_at_us) == (9, session.client_id, 5, 1_000)
    assert moved.heartbeat is None
    table.announce(session, 5_000)
    target = SessionTable()
    announced = target.admit(9, "127.0.0.1:51234", table.export(7))
    assert announced.heartbeat is not None and announced.heartbeat.timeout_ms == 5_000
    assert target.announced() == [announced] and table.announced() == [session]
    target.remove(announced)
    assert not target.announced()
    assert table.get(7) is session  # it stays until the connection is closed here
    newer = table.open(8, "127.0.0.1:51234", 2_000)
    table.close(7)
    assert table.by_client(session.client_id) is newer
    assert not table.announced()
    assert session.removed and not newer.removed  # whoever still works for it sees that
    table.close(7)
    assert [each.connection for each in table] == [8]
    with pytest.raises(KeyError):
        table.export(7)
    with pytest.raises(msgspec.DecodeError):
        table.admit(1, "a:1", b"\xc1")
