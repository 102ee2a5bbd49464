"""Consumer groups of a real server while its workers die: who lives keeps what it has, who died is gone, and forgotten
hand-overs end by the settings of Apache Iggy's test harness."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from shardd.protocol.codes import Code
from shardd.protocol.errors import Status
from tests.crash.faults import connection_on
from tests.support import wire
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving
from tests.support.wire import Wire

PARTITIONS = 12
MEMBERS = 8
LONGEST_S = 60.0
HAND_OVER_S = 1.0  # of SETTINGS
STALE_S = 2.4  # without PING, on the strict server
PLACE = wire.identifier("s") + wire.identifier("t")
GROUP = PLACE + wire.identifier("cg")
SETTINGS = {
    "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2",
    "IGGY_CONSUMER_GROUP_REBALANCING_TIMEOUT": "1 s",
    "IGGY_CONSUMER_GROUP_REBALANCING_CHECK_INTERVAL": "100 ms",
}
SERVER: Final = Serving(env=SETTINGS, cpus_min=2)


@pytest.fixture
def server(server: Server) -> Iterator[Server]:
    """The server of this file with a new topic and a new group."""
    with wire.connect(server.address) as root:
        root.create_stream("s")
        root.create_topic("s", "t", PARTITIONS)
        root.request(Code.CREATE_CONSUMER_GROUP, PLACE + wire.str8("cg"))
    yield server
    with wire.connect(server.address) as root:
        root.delete_stream("s")


@pytest.fixture
def strict_server(tmp_path: Path) -> Iterator[Server]:
    settings = {"IGGY_HEARTBEAT_ENABLED": "true", "IGGY_HEARTBEAT_INTERVAL": "2 s"}
    with Server(tmp_path / "data", env=ONE_SHARD | settings) as running:
        with Wire(running.address) as root:
            root.login()
            root.create_stream("s")
            root.create_topic("s", "t", PARTITIONS)
            root.request(Code.CREATE_CONSUMER_GROUP, PLACE + wire.str8("cg"))
        yield running


def member(server: Server) -> Wire:
    connection = wire.connect(server.address)
    connection.request(Code.JOIN_CONSUMER_GROUP, GROUP)
    return connection


def member_on(server: Server, shard: int) -> Wire:
    """The kernel spreads connections as it likes."""
    connection = connection_on(server, shard)
    connection.request(Code.JOIN_CONSUMER_GROUP, GROUP)
    return connection


def details_or_nobody(server: Server) -> dict[int, list[int]]:
    """As `details`; nobody while shard 0 is not back, which a typed answer says."""
    try:
        return details(server)
    except wire.StatusError as error:
        assert error.status == Status.SHARD_COMMUNICATION_ERROR
        return {}


def details(server: Server) -> dict[int, list[int]]:
    """Partitions by member id, asked for on a fresh connection."""
    with wire.connect(server.address) as connection:
        return details_on(connection)


def details_on(connection: Wire) -> dict[int, list[int]]:
    reply = connection.request(Code.GET_CONSUMER_GROUP, GROUP)
    members, position = {}, 13 + reply[12]
    while position < len(reply):
        member_id, count = struct.unpack_from("<II", reply, position)
        members[member_id] = list(struct.unpack_from(f"<{count}I", reply, position + 8))
        position += 8 + 4 * count
    return members


def poll(connection: Wire, *, commit: bool = True) -> wire.Polled:
    how = wire.optional_partition(None) + struct.pack("<BQIB", 5, 0, 10, commit)
    return wire.parse_polled(connection.request(Code.POLL_MESSAGES, wire.group("cg") + PLACE + how))


def is_alive(connection: Wire) -> bool:
    try:
        connection.ping()
    except OSError:
        return False
    return True


def within(seconds: float, fits: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not fits():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def is_fair(members: dict[int, list[int]], count: int) -> bool:
    """All partitions once, shares that differ by one at most, among `count` members."""
    owned = sorted(partition for partitions in members.values() for partition in partitions)
    sizes = [len(partitions) for partitions in members.values()]
    return len(members) == count and owned == list(range(PARTITIONS)) and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("shard", [0, 1])
def test_survivors_of_a_dead_worker_keep_what_they_have(server: Server, shard: int) -> None:
    connections = [member_on(server, number % 2) for number in range(MEMBERS)]
    before = details(server)
    assert is_fair(before, MEMBERS)
    os.kill(server.running_workers()[shard], signal.SIGKILL)
    within(LONGEST_S, lambda: shard in server.running_workers())
    alive = [connection for connection in connections if is_alive(connection)]
    assert len(alive) == MEMBERS // 2
    within(LONGEST_S, lambda: is_fair(details_or_nobody(server), len(alive)))
    after = details(server)
    assert all(set(before[each]) <= set(partitions) for each, partitions in after.items()), "who lives keeps its share"
    polled = [poll(connection).partition for connection in alive for _ in range(PARTITIONS)]
    assert set(polled) == set(range(PARTITIONS))
    newcomers = [member(server) for _ in range(3)]
    within(LONGEST_S, lambda: is_fair(details(server), len(alive) + 3))
    assert all(is_alive(connection) for connection in newcomers)


def test_a_hand_over_that_nobody_ends_is_ended_by_the_timeout(server: Server) -> None:
    old = member(server)
    for partition in range(PARTITIONS):
        old.send("s", "t", wire.to_partition(partition), [wire.message(b"m")])
    assert sorted(poll(old, commit=False).partition for _ in range(PARTITIONS)) == list(range(PARTITIONS))
    started = time.monotonic()
    new = member(server)
    held, got = details_on(old), poll(new).messages
    in_time = time.monotonic() - started < HAND_OVER_S  # also on a machine that is busy with other things
    assert not in_time or (held, got) == ({0: list(range(PARTITIONS)), 1: []}, ())
    within(LONGEST_S, lambda: is_fair(details(server), 2))
    assert time.monotonic() - started >= HAND_OVER_S
    assert len(got or poll(new).messages) == 1  # at least once: it was never committed
    who = wire.group("cg") + PLACE + wire.optional_partition(PARTITIONS - 1)
    assert old.status(Code.STORE_CONSUMER_OFFSET, who + bytes(8)) == 3022


def silent_and_beating(server: Server) -> tuple[Wire, Wire] | None:
    """Two members, of which the first one was evicted while the second sent PING; None: not often enough."""
    pinged = started = time.monotonic()
    silent, beating = wire.connect(server.address), wire.connect(server.address)
    joined = [each.status(Code.JOIN_CONSUMER_GROUP, GROUP) for each in (silent, beating)]
    while joined == [0, 0]:
        found = list(details_on(beating).values())
        now = time.monotonic()
        beating.ping()
        if time.monotonic() - pinged >= STALE_S:
            break
        if found == [list(range(PARTITIONS))]:
            return silent, beating
        assert now - started < LONGEST_S, f"still there: {found}"
        pinged = now
        time.sleep(0.02)
    assert time.monotonic() - pinged >= STALE_S, f"a client is stale too early: {joined}"
    silent.close()
    beating.close()
    return None


def test_a_client_without_heartbeat_is_evicted_from_its_groups(strict_server: Server) -> None:
    deadline = time.monotonic() + LONGEST_S
    while (pair := silent_and_beating(strict_server)) is None:  # the machine itself was too slow for a heartbeat
        assert time.monotonic() < deadline
    silent, beating = pair
    assert silent.streams() == {"s": 0}, "other commands still work"
    assert silent.status(Code.JOIN_CONSUMER_GROUP, GROUP) == 30
    with pytest.raises(OSError):
        silent.ping()
    pinged = time.monotonic()
    beating.ping()
    assert poll(beating).messages == ()
    again = member(strict_server)
    in_time = is_fair(details_on(again), 2)
    assert in_time or time.monotonic() - pinged >= STALE_S, "who comes back is a member again"
