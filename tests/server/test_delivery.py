"""What a consumer that goes away gets again: at least once when it stores offsets after its work, at most once for an
answer that is lost when its polls commit by themselves (docs/guarantees.md)."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import Final

import pytest

from shardd.protocol.codes import Code
from tests.support import wire
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving
from tests.support.wire import Wire

NEXT = 5  # polling strategy: behind the stored offset
MESSAGES = 30
COUNT = 10  # of a poll
TURN_S_MAX = 60.0  # until the partition of a member that is gone has its next one
SEVERAL_WINDOWS = 1_000_000  # payload bytes: the answer does not fit into the buffers of the sockets
PLACE = wire.identifier("s") + wire.identifier("t")
CONSUMER = wire.consumer("reader")
GROUP = wire.group("cg")
WHO = pytest.mark.parametrize("who", [CONSUMER, GROUP], ids=["consumer", "group"])


@pytest.fixture(params=[100, SEVERAL_WINDOWS], ids=["small", "several windows"])
def payload_bytes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


SERVER: Final = Serving(env=ONE_SHARD)


@pytest.fixture
def server(server: Server, payload_bytes: int) -> Iterator[Server]:
    """The server of this file with a new topic and a new group."""
    with wire.connect(server.address) as root:
        root.create_stream("s")
        root.create_topic("s", "t", 1)
        root.request(Code.CREATE_CONSUMER_GROUP, PLACE + wire.str8("cg"))
        for _ in range(MESSAGES):
            root.send("s", "t", wire.to_partition(0), [wire.message(b"m" * payload_bytes)])
        yield server
        root.delete_stream("s")


def reader(server: Server, who: bytes) -> Wire:
    connection = Wire(server.address, receive_buffer_bytes=64 << 10)
    connection.login()
    if who == GROUP:
        connection.request(Code.JOIN_CONSUMER_GROUP, PLACE + wire.identifier("cg"))
    return connection


def poll(connection: Wire, who: bytes) -> list[int]:
    """The offsets of the answer."""
    polled = connection.poll("s", "t", 0, strategy=NEXT, count=COUNT, who=who)
    return [message.offset for message in polled.messages]


def stored(server: Server, who: bytes) -> int | None:
    with Wire(server.address) as root:
        root.login()
        return root.get_offset("s", "t", 0, who)


def dies(connection: Wire) -> None:
    """Nothing more is read, as after kill -9: what was under way comes back as a reset."""
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def first_answer(connection: Wire, who: bytes) -> list[int]:
    """Offsets of the first poll that gives messages: a group has to hand the partition over first."""
    until = time.monotonic() + TURN_S_MAX
    while not (offsets := poll(connection, who)):
        assert time.monotonic() < until
        time.sleep(0.01)
    return offsets


@WHO
def test_a_consumer_that_dies_before_it_stores_sees_its_messages_again(server: Server, who: bytes) -> None:
    first = reader(server, who)
    assert poll(first, who) == list(range(COUNT))
    first.store_offset("s", "t", 0, COUNT - 1, who)
    assert poll(first, who) == list(range(COUNT, 2 * COUNT))
    dies(first)
    with reader(server, who) as second:
        assert first_answer(second, who) == list(range(COUNT, 2 * COUNT)), "the rest comes again"


@WHO
def test_a_lost_answer_is_never_repeated_in_part_when_polls_commit(
    server: Server, who: bytes, payload_bytes: int
) -> None:
    first = reader(server, who)
    how = wire.optional_partition(0) + struct.pack("<BQIB", NEXT, 0, COUNT, True)
    first.send_bytes(wire.frame(Code.POLL_MESSAGES, who + PLACE + how))
    first.receive(8)  # the answer has begun
    dies(first)
    with reader(server, who) as second:
        begin = first_answer(second, who)[0]
        assert begin in (0, COUNT), "all of it again, or nothing"
        assert begin == COUNT or payload_bytes == SEVERAL_WINDOWS, "the offset is stored before the last bytes leave"
        assert stored(server, who) == (None if begin == 0 else COUNT - 1)
        offsets = [message.offset for message in second.poll("s", "t", 0, count=COUNT).messages]
        assert offsets == list(range(COUNT)), "the log still has them"
