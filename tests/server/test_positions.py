"""poll_position and store_position on two shards: answers tell the history of a partition and stay below a number of
bytes, and an offset of another history is not stored."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import pytest

from shardd.protocol.bounds import GetPartitionBounds, TopicSelection, decode_reply
from shardd.protocol.errors import Status
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.positions import PollPosition, PositionHead, StorePosition
from shardd.protocol.primitives import Consumer, ConsumerKind, PollingKind, Reader
from tests.support import wire
from tests.support.server import UP_TO_TWO_SHARDS, Server
from tests.support.serving import Serving
from tests.support.wire import Wire

pytestmark = pytest.mark.io_engine
PARTITIONS = 8  # on both shards
GROUP = Consumer(ConsumerKind.GROUP, "g")
NAME = Consumer(ConsumerKind.CONSUMER, "n")
SERVER: Final = Serving(env=UP_TO_TWO_SHARDS)


@pytest.fixture
def client(server: Server, request: pytest.FixtureRequest) -> Iterator[Wire]:
    with wire.connect(server.address) as connection:
        connection.create_stream(request.node.name)
        connection.create_topic(request.node.name, "t", PARTITIONS)
        for partition in range(PARTITIONS):
            messages = [wire.message(b"%d" % number * 100) for number in range(10)]
            connection.send(request.node.name, "t", wire.to_partition(partition), messages)
        yield connection


def poll(
    client: Wire, stream: str, partition: int | None, value: int = 0, bytes_max: int = 0, who: Consumer = NAME
) -> tuple[PositionHead, tuple[wire.Message, ...]]:
    question = PollPosition(who, stream, "t", partition, PollingKind.OFFSET, value, 100, False, 0, bytes_max)
    answer = client.request(ExtensionCode.POLL_POSITION, question.encode())
    head = PositionHead.read(Reader(answer))
    return head, wire.parse_messages(answer[len(head.encode()) :])


def store(client: Wire, stream: str, partition: int, offset: int, incarnation: int, who: Consumer = NAME) -> int:
    question = StorePosition(who, stream, "t", partition, offset, incarnation=incarnation, epoch=0)
    return client.status(ExtensionCode.STORE_POSITION, question.encode())


def incarnations(client: Wire, stream: str) -> list[int]:
    question = GetPartitionBounds((TopicSelection(stream, "t"),), epochs=True)
    [topic] = decode_reply(client.request(ExtensionCode.GET_PARTITION_BOUNDS, question.encode()), epochs=True)
    assert all((each.epoch, each.epoch_from) == (0, 0) for each in topic.partitions)
    return [each.incarnation for each in topic.partitions]


def test_an_answer_tells_the_history_that_the_bounds_tell(client: Wire, request: pytest.FixtureRequest) -> None:
    stream = request.node.name
    for _ in range(2):
        told = incarnations(client, stream)
        for partition in range(PARTITIONS):
            head, messages = poll(client, stream, partition)
            assert (head.partition, head.incarnation, head.epoch) == (partition, told[partition], 0)
            assert (head.first_offset, head.epoch_from, head.is_sparse) == (0, 0, False)
            assert [each.offset for each in messages] == list(range(head.count))
        client.purge_topic(stream, "t")
    assert incarnations(client, stream) != told


@pytest.mark.parametrize("who", [NAME, GROUP])
def test_an_offset_of_an_earlier_history_is_not_stored(
    client: Wire, request: pytest.FixtureRequest, who: Consumer
) -> None:
    stream = request.node.name
    if who is GROUP:
        address = wire.identifier(stream) + wire.identifier("t")
        client.request(602, address + wire.str8("g"))
        client.request(604, address + wire.identifier("g"))
    for partition in range(PARTITIONS):
        before = poll(client, stream, partition, who=who)[0].incarnation
        assert store(client, stream, partition, 4, before, who) == 0
        client.purge_topic(stream, "t")
        for each in range(PARTITIONS):
            messages = [wire.message(b"x")] * 10
            client.send(stream, "t", wire.to_partition(each), messages)
        assert store(client, stream, partition, 4, before, who) == Status.UNEXPECTED_OFFSET
        now = poll(client, stream, partition, who=who)[0].incarnation
        assert store(client, stream, partition, 4, now, who) == 0
        question = StorePosition(who, stream, "t", partition, 5, incarnation=now, epoch=1)
        assert client.status(ExtensionCode.STORE_POSITION, question.encode()) == Status.UNEXPECTED_OFFSET


def test_an_answer_stays_below_the_bytes_but_for_one_message(client: Wire, request: pytest.FixtureRequest) -> None:
    stream = request.node.name
    record = 64 + 100
    for partition in range(PARTITIONS):
        for bytes_max, count in ((1, 1), (record, 1), (2 * record - 1, 1), (2 * record, 2), (5 * record + 7, 5)):
            head, messages = poll(client, stream, partition, 2, bytes_max)
            assert (head.count, len(messages)) == (count, count)
            assert [each.offset for each in messages] == list(range(2, 2 + count))
        assert poll(client, stream, partition, 0, 100 * record)[0].count == 10


def test_a_cut_request_is_refused(client: Wire, request: pytest.FixtureRequest) -> None:
    stream = request.node.name
    question = PollPosition(NAME, stream, "t", 0, PollingKind.FIRST, 0, 1, False, 0, 0).encode()
    assert client.status(ExtensionCode.POLL_POSITION, question[:-1]) == Status.INVALID_COMMAND
    assert client.status(ExtensionCode.POLL_POSITION, question + b"surplus") == 0
    stored = struct.pack("<Q", 1)
    assert client.status(ExtensionCode.STORE_POSITION, stored) == Status.INVALID_COMMAND
