"""ANNOUNCE_HEARTBEAT (docs/extensions.md#announce-heartbeat): a member that has announced signs of life and gives none
leaves its groups; every other connection is left alone, however silent it is."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from shardd.protocol.codes import Code
from shardd.protocol.errors import Status
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.heartbeats import TIMEOUT_MAX_MS, TIMEOUT_MIN_MS, HeartbeatTimeout
from tests.support import wire
from tests.support.server import CHEAP_HASHES, ONE_SHARD, UP_TO_TWO_SHARDS, Server
from tests.support.serving import Serving
from tests.support.wire import Wire

PARTITIONS = 4
EVICTED_S = 60.0
TIMEOUT_S = 3.0  # long enough for a busy machine to say something in time
SLOW_TIMEOUT_MS = 6_000
TAIL_TIMEOUT_MS = 8_000
PLACE = wire.identifier("s") + wire.identifier("t")
GROUP = PLACE + wire.identifier("cg")
SERVER: Final = Serving(env=UP_TO_TWO_SHARDS | CHEAP_HASHES)


@pytest.fixture
def server(server: Server) -> Iterator[Server]:
    make_group(server)
    yield server
    with wire.connect(server.address) as root:
        root.delete_stream("s")


def make_group(server: Server) -> None:
    with wire.connect(server.address) as root:
        root.create_stream("s")
        root.create_topic("s", "t", PARTITIONS)
        root.request(Code.CREATE_CONSUMER_GROUP, PLACE + wire.str8("cg"))


def announce(connection: Wire, timeout_ms: int) -> int:
    answer = connection.request(ExtensionCode.ANNOUNCE_HEARTBEAT, struct.pack("<I", timeout_ms))
    assert len(answer) == 4
    return int.from_bytes(answer, "little")


def member(server: Server, timeout_ms: int | None = None) -> Wire:
    connection = wire.connect(server.address)
    if timeout_ms is not None:
        assert announce(connection, timeout_ms) == timeout_ms
    connection.request(Code.JOIN_CONSUMER_GROUP, GROUP)
    return connection


def members(root: Wire) -> int:
    return int(struct.unpack_from("<I", root.request(Code.GET_CONSUMER_GROUP, GROUP), 8)[0])


def within(seconds: float, fits: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not fits():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def poll_of_group(wait_ms: int | None = None, partition: int | None = None) -> tuple[int, bytes]:
    how = wire.optional_partition(partition) + struct.pack("<BQIB", 5, 0, 10, 0)
    poll = wire.group("cg") + PLACE + how
    if wait_ms is None:
        return Code.POLL_MESSAGES, poll
    return ExtensionCode.POLL_AND_WAIT, poll + struct.pack("<I", wait_ms)


@pytest.mark.parametrize("timeout_ms", [0, 1, TIMEOUT_MIN_MS - 1, TIMEOUT_MAX_MS + 1, 0xFFFF_FFFF])
def test_announced_timeout_out_of_bounds_is_refused(server: Server, timeout_ms: int) -> None:
    """And announces nothing: the connection is not looked at."""
    with wire.connect(server.address) as connection:
        payload = HeartbeatTimeout(timeout_ms).encode()
        assert connection.status(ExtensionCode.ANNOUNCE_HEARTBEAT, payload) == Status.INVALID_FORMAT
        assert connection.status(ExtensionCode.ANNOUNCE_HEARTBEAT, payload[:3]) == Status.INVALID_COMMAND
        connection.ping()


@pytest.mark.parametrize("timeout_ms", [TIMEOUT_MIN_MS, TIMEOUT_MAX_MS])
def test_announced_timeout_within_bounds_is_answered(server: Server, timeout_ms: int) -> None:
    with wire.connect(server.address) as connection:
        assert announce(connection, timeout_ms) == timeout_ms


def test_silent_announced_member_loses_its_partitions(server: Server) -> None:
    """It hears STALE_CLIENT and its connection closes; its commit is refused, and the others have all partitions."""
    with wire.connect(server.address) as root, member(server) as other, member(server, TIMEOUT_MIN_MS) as silent:
        within(EVICTED_S, lambda: members(root) == 1)
        assert silent.reply() == (Status.STALE_CLIENT, b"")
        with pytest.raises(ConnectionError):
            silent.receive(1)
        for partition in range(PARTITIONS):
            root.send("s", "t", wire.to_partition(partition), [wire.message(b"m")])
        polled = {other_poll(other) for _ in range(PARTITIONS)}
        assert polled == set(range(PARTITIONS))


def other_poll(connection: Wire) -> int:
    code, payload = poll_of_group()
    return wire.parse_polled(connection.request(code, payload)).partition


def stays(server: Server, root: Wire, sign: Callable[[Wire], object]) -> bool | None:
    """Whether a member that gives this sign ten times in each timeout is one after three of them; None: the machine
    stood still for longer than one."""
    with member(server, int(TIMEOUT_S * 1000)) as alive:
        last_s = time.monotonic()
        end_s = last_s + 3 * TIMEOUT_S
        try:
            while time.monotonic() < end_s:
                sign(alive)
                if time.monotonic() - last_s > TIMEOUT_S:
                    return None
                last_s = time.monotonic()
                time.sleep(TIMEOUT_S / 10)
            stayed = members(root) == 1
        except OSError:
            stayed = False
        return stayed if stayed or time.monotonic() - last_s < TIMEOUT_S else None


SIGNS: dict[str, Callable[[Wire], object]] = {
    "ping": lambda alive: alive.ping(),
    "poll": lambda alive: alive.request(*poll_of_group()),
    "send": lambda alive: alive.send("s", "t", wire.to_partition(0), [wire.message(b"m")]),
}


@pytest.mark.parametrize("sign", SIGNS)
def test_announced_member_with_any_sign_of_life_stays(server: Server, sign: str) -> None:
    """Every request is one, as every byte that arrives is."""
    with wire.connect(server.address) as root:
        for _ in range(10):
            if (stayed := stays(server, root, SIGNS[sign])) is not None:
                break
            within(EVICTED_S, lambda: members(root) == 0)
        assert stayed


def test_member_that_announces_nothing_stays_however_silent(server: Server) -> None:
    """A silent one that has announced goes meanwhile, so the server has looked; its neighbours stay."""
    with (
        wire.connect(server.address) as root,
        member(server) as first,
        member(server) as second,
        member(server, TIMEOUT_MIN_MS),
    ):
        within(EVICTED_S, lambda: members(root) == 2)
        time.sleep(4 * TIMEOUT_MIN_MS / 1000)
        assert members(root) == 2
        first.request(*poll_of_group())
        second.request(*poll_of_group())


def test_member_that_waits_at_the_server_is_not_silent(server: Server) -> None:
    """It cannot say anything that is heard meanwhile. Behind the wait its silence begins."""
    with wire.connect(server.address) as root, member(server, TIMEOUT_MIN_MS) as waiting:
        code, payload = poll_of_group(wait_ms=int(4 * TIMEOUT_MIN_MS))
        waiting.send_bytes(wire.frame(code, payload))
        status, _ = waiting.reply()
        assert status == 0, "a member that is evicted gets STALE_CLIENT"
        within(EVICTED_S, lambda: members(root) == 0)


def test_member_that_reads_a_long_answer_slowly_stays(server: Server) -> None:
    """Its PING could not be read before the answer is out; the bytes that it takes are signs of life."""
    large = [wire.message(bytes(1 << 20))] * 8
    with wire.connect(server.address) as root:
        for _ in range(3):
            root.send("s", "t", wire.to_partition(0), large)
        with member(server, SLOW_TIMEOUT_MS) as slow:
            how = wire.optional_partition(0) + struct.pack("<BQIB", 1, 0, 24, 0)
            slow.send_bytes(wire.frame(Code.POLL_MESSAGES, wire.group("cg") + PLACE + how))
            status, length = struct.unpack("<II", slow.receive(8))
            assert status == 0 and length > 20 << 20
            pieces = 24
            for _ in range(pieces):
                slow.receive(length // pieces)
                time.sleep(2 * SLOW_TIMEOUT_MS / 1000 / pieces)
            slow.receive(length - pieces * (length // pieces))
            slow.ping()
            assert members(root) == 1


def test_member_that_has_just_taken_the_last_byte_is_alive(server: Server) -> None:
    """The kernel had the whole answer long before: what counts is the moment at which the member had it."""
    with wire.connect(server.address) as root:
        root.send("s", "t", wire.to_partition(0), [wire.message(bytes(1 << 20))])
        with member(server, TAIL_TIMEOUT_MS) as slow:
            slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            how = wire.optional_partition(0) + struct.pack("<BQIB", 4, 0, 1, 0)
            slow.send_bytes(wire.frame(Code.POLL_MESSAGES, wire.group("cg") + PLACE + how))
            status, length = struct.unpack("<II", slow.receive(8))
            assert status == 0 and length > 1 << 20
            pieces = 20
            for _ in range(pieces):
                time.sleep(1.25 * TAIL_TIMEOUT_MS / 1000 / pieces)
                slow.receive(length // pieces)
            slow.receive(length - pieces * (length // pieces))
            time.sleep(0.4 * TAIL_TIMEOUT_MS / 1000)  # more than two looks
            slow.ping()
            assert members(root) == 1


def test_later_announcement_replaces_the_earlier_one(server: Server) -> None:
    with wire.connect(server.address) as root, member(server, TIMEOUT_MIN_MS) as patient:
        announce(patient, TIMEOUT_MAX_MS)
        time.sleep(5 * TIMEOUT_MIN_MS / 1000)
        assert members(root) == 1
        announce(patient, TIMEOUT_MIN_MS)
        within(EVICTED_S, lambda: members(root) == 0)


def test_silent_announced_connection_without_a_group_is_closed(server: Server) -> None:
    with wire.connect(server.address) as silent:
        announce(silent, TIMEOUT_MIN_MS)
        assert silent.reply() == (Status.STALE_CLIENT, b"")


def test_many_silent_members_are_evicted_together(server: Server) -> None:
    with wire.connect(server.address) as root:
        silent = [member(server, TIMEOUT_MIN_MS) for _ in range(40)]
        within(EVICTED_S, lambda: members(root) == 0)
        assert {each.reply() for each in silent} == {(Status.STALE_CLIENT, b"")}
        for each in silent:
            each.close()


def test_announced_timeout_is_at_most_what_all_clients_must_keep(tmp_path: Path) -> None:
    """With `heartbeat.enabled` the answer says what the server allows, so that the client sends PING in time."""
    settings = {"IGGY_HEARTBEAT_ENABLED": "true", "IGGY_HEARTBEAT_INTERVAL": "10 s"}
    every = ONE_SHARD | CHEAP_HASHES | settings
    with Server(tmp_path / "data", every) as strict, wire.connect(strict.address) as connection:
        assert announce(connection, TIMEOUT_MAX_MS) == 12_000
        assert announce(connection, 2_000) == 2_000


def test_canary_server_without_eviction_keeps_the_silent_member(server: Server) -> None:
    """What the tests above look for is seen when the server evicts nothing: their member pings from a thread."""
    with wire.connect(server.address) as root, member(server, TIMEOUT_MIN_MS) as kept:
        stopping = threading.Event()

        def beat() -> None:
            while not stopping.wait(0.1):
                kept.ping()

        beating = threading.Thread(target=beat)
        beating.start()
        try:
            with pytest.raises(AssertionError, match="not within"):
                within(4 * TIMEOUT_MIN_MS / 1000, lambda: members(root) == 0)
        finally:
            stopping.set()
            beating.join()
