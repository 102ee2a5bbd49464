"""A topic or partition that is deleted while others are read: with failOnDataLoss=false the others go on. No Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from shardd.protocol.codes import Code
from shardd.protocol.requests import PartitionsRequest, TopicRequest
from shardd.spark.loss import DataLossError
from shardd.spark.server import TopicMissingError
from tests.spark import direct
from tests.spark.support import Topic, settle
from tests.support.links import root_link

ACCEPTED = {"failOnDataLoss": "false", "startingOffsets": "earliest"}


@pytest.fixture
def more(topic: Topic) -> Iterator[Topic]:
    """A second topic of the stream, which is read together with the first."""
    topic.connection.create_topic(topic.stream, "more", 2)
    made = Topic(topic.server, topic.stream, topic.connection, topic="more")
    made.send(0, 200)
    made.send(1, 100)
    settle(made)
    yield made


def delete(topic: Topic) -> None:
    with root_link(topic.server.address) as connection:
        connection.request(Code.DELETE_TOPIC, TopicRequest(topic.stream, topic.topic).encode())


def delete_last_partition(topic: Topic) -> None:
    with root_link(topic.server.address) as connection:
        connection.request(Code.DELETE_PARTITIONS, PartitionsRequest(topic.stream, topic.topic, 1).encode())


def both(topic: Topic, more: Topic, **options: str) -> dict[str, str]:
    return topic.options(**{"subscribe": f"{topic.name},{more.name}", **options})


def count(topic: Topic) -> int:
    return sum(len(each) for each in topic.payloads.values())


def test_a_stream_goes_on_with_the_others(topic: Topic, more: Topic) -> None:
    stream = direct.Stream(both(topic, more, **ACCEPTED))
    assert len(stream.run()) == count(topic) + count(more)
    delete(more)
    topic.send(0, 10)
    settle(topic)
    assert stream.run() == [(0, 3000 + n, each) for n, each in enumerate(topic.payloads[0][3000:])]
    assert stream.lost() == {more.name: {"0": 0, "1": 0}}
    topic.send(0, 5)
    settle(topic)
    assert len(stream.run()) == 5 and stream.lost() == {more.name: {"0": 0, "1": 0}}


def test_a_batch_that_was_planned_before_is_made_of_what_is_left(topic: Topic, more: Topic) -> None:
    stream = direct.Stream(both(topic, more, **ACCEPTED))
    tasks, end = stream.plan()
    assert stream.at is not None
    delete(more)
    assert len(direct.rows(stream.reader, stream.reader.partitions(stream.at, end))) == count(topic)
    assert len(direct.rows(stream.reader, tasks)) == count(topic)


def test_a_stream_waits_for_a_topic_that_is_made_anew(topic: Topic, more: Topic) -> None:
    stream = direct.Stream(more.options(**ACCEPTED))
    assert len(stream.run()) == count(more)
    delete(more)
    assert stream.run() == [] and stream.run() == []
    topic.connection.create_topic(topic.stream, "more", 1)
    again = Topic(topic.server, topic.stream, topic.connection, topic="more")
    again.send(0, 7)
    settle(again)
    assert set(stream.run()) == again.rows()


def test_a_batch_query_reads_what_is_there(topic: Topic, more: Topic) -> None:
    delete(more)
    starts = json.dumps({each.name: {"0": 0, "1": 0} for each in (topic, more)})
    for options in (ACCEPTED, {**ACCEPTED, "startingOffsets": starts}):
        assert set(direct.everything(both(topic, more, **options))) == topic.rows()
    with pytest.raises(TopicMissingError, match="there is no topic"):
        direct.everything(more.options(**ACCEPTED))  # nothing of what is asked for is there


def test_without_that_option_it_is_told(topic: Topic, more: Topic) -> None:
    stream = direct.Stream(both(topic, more, startingOffsets="earliest"))
    assert len(stream.run()) == count(topic) + count(more)
    delete(more)
    with pytest.raises((TopicMissingError, DataLossError), match="more"):
        stream.run()
    with pytest.raises(TopicMissingError, match="there is no topic"):
        direct.everything(both(topic, more))


def test_partitions_that_are_assigned_and_gone_are_left_out(topic: Topic, more: Topic) -> None:
    assigned = {**more.options(**ACCEPTED), "assign": json.dumps({more.name: [0, 1]})}
    del assigned["subscribe"]
    stream = direct.Stream(assigned)
    assert len(stream.run()) == count(more)
    delete_last_partition(more)
    more.send(0, 5)
    settle_first(more)
    assert [row[:2] for row in stream.run()] == [(0, 200 + n) for n in range(5)]
    assert stream.lost() == {more.name: {"1": 0}}
    assert len(direct.everything(assigned)) == 205


def settle_first(topic: Topic) -> None:
    settle(Topic(topic.server, topic.stream, topic.connection, {0: topic.payloads[0]}, topic.topic))
