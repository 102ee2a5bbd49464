"""Callers without a connection that wait for messages: woken by what comes, on partitions of both shards, at every
level; bounded, and gone when nobody waits any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

import pytest

from shardd.engine.calls import PlaceUnknownError
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.poll_requests import WaitForMessages
from shardd.runtime.crowds import SharedRoom
from shardd.service.identity import Identity
from tests.support import wire
from tests.unit.calls_harness import LEVELS, InsideTopic, workers_with_stream
from tests.unit.services_harness import Workers

pytestmark = pytest.mark.io_engine

PARTITIONS: Final = 8
WAIT_S: Final = 30.0
LONG_MS: Final = 60_000  # nothing here takes so long


@pytest.fixture(scope="module", params=LEVELS)
def workers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with workers_with_stream(tmp_path_factory.mktemp("data"), request.param) as running:
        yield running


class Waiter(InsideTopic):
    """On a partition of shard `owner`, from shard 0."""

    def __init__(self, workers: Workers, owner: int, name: str) -> None:
        super().__init__(workers, name, PARTITIONS)
        self.partition, self.place = self.first_on(owner)

    def send(self, count: int = 1) -> None:
        self.root.send("st", self.name, wire.to_partition(self.partition), [wire.message(b"m")] * count)

    async def wait(self, offset: int, timeout_ms: int = LONG_MS) -> bool:
        request = WaitForMessages("st", self.name, self.partition, offset, timeout_ms)
        return await self.services.waits.wait_for_messages(self.identity, request)

    async def sent_meanwhile(self, count: int = 1) -> None:
        """Once somebody waits in the engine."""
        async with asyncio.timeout(WAIT_S):
            while not self.engine.gauges()["calls"]:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            await asyncio.to_thread(self.send, count)

    def together(self, *coroutines: object) -> list[object]:
        async def ask() -> list[object]:
            async with asyncio.timeout(WAIT_S):
                return list(await asyncio.gather(*coroutines))  # type: ignore[call-overload]

        return self.workers.call(ask())

    def nobody_waits(self) -> bool:
        async def look() -> bool:
            async with asyncio.timeout(WAIT_S):
                while self.engine.gauges()["calls"]:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.005)
            return True

        return self.workers.call(look())


@pytest.fixture(params=[0, 1])
def waiter(workers: Workers, request: pytest.FixtureRequest) -> Waiter:
    return Waiter(workers, request.param, request.node.name[-60:])


def test_what_is_there_is_told_at_once_and_what_comes_when_it_comes(waiter: Waiter) -> None:
    assert waiter.together(waiter.wait(0), waiter.sent_meanwhile()) == [True, None]
    assert waiter.together(waiter.wait(0)) == [True]
    assert waiter.together(waiter.wait(1), waiter.sent_meanwhile()) == [True, None]
    assert waiter.nobody_waits()


def test_who_waits_further_behind_is_not_told_too_early(waiter: Waiter) -> None:
    async def sent() -> None:
        for _ in range(4):
            await waiter.sent_meanwhile()

    assert waiter.together(waiter.wait(3), sent()) == [True, None]
    assert len(waiter.root.read_all("st", waiter.name, waiter.partition)) == 4


def test_nothing_comes_and_the_time_is_over(waiter: Waiter) -> None:
    waiter.send()
    assert waiter.together(waiter.wait(1, 150), waiter.wait(1, 0)) == [False, False]
    assert waiter.nobody_waits()


def test_many_wait_for_one_message(waiter: Waiter) -> None:
    ends = waiter.together(*[waiter.wait(0) for _ in range(300)], waiter.sent_meanwhile())
    assert ends == [True] * 300 + [None]
    assert waiter.nobody_waits()


def test_too_many_are_refused_and_others_go_on(waiter: Waiter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiter.services.waits, "_room", SharedRoom(6, of_addresses=False))

    async def ask() -> tuple[list[object], list[object]]:
        held = [asyncio.ensure_future(waiter.wait(0)) for _ in range(3)]
        await asyncio.sleep(0)
        refused = await asyncio.gather(*[waiter.wait(0) for _ in range(5)], return_exceptions=True)
        for each in held:
            each.cancel()
        ended = await asyncio.gather(*held, return_exceptions=True)
        return list(refused), list(ended)

    refused, ended = waiter.workers.call(ask())
    assert [each.status for each in refused if isinstance(each, ShardError)] == [Status.FEATURE_UNAVAILABLE] * 5
    assert all(isinstance(each, asyncio.CancelledError) for each in ended)
    assert waiter.nobody_waits()
    assert waiter.together(waiter.wait(0, 0)) == [False]


def test_who_may_not_poll_and_what_is_not_there(waiter: Waiter) -> None:
    def status(stream: str = "st", topic: str | None = None, partition: int = 0, user: Identity | None = None) -> int:
        request = WaitForMessages(stream, topic or waiter.name, partition, 0, 0)
        try:
            waiter.workers.call(waiter.services.waits.wait_for_messages(user or waiter.identity, request))
        except ShardError as error:
            return error.status
        return 0

    assert status() == 0
    assert status(stream="no") == Status.STREAM_ID_NOT_FOUND
    assert status(topic="no") == Status.TOPIC_ID_NOT_FOUND
    assert status(partition=PARTITIONS) == Status.PARTITION_NOT_FOUND
    assert status(user=Identity(0, 12345)) == Status.UNAUTHORIZED
    assert status(partition=-1) == Status.INVALID_COMMAND


def test_a_topic_that_goes_ends_its_waits(waiter: Waiter) -> None:
    async def delete() -> None:
        await asyncio.sleep(0.2)
        await asyncio.to_thread(
            waiter.root.request, wire.DELETE_TOPIC, wire.identifier("st") + wire.identifier(waiter.name)
        )

    async def wait() -> int:
        try:
            await waiter.wait(0)
        except ShardError as error:
            return error.status
        return 0

    assert waiter.together(wait(), delete()) == [Status.TOPIC_ID_NOT_FOUND, None]
    assert waiter.nobody_waits()


def test_another_partition_in_its_place_is_none_to_wait_for(waiter: Waiter) -> None:
    wrong = waiter.place._replace(incarnation=waiter.place.incarnation + 1000)
    with pytest.raises(PlaceUnknownError):
        waiter.workers.call(waiter.calls.wait(wrong, 0, 0, 0.1))


def test_a_purge_ends_no_wait(waiter: Waiter) -> None:
    waiter.send(5)

    async def purge() -> None:
        await asyncio.sleep(0.1)
        await asyncio.to_thread(waiter.root.purge_topic, "st", waiter.name)
        await waiter.sent_meanwhile(6)

    assert waiter.together(waiter.wait(5), purge()) == [True, None]
