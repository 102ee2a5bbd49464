"""Members of a group that speak 0.9: what they are told of their partitions, and what the others' answer."""

from __future__ import annotations

import struct
import time
from typing import Final

import pytest

from tests.support import wire
from tests.support.iggy09 import Answer, Connection, bytes_of
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving

TOPIC = wire.identifier("fenced") + wire.identifier("t")
GROUP = TOPIC + wire.identifier("g")
NOT_OWNED, NOT_A_MEMBER = 5009, 5006
JOIN, LEAVE, STORE, DELETE, LOGOUT = 148, 149, 161, 162, 3
WAIT_S = 60.0


def fill(server: Server) -> None:
    with wire.connect(server.address) as classic:
        stream = classic.create_stream("fenced")
        classic.create_topic(stream, "t", 2)
        classic.request(602, TOPIC + b"\x01g")
        for partition in (0, 1):
            classic.send(stream, 0, wire.to_partition(partition), [wire.message(b"%d" % partition)])


SERVER: Final = Serving(env=ONE_SHARD, fill=fill)


def member(server: Server) -> Connection:
    connection = Connection(server.address)
    assert connection.login().status == 0
    return connection


def partitions(connection: Connection) -> tuple[int, list[int]]:
    """Generation, and what it may poll."""
    body = connection.read(606, GROUP).body
    generation, count = struct.unpack_from("<QI", body)
    return generation, list(struct.unpack_from(f"<{count}I", body, 12))


def poll(connection: Connection, partition: int) -> Answer:
    place = b"\2" + wire.identifier("g") + TOPIC + b"\1" + struct.pack("<I", partition)
    return connection.read(100, place + struct.pack("<BQIB", 5, 0, 10, 0))


def store(connection: Connection, partition: int) -> Answer:
    place = b"\2" + wire.identifier("g") + TOPIC + b"\1" + struct.pack("<I", partition)
    return connection.change(STORE, place + struct.pack("<QB", 0, 1))


def test_a_partition_moves_when_its_owner_has_committed_and_is_fenced_meanwhile(own_server: Server) -> None:
    with member(own_server) as one, member(own_server) as two:
        assert one.change(JOIN, GROUP).status == 0
        first, own = partitions(one)
        assert own == [0, 1]
        assert [poll(one, partition).body[12:16] for partition in own] == [b"\1\0\0\0"] * 2
        assert two.change(JOIN, GROUP).status == 0
        second, (kept,) = partitions(one)
        moving = 1 - kept
        assert second != first and partitions(two)[1] == []
        assert [poll(two, partition).status for partition in (0, 1)] == [NOT_OWNED] * 2
        assert store(two, moving).status == NOT_OWNED
        assert store(one, moving).status == 0
        deadline = time.monotonic() + WAIT_S
        while partitions(two)[1] != [moving]:
            assert time.monotonic() < deadline, "it has never moved"
        assert poll(one, moving).status == NOT_OWNED and store(one, moving).status == NOT_OWNED
        assert poll(two, moving).body[12:16] == bytes(4)  # it was committed
        assert store(two, moving).status == 0 and poll(one, kept).status == 0


@pytest.mark.parametrize("how", ["leave", "logout", "close", "login"])
def test_who_goes_leaves_its_partitions_to_the_others(own_server: Server, how: str) -> None:
    with member(own_server) as stays:
        goes = member(own_server)
        for each in (goes, stays):
            assert each.change(JOIN, GROUP).status == 0
        before, own = partitions(stays)
        assert len(own) == 1
        if how == "leave":
            assert goes.change(LEAVE, GROUP).status == 0
            assert goes.change(LEAVE, GROUP).status == NOT_A_MEMBER
        elif how == "logout":
            assert goes.change(LOGOUT).status == 0
        elif how == "login":
            assert goes.login().status == 0
        else:
            goes.close()
        deadline = time.monotonic() + WAIT_S
        while partitions(stays)[1] != [0, 1]:
            assert time.monotonic() < deadline, "they never came"
        assert partitions(stays)[0] != before
        if how in ("leave", "login"):
            assert goes.read(606, GROUP).body == b"" and poll(goes, 0).status == NOT_A_MEMBER
        goes.close()


def test_who_joins_again_changes_nothing_and_nobody_is_a_member_of_nothing(own_server: Server) -> None:
    with member(own_server) as one:
        assert one.read(606, GROUP).body == b""
        assert one.change(JOIN, GROUP).status == 0
        before = partitions(one)
        assert one.change(JOIN, GROUP).status == 0 and partitions(one) == before
        nowhere = TOPIC + wire.identifier("nowhere")
        assert one.read(606, nowhere).body == b"" and one.change(JOIN, nowhere).status == 5000
        assert one.change(JOIN, bytes_of("0103") + nowhere).status == 4


def test_members_of_two_generations_share_a_group(own_server: Server) -> None:
    with member(own_server) as one, wire.connect(own_server.address) as classic:
        assert one.change(JOIN, GROUP).status == 0
        classic.request(604, GROUP)
        deadline = time.monotonic() + WAIT_S
        while len(partitions(one)[1]) != 1:
            assert time.monotonic() < deadline
        (kept,) = partitions(one)[1]
        place = b"\2" + wire.identifier("g") + TOPIC + b"\0" + bytes(4)
        polled = classic.request(100, place + struct.pack("<BQIB", 5, 0, 10, 1))
        assert struct.unpack_from("<I", polled) == (1 - kept,) and polled[12:16] == b"\1\0\0\0"
        assert poll(one, 1 - kept).status == NOT_OWNED
