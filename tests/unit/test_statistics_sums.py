"""Sums over partitions (Engine.stats_sums) are those of their single statistics."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from shardd.metadata.state import Topic
from shardd.service import statistics
from shardd.service.statistics import Statistics, Sums
from tests.support import wire
from tests.unit.services_harness import Workers

PARTITIONS = 12


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("data"), shards=2) as running:
        root = running.connect()
        root.create_stream("st")
        root.create_topic("st", "t", PARTITIONS)
        for partition in range(0, PARTITIONS, 2):
            root.send("st", "t", wire.to_partition(partition), [wire.message(bytes(partition))] * (partition + 1))
        yield running


@pytest.fixture
def topic(workers: Workers) -> Topic:
    return workers.context().metadata.state.streams[0].topics[0]


def summed(workers: Workers, topic: Topic) -> Sums:
    sums = Sums()
    for _ in Statistics(workers.context().engine).sum_up(topic, sums):
        pass
    return sums


def one_by_one(workers: Workers, topic: Topic) -> Sums:
    sums, single = Sums(), Statistics(workers.context().engine)
    for partition in topic.partitions:
        sums.add(single.of(partition))
    return sums


@pytest.mark.parametrize("at_once", [1, 5, PARTITIONS, 500])
def test_sums_are_those_of_single_partitions(
    workers: Workers, topic: Topic, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "_SUMMED_AT_ONCE", at_once)
    sums = summed(workers, topic)
    assert sums == one_by_one(workers, topic)
    assert sums.messages_count == sum(range(1, PARTITIONS, 2))


def test_a_slot_of_another_partition_counts_as_empty(workers: Workers, topic: Topic) -> None:
    others = tuple(msgspec.structs.replace(each, incarnation=each.incarnation + 1) for each in topic.partitions)
    gone = msgspec.structs.replace(topic, partitions=others)
    assert summed(workers, gone) == one_by_one(workers, gone) == Sums(segments_count=PARTITIONS)


def test_what_is_not_there_is_an_error(workers: Workers, topic: Topic) -> None:
    engine, partitions = workers.context().engine, topic.partitions
    for first, end in ((-1, 1), (0, PARTITIONS + 1)):
        with pytest.raises(ValueError, match="are not there"):
            engine.stats_sums(partitions, first, end)
    beyond = (msgspec.structs.replace(partitions[0], slot=2**20),)
    with pytest.raises(ValueError, match="above the table"):
        engine.stats_sums(beyond, 0, 1)
    with pytest.raises(AttributeError):
        engine.stats_sums((object(),), 0, 1)
    assert engine.stats_sums(partitions, 1, 1) == (0,) * 6
