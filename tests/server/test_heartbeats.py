"""Heartbeats, stale clients and the orderly stop (docs/protocol/sessions.md), sentence by sentence.

One server with two shards and an interval of 2 s: a client without a PING for 2.4 s is stale.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import xxhash

from shardd.config.loader import load_settings
from shardd.config.schema import Heartbeat
from shardd.protocol import account_requests
from shardd.protocol.codes import Code
from shardd.protocol.permissions import Permissions
from tests.support import wire
from tests.support.server import Server
from tests.support.serving import Serving
from tests.support.wire import Wire

FAILURES_BEFORE_LONG_WAITS = 10
INTERVAL_S = 2.0  # long enough for a login on a busy machine
STALE_S = 1.2 * INTERVAL_S
EVICTED_S = 60.0  # by then every shard has looked, also on a busy machine
PLACE = wire.identifier("s") + wire.identifier("t")
GROUP = PLACE + wire.identifier("cg")
JOIN = (Code.JOIN_CONSUMER_GROUP, GROUP)
SETTINGS = {
    "IGGY_HEARTBEAT_ENABLED": "true",
    "IGGY_HEARTBEAT_INTERVAL": "2 s",
    "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": str(min(2, len(os.sched_getaffinity(0)))),
}


class Beating:
    """A logged-in connection that sends PING from a thread; requests of the test go between them."""

    def __init__(self, address: str) -> None:
        self.connection = wire.connect(address)
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stopping.wait(INTERVAL_S / 10):
            with self._lock:
                self.connection.ping()

    def exchange(self, code: int, payload: bytes = b"") -> tuple[int, bytes]:
        with self._lock:
            return self.connection.exchange(code, payload)

    def request(self, code: int, payload: bytes = b"") -> bytes:
        status, reply = self.exchange(code, payload)
        assert status == 0, f"command {code}: status {status}"
        return reply

    def clients(self) -> dict[int, int]:
        """User ids by client id, as GET_CLIENTS lists them."""
        reply, at, found = self.request(Code.GET_CLIENTS), 0, {}
        while at < len(reply):
            client_id, user_id = struct.unpack_from("<II", reply, at)
            found[client_id] = user_id
            at += 17 + struct.unpack_from("<I", reply, at + 9)[0]
        return found

    def members(self) -> int:
        return int(struct.unpack_from("<I", self.request(Code.GET_CONSUMER_GROUP, GROUP), 8)[0])

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(5)
        self.connection.close()


def fill(server: Server) -> None:
    with wire.connect(server.address) as root:
        root.create_stream("s")
        root.create_topic("s", "t", 4)
        root.send("s", "t", wire.to_partition(0), [wire.message(b"%d" % number) for number in range(4)])
        root.request(Code.CREATE_CONSUMER_GROUP, PLACE + wire.str8("cg"))


SERVER: Final = Serving(env=SETTINGS, fill=fill)


@pytest.fixture
def root(server: Server) -> Iterator[Beating]:
    beating = Beating(server.address)
    yield beating
    beating.close()


def client_id(connection: Wire) -> int:
    """A hash of the address (docs/protocol/sessions.md#session): known without asking, which a stale client may not."""
    host, port = connection.socket.getsockname()
    return int(xxhash.xxh32_intdigest(f"{host}:{port}".encode()))


def in_time(server: Server, *requests: tuple[int, bytes]) -> tuple[Wire, bytes]:
    """A new connection and the last answer, of requests that a stale client is refused. When the machine was too slow
    for them: again."""
    deadline = time.monotonic() + EVICTED_S
    while True:
        started = time.monotonic()
        connection = wire.connect(server.address)
        for code, payload in requests:
            status, answer = connection.exchange(code, payload)
            if status != 0:
                break
        else:
            return connection, answer
        assert time.monotonic() - started >= STALE_S, f"command {code}: status {status}"
        assert time.monotonic() < deadline
        connection.close()


def within(seconds: float, fits: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not fits():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def is_closed(connection: Wire) -> bool:
    try:
        connection.ping()
    except OSError:
        return True
    return False


@pytest.fixture(scope="module")
def stale_connections(server: Server) -> list[Wire]:
    """Connections of root that lose their entries together; each is for one test."""
    found = [wire.connect(server.address) for _ in range(6)]
    own = {client_id(connection) for connection in found}
    watcher = Beating(server.address)
    within(EVICTED_S, lambda: not own & watcher.clients().keys())
    watcher.close()
    return found


@pytest.fixture
def stale(stale_connections: list[Wire]) -> Iterator[Wire]:
    with stale_connections.pop() as connection:
        yield connection


def test_who_waits_for_an_answer_is_not_silent(tmp_path: Path) -> None:
    """A login waits longer than the interval, as others have failed at its address; its client cannot send PING."""
    with Server(tmp_path / "data", env=SETTINGS | {"IGGY_HEARTBEAT_INTERVAL": "200 ms"}) as server:
        into_minute_s = time.monotonic() % 60  # each minute halves what is counted: not in the middle of this
        time.sleep(60 - into_minute_s if into_minute_s > 30 else 0)
        for _ in range(FAILURES_BEFORE_LONG_WAITS):
            with Wire(server.address) as guessing:
                assert guessing.status(Code.LOGIN_USER, wire.str8("nobody") + wire.str8("wrong") + bytes(8)) == 42
        with Wire(server.address) as late:
            started = time.monotonic()
            late.login()
            assert time.monotonic() - started > 1.2 * 0.2, "it has waited for more than the interval"


def test_heartbeats_are_not_looked_at_by_default() -> None:
    assert load_settings(None, {}).settings.heartbeat == Heartbeat(enabled=False, interval_ms=5000)


def test_who_connects_has_one_interval_and_a_fifth(server: Server, root: Beating) -> None:
    started = time.monotonic()
    with wire.connect(server.address) as silent:
        own = client_id(silent)
        within(EVICTED_S, lambda: own not in root.clients())
        assert time.monotonic() - started >= STALE_S


def kept_by_pings(server: Server, root: Beating) -> bool | None:
    """Whether a connection that sends PING can log in after two intervals; None: it did not send them often enough."""
    pinged = time.monotonic()
    end = pinged + 2 * STALE_S
    with Wire(server.address) as early:
        while (now := time.monotonic()) < end:
            early.ping()
            if time.monotonic() - pinged >= STALE_S:
                return None
            pinged = now
            time.sleep(INTERVAL_S / 10)
        kept = (
            early.status(Code.LOGIN_USER, wire.str8("iggy") * 2 + bytes(8)) == 0 and client_id(early) in root.clients()
        )
        return kept if kept or time.monotonic() - pinged < STALE_S else None


def test_a_ping_keeps_the_entry_also_before_the_login(server: Server, root: Beating) -> None:
    deadline = time.monotonic() + EVICTED_S
    while (kept := kept_by_pings(server, root)) is None:  # the machine itself was too slow
        assert time.monotonic() < deadline
    assert kept


def test_requests_other_than_ping_do_not_keep_the_entry(server: Server, root: Beating) -> None:
    with wire.connect(server.address) as busy:
        own = client_id(busy)
        deadline = time.monotonic() + EVICTED_S
        while own in root.clients():
            assert time.monotonic() < deadline
            busy.poll("s", "t", 0)
            busy.send("s", "t", wire.to_partition(1), [wire.message(b"m")])
            busy.streams()
        busy.poll("s", "t", 0)


def test_a_stale_client_leaves_its_groups_and_members_count_is_0(server: Server, root: Beating) -> None:
    started = time.monotonic()
    with in_time(server, JOIN)[0]:
        assert root.members() == 1 or time.monotonic() - started >= STALE_S
        within(EVICTED_S, lambda: root.members() == 0)


def test_the_socket_of_a_stale_client_stays_and_works_without_groups(stale: Wire) -> None:
    assert stale.streams() == {"s": 0}
    assert [message.payload for message in stale.poll("s", "t", 0).messages][:1] == [b"0"]
    stale.send("s", "t", wire.to_partition(2), [wire.message(b"m")])
    stream = stale.create_stream("by a stale client")
    stale.delete_stream(stream)
    stale.store_offset("s", "t", 0, 1)


def test_a_ping_of_a_stale_client_is_answered_and_brings_nothing_back(stale: Wire) -> None:
    stale.ping()
    assert stale.status(Code.GET_ME) == 100
    assert is_closed(stale)


@pytest.mark.parametrize("code", [Code.JOIN_CONSUMER_GROUP, Code.LEAVE_CONSUMER_GROUP])
def test_a_group_command_of_a_stale_client_is_30_and_closes(stale: Wire, code: Code) -> None:
    assert stale.status(code, GROUP) == 30
    assert is_closed(stale)


def test_a_group_poll_of_a_stale_client_is_30_and_closes(stale: Wire) -> None:
    how = wire.optional_partition(None) + struct.pack("<BQIB", 5, 0, 10, 0)
    assert stale.status(Code.POLL_MESSAGES, wire.group("cg") + PLACE + how) == 30
    assert is_closed(stale)


def test_a_login_of_a_stale_client_is_100_and_closes(stale: Wire) -> None:
    assert stale.status(Code.LOGIN_USER, wire.str8("iggy") * 2 + bytes(8)) == 100
    assert is_closed(stale)


def test_a_stale_consumer_joins_again_and_goes_on_behind_its_stored_offset(server: Server, root: Beating) -> None:
    next_two = wire.optional_partition(0) + struct.pack("<BQIB", 5, 0, 2, 1)
    poll = wire.group("cg") + PLACE + next_two
    consumer, answer = in_time(server, JOIN, (Code.POLL_MESSAGES, poll))
    with consumer:
        assert [message.payload for message in wire.parse_polled(answer).messages] == [b"0", b"1"]
        within(EVICTED_S, lambda: root.members() == 0)
        assert consumer.status(Code.POLL_MESSAGES, poll) == 30
    consumer, answer = in_time(server, JOIN, (Code.POLL_MESSAGES, poll))
    with consumer:
        assert [message.payload for message in wire.parse_polled(answer).messages] == [b"2", b"3"]
    within(EVICTED_S, lambda: root.members() == 0)


def test_a_stale_client_of_a_deleted_user_has_not_the_rights_of_the_next_one(server: Server, root: Beating) -> None:
    manager = Permissions(manage_streams=True, manage_users=True)
    create = account_requests.CreateUserRequest("leaver", "secret", 1, manager).encode()
    user_id = struct.unpack_from("<I", root.request(Code.CREATE_USER, create))[0]
    with Wire(server.address) as stale:
        stale.login("leaver", "secret")
        own = client_id(stale)
        within(EVICTED_S, lambda: own not in root.clients())
        assert stale.streams() == {"s": 0}
        root.request(Code.DELETE_USER, account_requests.UserRequest("leaver").encode())
        create = account_requests.CreateUserRequest("comer", "secret", 1, manager).encode()
        assert struct.unpack_from("<I", root.request(Code.CREATE_USER, create))[0] == user_id
        assert stale.status(Code.GET_STREAMS) == 41
        assert stale.status(Code.CREATE_STREAM, wire.str8("never")) == 41
        batch = wire.batch("s", "t", wire.to_partition(0), [wire.message(b"never")])
        assert stale.status(Code.SEND_MESSAGES, batch) == 41
    root.request(Code.DELETE_USER, account_requests.UserRequest("comer").encode())


def test_at_an_orderly_stop_every_connection_gets_8_and_is_closed(tmp_path: Path) -> None:
    """Logged in or not, idle or with a frame half sent; a request that came before is answered first."""
    with Server(tmp_path / "data", env=SETTINGS) as running:
        connections = [wire.connect(running.address) for _ in range(4)] + [Wire(running.address) for _ in range(4)]
        for connection in connections:
            connection.ping()
        connections[0].create_stream("s")
        connections[0].create_topic("s", "t", 1)
        batch = wire.batch("s", "t", wire.to_partition(0), [wire.message(b"x" * 1000)] * 1000)
        connections[1].send_bytes(wire.frame(Code.SEND_MESSAGES, batch))
        assert connections[1].reply() == (0, b"")
        connections[2].send_bytes(wire.frame(Code.SEND_MESSAGES, batch)[:5000])
        assert running.stop() == 0
        for connection in connections:
            assert connection.reply() == (8, b"")
            with pytest.raises(ConnectionError):
                connection.receive(1)
            connection.close()
        running.start()
        with wire.connect(running.address) as connection:
            assert len(connection.read_all("s", "t", 0)) == 1000
