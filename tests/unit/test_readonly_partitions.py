"""Partitions that are read only: every way in refuses sends with 4010, polls and offsets go on, and their owner follows
what the metadata say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from shardd.metadata.liftbridge_runs import marked, ranges_of
from shardd.metadata.state import Topic
from shardd.protocol import requests
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.primitives import Reader
from shardd.protocol.producers import InitProducer, Produced, ProducedKind, ProducerEpoch, send_once_head
from shardd.protocol.send_request import NewMessage, Partitioning, PartitioningKind, SendMessages
from shardd.worker import partitions
from shardd.worker.partition_marks import MarkedPartitions
from tests.support import wire
from tests.support.wire import StatusError
from tests.unit.calls_harness import LEVELS, InsideTopic, workers_with_stream
from tests.unit.services_harness import Workers

pytestmark = pytest.mark.io_engine

PARTITIONS: Final = 8
READ_ONLY: Final = Status.CANNOT_APPEND_MESSAGE


@pytest.fixture(scope="module", params=LEVELS)
def workers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with workers_with_stream(tmp_path_factory.mktemp("data"), request.param) as running:
        yield running


class Target(InsideTopic):
    """A topic with partitions on both shards."""

    def __init__(self, workers: Workers, name: str) -> None:
        super().__init__(workers, name, PARTITIONS)

    def set_readonly(self, value: bool, *chosen: int) -> None:
        async def tell(shard: int, *place: int) -> None:
            self.workers.context(shard).engine.partition_set_readonly(*place, value)

        for partition in chosen:
            place = self.places()[partition]
            self.workers.call(tell(*place), place.shard)

    def send(self, partition: int, count: int = 1, size: int = 10) -> int:
        try:
            self.root.send("st", self.name, wire.to_partition(partition), [wire.message(b"m" * size)] * count)
        except StatusError as error:
            return error.status
        return 0

    def call(self, partition: int) -> int:
        to = Partitioning(PartitioningKind.PARTITION, partition)
        request = SendMessages.of("st", self.name, to, [NewMessage(b"m")])
        try:
            self.workers.call(self.services.messages.send_messages(self.identity, request))
        except ShardError as error:
            return error.status
        return 0

    def count(self, partition: int) -> int:
        return len(self.root.read_all("st", self.name, partition))

    def touch(self, times: int) -> None:
        """A change of the topic that says nothing about its partitions."""
        hours = 3_600_000_000 * (1000 + times)
        request = requests.UpdateTopicRequest("st", self.name, 1, hours, 0, 1, self.name)
        self.workers.call(self.services.topics.update_topic(self.identity, request))


@pytest.fixture
def target(workers: Workers, request: pytest.FixtureRequest) -> Target:
    return Target(workers, request.node.name[-60:])


def test_every_way_in_refuses_and_reading_goes_on(target: Target) -> None:
    everything = range(PARTITIONS)
    assert {place.shard for place in target.places()} == {0, 1}
    assert [target.send(each, 3) for each in everything] == [0] * PARTITIONS
    target.set_readonly(True, *everything)
    for each in everything:
        assert target.send(each) == READ_ONLY
        assert target.send(each, 40, 100_000) == READ_ONLY
        assert target.call(each) == READ_ONLY
        assert target.count(each) == 3
        target.root.store_offset("st", target.name, each, 1, 2)
    with pytest.raises(StatusError) as refused:
        target.root.send("st", target.name, wire.balanced(), [wire.message(b"m")])
    assert refused.value.status == READ_ONLY
    target.set_readonly(False, *everything)
    assert [target.send(each) for each in everything] == [0] * PARTITIONS
    assert [target.count(each) for each in everything] == [4] * PARTITIONS


def test_others_of_the_topic_take_sends(target: Target) -> None:
    target.set_readonly(True, 3)
    assert [target.send(each) for each in range(PARTITIONS)] == [0, 0, 0, READ_ONLY, 0, 0, 0, 0]


def test_an_append_that_expects_an_offset_hears_that_first(target: Target) -> None:
    target.set_readonly(True, *range(PARTITIONS))
    batch = SendMessages.of("st", target.name, Partitioning(PartitioningKind.PARTITION, 0), [NewMessage(b"m")])
    for place in target.places():
        end = target.workers.call(target.calls.append(place, 1, batch.batch, expected_offset=5))
        assert (end.status, end.base_offset) == (READ_ONLY, 0)


def test_a_producer_hears_of_what_is_there_and_stores_nothing_new(workers: Workers, target: Target) -> None:
    init = target.root.request(ExtensionCode.INIT_PRODUCER, InitProducer(0, 0, False).encode())
    who = ProducerEpoch.read(Reader(init))

    def once(sequence: int) -> Produced | int:
        send = wire.batch("st", target.name, wire.to_partition(0), [wire.message(b"m")])
        status, answer = target.root.exchange(
            ExtensionCode.SEND_ONCE, send_once_head(who.producer, who.epoch, sequence) + send
        )
        return status or Produced.read(Reader(answer))

    first = once(0)
    if first == Produced(ProducedKind.REFUSED_AT_MEMORY, 0, 0):
        return  # at level memory nothing is stored once
    target.set_readonly(True, 0)
    assert once(0) == Produced(ProducedKind.DUPLICATE, 1, 0)
    assert once(1) == READ_ONLY
    target.set_readonly(False, 0)
    assert once(1) == Produced(ProducedKind.STORED, 1, 1)


def test_the_owner_follows_the_metadata(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed while it runs, kept through a purge, which opens the partitions anew, and taken back."""
    wanted: list[set[int]] = [set(), {1, 2}, {2, 5}, {2, 5}, set(), {0}]
    hour_us = 3_600_000_000

    def of(topic: Topic) -> MarkedPartitions:
        number = topic.message_expiry_us // hour_us - 1000
        return MarkedPartitions(marked((), ranges_of(wanted[number] if topic.name == target.name else ()), True, 1))

    target.touch(0)
    monkeypatch.setattr(partitions, "readonly_partitions", of)
    for number, chosen in enumerate(wanted):
        target.touch(number)
        expected = [READ_ONLY if each in chosen else 0 for each in range(PARTITIONS)]
        assert [target.send(each) for each in range(PARTITIONS)] == expected
    target.root.purge_topic("st", target.name)
    assert [target.send(each) for each in range(PARTITIONS)] == [READ_ONLY] + [0] * 7
