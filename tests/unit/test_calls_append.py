"""Appends of callers that are no connections: where their messages are, at an expected offset only, with timestamps of
their own, on partitions of both shards, at every level."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from typing import Final

import pytest

from shardd.engine.calls import COPIED_AT_ONCE_BYTES, Appended
from shardd.protocol import topic_settings
from shardd.protocol.errors import Status
from shardd.protocol.send_request import NewMessage, Partitioning, PartitioningKind, SendMessages
from tests.unit.calls_harness import LEVELS, InsideTopic, workers_with_stream
from tests.unit.services_harness import Workers

pytestmark = pytest.mark.io_engine

PARTITIONS: Final = 16
ANYWHERE: Final = Partitioning(PartitioningKind.PARTITION, 0)


@pytest.fixture(scope="module", params=LEVELS)
def workers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with workers_with_stream(tmp_path_factory.mktemp("data"), request.param) as running:
        yield running


class Asker(InsideTopic):
    """A partition of shard `owner`, asked from shard 0."""

    def __init__(self, workers: Workers, owner: int, name: str) -> None:
        super().__init__(workers, name, PARTITIONS)
        self.partition, self.place = self.first_on(owner)

    async def append(self, *messages: NewMessage, expected: int | None = None, distinct: bool = False) -> Appended:
        request = SendMessages.of("st", self.name, ANYWHERE, messages)
        return await self.calls.append(
            self.place, request.count, request.batch, expected_offset=expected, distinct_timestamps=distinct
        )

    def now(self, *messages: NewMessage, expected: int | None = None, distinct: bool = False) -> Appended:
        return self.workers.call(self.append(*messages, expected=expected, distinct=distinct))

    def together(self, *appends: tuple[int, int | None, bool]) -> list[Appended]:
        """Count, expected offset, distinct timestamps of each."""

        async def ask() -> list[Appended]:
            return await asyncio.gather(
                *(
                    self.append(*messages(count), expected=expected, distinct=distinct)
                    for count, expected, distinct in appends
                )
            )

        return self.workers.call(ask())

    def timestamps(self) -> list[int]:
        return [stored_timestamp(each.raw) for each in self.root.read_all("st", self.name, self.partition)]


def messages(count: int, size: int = 10) -> list[NewMessage]:
    return [NewMessage(b"m" * size) for _ in range(count)]


def stored_timestamp(record: bytes) -> int:
    """docs/protocol/records.md."""
    return int(struct.unpack_from("<Q", record, 32)[0])


@pytest.fixture(params=[0, 1])
def asker(workers: Workers, request: pytest.FixtureRequest) -> Asker:
    return Asker(workers, request.param, request.node.name[-60:])


def test_an_append_tells_where_its_messages_are(asker: Asker) -> None:
    first, second = asker.now(*messages(3)), asker.now(*messages(2))
    assert [(each.status, each.base_offset, each.messages_count) for each in (first, second)] == [(0, 0, 3), (0, 3, 2)]
    assert asker.timestamps() == [first.timestamp_us] * 3 + [second.timestamp_us] * 2


def test_many_at_once_are_where_they_are_told_to_be(asker: Asker) -> None:
    ends = asker.together(*[(count % 5 + 1, None, bool(count % 2)) for count in range(200)])
    assert sorted(
        offset for each in ends for offset in range(each.base_offset, each.base_offset + each.messages_count)
    ) == list(range(600))
    found = asker.timestamps()
    assert all(found[each.base_offset] == each.timestamp_us for each in ends)


@pytest.mark.parametrize("size", [10, COPIED_AT_ONCE_BYTES // 20])
def test_distinct_timestamps_rise_within_and_between_batches(asker: Asker, size: int) -> None:
    """With batches that are copied in slices, and those of more than a commit takes at once."""
    told: list[int] = []
    for count in (1, 100, 1, 300):
        end = asker.now(*messages(count, size), distinct=True)
        assert (end.status, end.base_offset) == (0, len(told))
        told += range(end.timestamp_us, end.timestamp_us + count)
    assert asker.timestamps() == told
    assert len(set(told)) == len(told)
    assert told == sorted(told)


def test_nothing_is_stored_at_another_offset_than_the_expected_one(asker: Asker) -> None:
    refused = Appended(Status.UNEXPECTED_OFFSET)
    assert asker.now(*messages(1), expected=1) == refused
    assert asker.now(*messages(2), expected=0).base_offset == 0
    for wrong in (0, 1, 3, 5, -2, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 80):
        assert asker.now(*messages(1), expected=wrong) == refused
    assert asker.now(*messages(1), expected=2).base_offset == 2
    assert len(asker.timestamps()) == 3


def test_of_many_that_expect_the_same_offset_one_is_stored(asker: Asker) -> None:
    for offset in range(5):
        ends = asker.together(*[(1, offset, True)] * 50)
        assert sorted(each.status for each in ends) == [0] + [Status.UNEXPECTED_OFFSET] * 49
        assert [each.base_offset for each in ends if each.status == 0] == [offset]
    assert len(asker.timestamps()) == 5


def test_expected_offsets_of_a_pipeline_are_judged_in_order(asker: Asker) -> None:
    ends = asker.together((2, 0, False), (1, 2, False), (3, None, False), (1, 3, False), (1, 6, True), (1, 7, False))
    assert [each.status for each in ends] == [0, 0, 0, Status.UNEXPECTED_OFFSET, 0, 0]
    assert [each.base_offset for each in ends] == [0, 2, 3, 0, 6, 7]


def test_a_large_batch_at_an_expected_offset(asker: Asker) -> None:
    large = messages(40, 100_000)
    assert asker.now(*large, expected=1) == Appended(Status.UNEXPECTED_OFFSET)
    end = asker.now(*large, expected=0, distinct=True)
    assert (end.status, end.base_offset, end.messages_count) == (0, 0, 40)
    assert asker.now(*large, expected=0) == Appended(Status.UNEXPECTED_OFFSET)
    assert asker.timestamps() == list(range(end.timestamp_us, end.timestamp_us + 40))


def test_messages_that_were_there_are_not_counted(asker: Asker, workers: Workers) -> None:
    """Where a topic stores each id once."""
    change = topic_settings.SetTopicSettings("st", asker.name, (("message_deduplication", "on"),))
    workers.call(asker.services.topic_settings.set_topic_settings(asker.identity, change))
    sent = [NewMessage(b"m", id=number + 1) for number in range(4)]
    until = asker.now(*sent[:2])
    assert (until.base_offset, until.messages_count) == (0, 2)
    more = asker.now(*sent)
    assert (more.base_offset, more.messages_count) == (2, 2)
    none = asker.now(*sent, expected=4)
    assert none == Appended(0, 4, 0, 0)
    assert asker.now(*sent, expected=3) == Appended(Status.UNEXPECTED_OFFSET)


def test_callers_of_the_wire_see_no_difference(asker: Asker) -> None:
    asker.now(*messages(3), distinct=True)
    assert [each.payload for each in asker.root.read_all("st", asker.name, asker.partition)] == [b"m" * 10] * 3
