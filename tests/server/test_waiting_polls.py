"""POLL_AND_WAIT on a real server with two shards: each test asks on one connection and lets something happen on
another one."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import threading
import time
from collections.abc import Iterator
from typing import Final

import pytest

from shardd.protocol import account_requests
from shardd.protocol.codes import Code
from shardd.protocol.errors import Status
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.permissions import Permissions
from tests.conftest import MakeServer
from tests.crash.faults import connection_on
from tests.support import wire
from tests.support.load import owner_of
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving
from tests.support.stalls import figures_of, metrics
from tests.support.wire import Wire

SHARDS = 2
LONG_MS = 240_000
PARTITIONS = 8
JOIN_GROUP, CREATE_GROUP = 604, 602
SERVER: Final = Serving(
    env={"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": str(SHARDS), "SHARDD_TCP_REQUEST_TIMEOUT": "2s"}, cpus_min=SHARDS
)


@pytest.fixture
def other(server: Server) -> Iterator[Wire]:
    with wire.connect(server.address) as connection:
        yield connection


@pytest.fixture
def stream(other: Wire, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name[:200]
    other.create_stream(name)
    other.create_topic(name, "t", PARTITIONS)
    yield name
    other.status(wire.DELETE_STREAM, wire.identifier(name))


def question(stream: str, partition: int | None = 0, wait_ms: int = LONG_MS, group: str | None = None) -> bytes:
    who = struct.pack("<B", 1) + wire.identifier(7) if group is None else struct.pack("<B", 2) + wire.identifier(group)
    where = struct.pack("<BI", partition is not None, partition or 0)
    how = struct.pack("<BQIB", wire.POLL_NEXT, 0, 10, 1)
    return who + wire.identifier(stream) + wire.identifier("t") + where + how + struct.pack("<I", wait_ms)


def ask(connection: Wire, payload: bytes) -> None:
    connection.send_bytes(wire.frame(ExtensionCode.POLL_AND_WAIT, payload))


def answer(connection: Wire) -> tuple[int, list[bytes]]:
    """Status, and the payloads that came."""
    status, payload = connection.reply()
    if status != 0:
        return status, []
    found, at = [], 16
    while at < len(payload):
        headers, length = struct.unpack_from("<II", payload, at + 48)
        found.append(payload[at + 64 : at + 64 + length])
        at += 64 + headers + length
    return status, found


def is_silent(connection: Wire, for_s: float = 0.3) -> bool:
    return not select.select([connection.socket], [], [], for_s)[0]


def send(connection: Wire, stream: str, payload: bytes, partition: int = 0) -> None:
    connection.request(
        wire.SEND_MESSAGES, wire.batch(stream, "t", wire.to_partition(partition), [wire.message(payload)])
    )


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("partition", range(4))
def test_a_message_ends_the_wait_wherever_its_partition_lives(
    server: Server, other: Wire, stream: str, shard: int, partition: int
) -> None:
    with connection_on(server, shard) as waiting:
        for number in range(20):  # some of them with messages before the wait has begun
            ask(waiting, question(stream, partition))
            if number % 3 == 0:
                assert is_silent(waiting, 0.05)
            send(other, stream, b"%d" % number, partition)
            assert answer(waiting) == (0, [b"%d" % number])


def test_what_is_there_is_answered_at_once_and_nothing_twice(other: Wire, stream: str, server: Server) -> None:
    send(other, stream, b"first")
    with wire.connect(server.address) as waiting:
        ask(waiting, question(stream))
        assert answer(waiting) == (0, [b"first"])
        ask(waiting, question(stream, wait_ms=50))
        assert answer(waiting) == (0, [])  # its offset was stored


def test_a_wait_ends_empty_after_its_time_and_no_offset_is_stored(other: Wire, stream: str, server: Server) -> None:
    with wire.connect(server.address) as waiting:
        began = time.monotonic()
        ask(waiting, question(stream, wait_ms=400))
        assert answer(waiting) == (0, [])
        assert time.monotonic() - began >= 0.4
        send(other, stream, b"x")
        ask(waiting, question(stream))
        assert answer(waiting) == (0, [b"x"])


def test_a_wait_may_be_longer_than_the_request_timeout(other: Wire, stream: str, server: Server) -> None:
    with wire.connect(server.address) as waiting:
        ask(waiting, question(stream))
        assert is_silent(waiting, 4.0)
        send(other, stream, b"late")
        assert answer(waiting) == (0, [b"late"])


def test_later_requests_wait_behind_it(other: Wire, stream: str, server: Server) -> None:
    with wire.connect(server.address) as waiting:
        waiting.send_bytes(wire.frame(ExtensionCode.POLL_AND_WAIT, question(stream)) + wire.frame(wire.PING))
        assert is_silent(waiting)
        send(other, stream, b"x")
        assert answer(waiting) == (0, [b"x"])
        assert waiting.reply() == (0, b"")


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_deleted_topic_and_stream_end_the_wait_with_their_status(server: Server, other: Wire, shard: int) -> None:
    for delete, status in ((wire.DELETE_TOPIC, 2010), (wire.DELETE_STREAM, 1009)):
        for partition in range(2):
            other.create_stream("gone")
            other.create_topic("gone", "t", PARTITIONS)
            with connection_on(server, shard) as waiting:
                ask(waiting, question("gone", partition))
                assert is_silent(waiting)
                other.request(delete, wire.identifier("gone") + wire.identifier("t") * (delete == wire.DELETE_TOPIC))
                assert answer(waiting) == (status, [])
            other.status(wire.DELETE_STREAM, wire.identifier("gone"))


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_deleted_partition_ends_the_wait(server: Server, other: Wire, stream: str, shard: int) -> None:
    with connection_on(server, shard) as waiting:
        ask(waiting, question(stream, PARTITIONS - 1))
        assert is_silent(waiting)
        address = wire.identifier(stream) + wire.identifier("t")
        other.request(wire.DELETE_PARTITIONS, address + struct.pack("<I", 1))
        assert answer(waiting) == (Status.PARTITION_NOT_FOUND, [])


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_wait_goes_on_through_a_purge(server: Server, other: Wire, stream: str, shard: int) -> None:
    for partition in range(2):
        send(other, stream, b"before", partition)
        with connection_on(server, shard) as waiting:
            ask(waiting, question(stream, partition))
            assert answer(waiting) == (0, [b"before"])
            ask(waiting, question(stream, partition))
            assert is_silent(waiting)
            other.request(wire.PURGE_TOPIC, wire.identifier(stream) + wire.identifier("t"))
            send(other, stream, b"after", partition)
            assert answer(waiting) == (0, [b"after"])


@pytest.mark.parametrize("shard", range(SHARDS))
def test_lost_rights_and_a_deleted_user_end_the_wait(server: Server, other: Wire, stream: str, shard: int) -> None:
    name = f"user-{shard}"
    everything = Permissions(poll_messages=True, read_streams=True)
    other.request(Code.CREATE_USER, account_requests.CreateUserRequest(name, "secret", 1, everything).encode())
    waiting, gone = connection_on(server, shard), connection_on(server, shard)
    for each in (waiting, gone):
        each.request(wire.LOGOUT_USER)
        each.login(name, "secret")
        ask(each, question(stream))
    assert is_silent(waiting)
    other.request(Code.UPDATE_PERMISSIONS, account_requests.UpdatePermissionsRequest(name, None).encode())
    assert answer(waiting) == (Status.UNAUTHORIZED, [])
    assert answer(gone) == (Status.UNAUTHORIZED, [])
    other.request(Code.UPDATE_PERMISSIONS, account_requests.UpdatePermissionsRequest(name, everything).encode())
    ask(gone, question(stream))
    assert is_silent(gone)
    other.request(Code.DELETE_USER, account_requests.UserRequest(name).encode())
    with contextlib.suppress(ConnectionError):  # the connections of a deleted user may be closed
        assert answer(gone)[0] in (Status.UNAUTHENTICATED, Status.UNAUTHORIZED)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_user_who_becomes_inactive_keeps_session_and_wait(
    server: Server, other: Wire, stream: str, shard: int
) -> None:
    name = f"disabled-{shard}"
    everything = Permissions(poll_messages=True, read_streams=True)
    other.request(Code.CREATE_USER, account_requests.CreateUserRequest(name, "secret", 1, everything).encode())
    with connection_on(server, shard) as waiting:
        waiting.request(wire.LOGOUT_USER)
        waiting.login(name, "secret")
        ask(waiting, question(stream))
        assert is_silent(waiting)
        other.request(Code.UPDATE_USER, account_requests.UpdateUserRequest(name, None, 2).encode())
        send(other, stream, b"x")
        assert answer(waiting) == (0, [b"x"])
        assert waiting.status(wire.POLL_MESSAGES, question(stream)[:-4]) == 0
        with wire.Wire(server.address) as later, pytest.raises(wire.StatusError):
            later.login(name, "secret")


def test_a_user_without_rights_waits_for_nothing(server: Server, other: Wire, stream: str) -> None:
    other.request(Code.CREATE_USER, account_requests.CreateUserRequest("stranger", "secret", 1, None).encode())
    with wire.connect(server.address) as stranger:
        stranger.request(wire.LOGOUT_USER)
        assert stranger.status(ExtensionCode.POLL_AND_WAIT, question(stream)) == Status.UNAUTHENTICATED
        stranger.login("stranger", "secret")
        for partition in (0, 5000):
            payload = question(stream, partition)
            assert stranger.status(ExtensionCode.POLL_AND_WAIT, payload) == stranger.status(
                wire.POLL_MESSAGES, payload[:-4]
            )


def test_a_wait_that_is_too_long_is_refused(server: Server, stream: str) -> None:
    with wire.connect(server.address) as waiting:
        too_long = question(stream, wait_ms=300_001)
        assert waiting.status(ExtensionCode.POLL_AND_WAIT, too_long) == Status.INVALID_FORMAT
        assert waiting.status(ExtensionCode.POLL_AND_WAIT, too_long[:-1]) == Status.INVALID_COMMAND


def waiting_polls(connection: Wire) -> int:
    return sum(shard["engine.polls_waiting"] for shard in figures_of(metrics(connection)))


def test_a_client_that_leaves_is_not_waited_for(server: Server, other: Wire, stream: str) -> None:
    many = [wire.connect(server.address) for _ in range(20)]
    for each in many:
        ask(each, question(stream))
    deadline = time.monotonic() + 60
    while waiting_polls(other) < 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert waiting_polls(other) == 20
    for each in many:
        each.close()
    while waiting_polls(other) > 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert waiting_polls(other) == 0


def group_request(stream: str, code: int, other: Wire) -> None:
    address = wire.identifier(stream) + wire.identifier("t")
    name = struct.pack("<B", 1) + b"g" if code == CREATE_GROUP else wire.identifier("g")
    other.request(code, address + name)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_member_waits_for_all_of_its_partitions(server: Server, other: Wire, stream: str, shard: int) -> None:
    group_request(stream, CREATE_GROUP, other)
    with connection_on(server, shard) as waiting:
        group_request(stream, JOIN_GROUP, waiting)
        for number in range(3 * PARTITIONS):
            ask(waiting, question(stream, None, group="g"))
            if number % 4 == 0:
                assert is_silent(waiting, 0.05)
            send(other, stream, b"%d" % number, number * 3 % PARTITIONS)
            assert answer(waiting) == (0, [b"%d" % number])


def test_a_rebalance_moves_what_members_wait_for(server: Server, other: Wire, stream: str) -> None:
    group_request(stream, CREATE_GROUP, other)
    with connection_on(server, 0) as one, connection_on(server, 1) as two:
        group_request(stream, JOIN_GROUP, one)
        ask(one, question(stream, None, group="g"))
        assert is_silent(one)
        group_request(stream, JOIN_GROUP, two)
        ask(two, question(stream, None, group="g"))
        for partition in range(PARTITIONS):
            send(other, stream, b"%d" % partition, partition)
        found: list[bytes] = []
        deadline = time.monotonic() + 60
        while len(found) < PARTITIONS and time.monotonic() < deadline:
            for each in select.select([one.socket, two.socket], [], [], 1)[0]:
                member = one if each is one.socket else two
                found += answer(member)[1]
                ask(member, question(stream, None, group="g"))
        assert sorted(found) == [b"%d" % partition for partition in range(PARTITIONS)]


def test_many_who_wait_for_one_message_all_hear_of_it(server: Server, other: Wire, stream: str) -> None:
    many = [wire.connect(server.address) for _ in range(100)]
    for number, each in enumerate(many):
        payload = question(stream)
        ask(each, payload[:3] + struct.pack("<I", number + 100) + payload[7:])
    sender = threading.Timer(0.2, send, (other, stream, b"x"))
    sender.start()
    for each in many:
        assert answer(each) == (0, [b"x"])
        each.close()
    sender.join()


def test_a_message_at_durable_ends_the_wait_when_it_is_on_the_device(other: Wire, stream: str, server: Server) -> None:
    address = wire.identifier(stream) + wire.identifier("t")
    other.request(ExtensionCode.SET_TOPIC_SETTINGS, address + b"\x01\x03ack\x07durable")
    with wire.connect(server.address) as waiting:
        for number in range(10):
            ask(waiting, question(stream, number % 4))
            send(other, stream, b"%d" % number, number % 4)
            assert answer(waiting) == (0, [b"%d" % number])


def test_a_wait_outlives_the_owner_of_its_partition(make_server: MakeServer) -> None:
    """The owner dies and comes back: nothing is lost, and nothing is read twice."""
    server = make_server({"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": str(SHARDS)})
    with connection_on(server, 0) as waiting:
        waiting.create_stream("s")
        waiting.create_topic("s", "t", PARTITIONS)
        partition = next(each for each in range(PARTITIONS) if owner_of(0, 0, each, SHARDS) == 1)
        found: list[bytes] = []
        for number in range(3):
            ask(waiting, question("s", partition))
            assert is_silent(waiting)
            os.kill(server.worker_pids()[1], signal.SIGKILL)
            sender = wire.connect(server.address)
            deadline = time.monotonic() + 90
            while time.monotonic() < deadline:
                try:
                    send(sender, "s", b"%d" % number, partition)
                    break
                except (wire.StatusError, OSError):
                    sender.close()
                    sender = wire.connect(server.address)
            sender.close()
            status, payloads = answer(waiting)
            while status == Status.SHARD_COMMUNICATION_ERROR and time.monotonic() < deadline:
                ask(waiting, question("s", partition))
                status, payloads = answer(waiting)
            assert status == 0
            found += payloads
        assert list(dict.fromkeys(found)) == [b"0", b"1", b"2"]
        stored = waiting.get_offset("s", "t", partition, who=7)
        assert stored == len(found) - 1


def test_a_client_that_waits_is_not_silent(make_server: MakeServer) -> None:
    server = make_server(ONE_SHARD | {"IGGY_HEARTBEAT_ENABLED": "true", "IGGY_HEARTBEAT_INTERVAL": "1 s"})
    with wire.connect(server.address) as waiting:
        waiting.create_stream("s")
        waiting.create_topic("s", "t", 1)
        ask(waiting, question("s", wait_ms=4000))
        assert answer(waiting) == (0, [])
        assert waiting.status(wire.GET_ME) == 0


@pytest.mark.parametrize("engine", ["epoll", "io_uring"])
def test_both_engines_serve_it(make_server: MakeServer, engine: str) -> None:
    server = make_server(ONE_SHARD | {"SHARDD_SYSTEM_IO_ENGINE": engine})
    with wire.connect(server.address) as waiting, wire.connect(server.address) as other:
        waiting.create_stream("s")
        waiting.create_topic("s", "t", 1)
        ask(waiting, question("s", wait_ms=100))
        assert answer(waiting) == (0, [])
        ask(waiting, question("s"))
        assert is_silent(waiting)
        send(other, "s", b"x")
        assert answer(waiting) == (0, [b"x"])


def test_a_stopping_server_does_not_wait(make_server: MakeServer) -> None:
    server = make_server(ONE_SHARD)
    with wire.connect(server.address) as waiting:
        waiting.create_stream("s")
        waiting.create_topic("s", "t", 1)
        ask(waiting, question("s"))
        assert is_silent(waiting)
        server.stop()
        assert answer(waiting)[0] == Status.DISCONNECTED
