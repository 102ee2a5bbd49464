"""Changed rights and deleted users on a real server with two shards, while the requests of their connections are on
the way: from the answer to the change on nothing passes any more, wherever the connection and the partition live."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from immutables import Map

from shardd.protocol import account_requests
from shardd.protocol.codes import Code
from shardd.protocol.permissions import Permissions, StreamPermissions
from tests.crash.faults import connection_on
from tests.support import load, wire
from tests.support.server import Server
from tests.support.serving import Serving
from tests.support.wire import Wire

SHARDS = 2
PARTITIONS = 8
RUN_S = 0.25
EVERYTHING = Permissions(manage_streams=True, manage_users=True, read_servers=True)
SERVER: Final = Serving(env={"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": str(SHARDS)}, cpus_min=SHARDS)


@pytest.fixture
def root(server: Server) -> Iterator[Wire]:
    with wire.connect(server.address) as connection:
        yield connection


def create_user(root: Wire, name: str, permissions: Permissions | None) -> int:
    payload = account_requests.CreateUserRequest(name, "secret", 1, permissions).encode()
    return int(struct.unpack_from("<I", root.request(Code.CREATE_USER, payload))[0])


def set_permissions(root: Wire, name: str, permissions: Permissions | None) -> None:
    root.request(Code.UPDATE_PERMISSIONS, account_requests.UpdatePermissionsRequest(name, permissions).encode())


def delete_user(root: Wire, name: str) -> None:
    root.request(Code.DELETE_USER, account_requests.UserRequest(name).encode())


def connections_of(server: Server, name: str) -> list[Wire]:
    """One on each shard, logged in as that user."""
    found = [connection_on(server, shard) for shard in range(SHARDS)]
    for connection in found:
        connection.login(name, "secret")
    return found


def partitions_by_shard(stream: int) -> list[int]:
    """A partition of topic 0 on each shard."""
    owners = [load.owner_of(stream, 0, partition, SHARDS) for partition in range(PARTITIONS)]
    return [owners.index(shard) for shard in range(SHARDS)]


class Caller(threading.Thread):
    """Repeats requests on one connection and notes when each was sent and what it was answered."""

    def __init__(self, connection: Wire, requests: list[tuple[int, bytes]]) -> None:
        super().__init__(daemon=True)
        self.connection, self.requests = connection, requests
        self.seen: list[tuple[float, int]] = []
        self.fault: Exception | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                for code, payload in self.requests:
                    sent = time.monotonic()
                    self.seen.append((sent, self.connection.status(code, payload)))
        except OSError as error:
            self.fault = error

    def finish(self) -> None:
        self.stopping.set()
        self.join(10)
        assert self.fault is None and not self.is_alive()


def during(callers: list[Caller], change: Callable[[], object], later: Callable[[], object] | None = None) -> float:
    """Runs `change`, then `later`, while all callers are at it; when `change` was answered."""
    for caller in callers:
        caller.start()
    time.sleep(RUN_S)
    change()
    answered = time.monotonic()
    if later is not None:
        later()
    time.sleep(RUN_S)
    for caller in callers:
        caller.finish()
    return answered


def judge(callers: list[Caller], answered: float, before: int = 0, after: int = 41) -> None:
    for caller in callers:
        early = {status for sent, status in caller.seen if sent < answered}
        late = [status for sent, status in caller.seen if sent >= answered]
        assert before in early and early <= {before, after}
        assert late and set(late) == {after}, "sent after the change was answered"


def traffic(connection: Wire, stream: int | str, *, send: bool) -> list[tuple[int, bytes]]:
    """Sends or polls on a partition of each shard, so that one half is local and the other one forwarded."""
    number = stream if isinstance(stream, int) else 0
    requests = []
    for partition in partitions_by_shard(number):
        if send:
            payload = wire.batch(stream, "t", wire.to_partition(partition), [wire.message(b"x" * 100)])
            requests.append((int(Code.SEND_MESSAGES), payload))
        else:
            place = wire.consumer(1) + wire.identifier(stream) + wire.identifier("t")
            how = wire.optional_partition(partition) + struct.pack("<BQIB", 1, 0, 100, 0)
            requests.append((int(Code.POLL_MESSAGES), place + how))
    return requests


@pytest.mark.parametrize("send", [True, False], ids=["send", "poll"])
def test_a_right_that_is_taken_ends_traffic_on_both_shards(server: Server, root: Wire, send: bool) -> None:
    stream = root.create_stream("s")
    root.create_topic(stream, "t", PARTITIONS)
    for partition in partitions_by_shard(stream):
        root.send(stream, "t", wire.to_partition(partition), [wire.message(b"y" * 2000)] * 100)
    rights = Permissions(streams=Map({stream: StreamPermissions(send_messages=send, poll_messages=not send)}))
    create_user(root, "worker", rights)
    callers = [Caller(each, traffic(each, stream, send=send)) for each in connections_of(server, "worker")]
    judge(callers, during(callers, lambda: set_permissions(root, "worker", None)))
    counts = [each.messages_count for each in root.partitions(stream, "t")]
    assert counts == [each.messages_count for each in root.partitions(stream, "t")], "nothing comes in late"
    for caller in callers:
        for code, payload in caller.requests:
            assert caller.connection.status(code, payload) == 41
        set_permissions(root, "worker", rights)
        assert caller.connection.status(*caller.requests[0]) == 0, "and back at once"
        set_permissions(root, "worker", None)
        caller.connection.close()
    delete_user(root, "worker")
    root.delete_stream(stream)


def test_a_deleted_user_does_nothing_more_though_its_id_belongs_to_a_manager_now(server: Server, root: Wire) -> None:
    stream = root.create_stream("s")
    root.create_topic(stream, "t", PARTITIONS)
    root.send(stream, "t", wire.to_partition(0), [wire.message(b"y")])
    user_id = create_user(root, "leaver", EVERYTHING)
    connections = [each for _ in range(3) for each in connections_of(server, "leaver")]
    changes = [[(int(Code.UPDATE_STREAM), wire.identifier(stream) + wire.str8("s"))]] * 2
    reads = [[(int(Code.GET_STREAMS), b""), (int(Code.GET_USERS), b""), (int(Code.GET_CLIENTS), b"")]] * 2
    sends = [traffic(each, stream, send=True) for each in connections[4:]]
    callers = [Caller(each, work) for each, work in zip(connections, [*changes, *reads, *sends], strict=True)]

    answered = during(callers, lambda: delete_user(root, "leaver"), lambda: create_user(root, "comer", EVERYTHING))
    judge(callers, answered)
    assert root.request(Code.GET_USER, wire.identifier(user_id))[14:].startswith(b"comer")
    for connection in connections[:2]:
        assert connection.status(Code.CREATE_STREAM, wire.str8("never")) == 41
        assert connection.status(Code.DELETE_STREAM, wire.identifier(stream)) == 41
    assert list(root.streams()) == ["s"]
    for connection in connections:
        connection.close()
    delete_user(root, "comer")
    root.delete_stream(stream)


def test_rights_on_a_stream_never_pass_to_the_next_one_with_its_id(server: Server, root: Wire) -> None:
    """While the user sends and polls by number and by name, the stream is deleted and made again."""
    stream = root.create_stream("s")
    root.create_topic(stream, "t", PARTITIONS)
    rights = StreamPermissions(manage_stream=True, send_messages=True, poll_messages=True)
    create_user(root, "owner", Permissions(streams=Map({stream: rights})))
    places: tuple[int, str] = (stream, "s")
    callers = [
        Caller(each, traffic(each, places[number], send=send))
        for send in (True, False)
        for number, each in enumerate(connections_of(server, "owner"))
    ]

    def replace_stream() -> None:
        root.delete_stream(stream)
        assert root.create_stream("s") == stream
        root.create_topic(stream, "t", PARTITIONS)

    answered = during(callers, replace_stream)
    for caller in callers:
        late = {status for sent, status in caller.seen if sent >= answered}
        assert late == {41}
        assert {status for sent, status in caller.seen} <= {0, 41, 1009, 2010}
        assert caller.connection.status(Code.UPDATE_STREAM, wire.identifier(stream) + wire.str8("mine")) == 41
        assert caller.connection.status(Code.DELETE_STREAM, wire.identifier("s")) == 41
        caller.connection.close()
    assert [each.messages_count for each in root.partitions(stream, "t")] == [0] * PARTITIONS
    delete_user(root, "owner")
    root.delete_stream(stream)


def test_a_request_that_is_half_sent_is_judged_by_the_rights_it_ends_with(server: Server, root: Wire) -> None:
    stream = root.create_stream("s")
    root.create_topic(stream, "t", PARTITIONS)
    create_user(root, "slow", EVERYTHING)
    connections = connections_of(server, "slow")
    frame = wire.frame(Code.SEND_MESSAGES, traffic(connections[0], stream, send=True)[0][1])
    for connection in connections:
        connection.send_bytes(frame)  # the route is warm
        assert connection.reply() == (0, b"")
        connection.send_bytes(frame[:-10])
    set_permissions(root, "slow", None)
    for connection in connections:
        connection.send_bytes(frame[-10:])
        assert connection.reply() == (41, b"")
        connection.close()
    assert sum(each.messages_count for each in root.partitions(stream, "t")) == len(connections)
    delete_user(root, "slow")
    root.delete_stream(stream)
