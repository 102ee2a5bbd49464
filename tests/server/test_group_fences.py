"""A member whose worker is stopped loses its partitions by the timeout; what it asked for meanwhile arrives late and
must not move the offsets of who has them now (generations are compared by the owner of the partition)."""

from __future__ import annotations

import struct
import time
from typing import Final

import psutil
import pytest

from shardd.protocol.codes import Code
from tests.server.test_group_restarts import GROUP, PLACE
from tests.support import wire
from tests.support.load import owner_of
from tests.support.server import Server
from tests.support.serving import Serving
from tests.support.stalls import stopped
from tests.support.wire import Wire

PARTITIONS = 8
CONNECTIONS_MAX = 40
LONGEST_S = 60.0
SETTINGS = {
    "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2",
    "IGGY_CONSUMER_GROUP_REBALANCING_TIMEOUT": "200 ms",
    "IGGY_CONSUMER_GROUP_REBALANCING_CHECK_INTERVAL": "50 ms",
}


def fill(server: Server) -> None:
    with wire.connect(server.address) as root:
        root.create_stream("s")
        root.create_topic("s", "t", PARTITIONS)
        root.request(Code.CREATE_CONSUMER_GROUP, PLACE + wire.str8("cg"))
        for partition in range(PARTITIONS):
            root.send("s", "t", wire.to_partition(partition), [wire.message(b"%d" % n) for n in range(30)])


SERVER: Final = Serving(env=SETTINGS, fill=fill, cpus_min=2)


def connection_on(server: Server, shard: int) -> Wire:
    """A connection that the worker of `shard` holds."""
    worker = psutil.Process(server.worker_pids()[shard])
    for _ in range(CONNECTIONS_MAX):
        connection = wire.connect(server.address)
        ours = connection.socket.getsockname()[1]
        if any(each.raddr and each.raddr.port == ours for each in worker.net_connections("tcp")):
            return connection
        connection.close()
    raise AssertionError(f"none of {CONNECTIONS_MAX} connections is on shard {shard}")


def poll_frame(partition: int, count: int = 10, *, commit: bool = True) -> bytes:
    how = wire.optional_partition(partition) + struct.pack("<BQIB", 5, 0, count, commit)
    return wire.frame(Code.POLL_MESSAGES, wire.group("cg") + PLACE + how)


def store_frame(partition: int, offset: int) -> bytes:
    where = wire.optional_partition(partition) + struct.pack("<Q", offset)
    return wire.frame(Code.STORE_CONSUMER_OFFSET, wire.group("cg") + PLACE + where)


def polled(connection: Wire, frame: bytes) -> wire.Polled:
    connection.send_bytes(frame)
    status, answer = connection.reply()
    assert status == 0
    return wire.parse_polled(answer)


def stored(connection: Wire, partition: int) -> int | None:
    who = wire.group("cg") + PLACE + wire.optional_partition(partition)
    answer = connection.request(Code.GET_CONSUMER_OFFSET, who)
    return int.from_bytes(answer[12:20], "little") if answer else None


@pytest.mark.parametrize("late", ["poll", "commit"])
def test_what_a_stopped_member_asked_for_does_not_move_the_offset_of_the_new_owner(
    own_server: Server, late: str
) -> None:
    """The old member polled and did not commit, so the partition waits for it; its worker (shard 1) is stopped, the
    timeout gives the partition to a member on shard 0, its home, who polls and commits. Then the late request comes."""
    old, new = connection_on(own_server, 1), connection_on(own_server, 0)
    old.request(Code.JOIN_CONSUMER_GROUP, GROUP)
    for partition in range(PARTITIONS):
        assert polled(old, poll_frame(partition, commit=False)).messages[-1].offset == 9
    partition = next(each for each in range(PARTITIONS // 2, PARTITIONS) if owner_of(0, 0, each, 2) == 0)
    frames = {
        "poll": poll_frame(partition),
        "commit": store_frame(partition, 9),
    }
    pid = own_server.worker_pids()[1]
    new.request(Code.JOIN_CONSUMER_GROUP, GROUP)
    with stopped(own_server, pid):
        began = time.monotonic()
        old.send_bytes(frames[late])
        while not (found := polled(new, poll_frame(partition, 20)).messages):
            assert time.monotonic() - began < LONGEST_S, "the timeout moved nothing"
            time.sleep(0.01)
        assert [message.offset for message in found] == list(range(20)), "at least once: nothing was committed"
        assert stored(new, partition) == 19
    status, answer = old.reply()
    if late == "commit":
        assert status == 3022
    else:
        assert (status, answer) == (0, bytes(16))
    assert stored(new, partition) == 19
    assert own_server.worker_pids()[1] == pid
    assert [message.offset for message in polled(new, poll_frame(partition, 20)).messages] == list(range(20, 30))
