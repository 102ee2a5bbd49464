"""Calls of Python beyond their limits, cancelled, or to an owner that does not answer: each ends with what is known,
and nothing stays behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, Self

import pytest

from shardd.engine import batch_check
from shardd.engine._native import CALLS_MAX
from shardd.engine.calls import (
    COPIED_AT_ONCE_BYTES,
    ENDS_PER_PASS,
    OutcomeUnknownError,
    Place,
    PlaceUnknownError,
    Reader,
)
from shardd.protocol import requests
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Consumer, ConsumerKind, PollingKind
from shardd.protocol.send_request import NewMessage, Partitioning, PartitioningKind, SendMessages
from tests.unit.calls_harness import SHARDS, InsideTopic, workers_with_stream
from tests.unit.services_harness import POOL_BYTES, Workers

pytestmark = pytest.mark.io_engine

ASKED: Final = 10_000
CALLS_POOL_PART: Final = 4  # of the pool, for records of calls, which have blocks
POOL_BLOCK_MIN: Final = 4096
TIMEOUT_S: Final = 60.0
WAIT_S: Final = 25.0  # less than a call of the harness may take
LARGE: Final = [NewMessage(b"l" * 100_000) for _ in range(40)]  # an answer of more than ten windows


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with workers_with_stream(tmp_path_factory.mktemp("data")) as running:
        yield running


class Inside(InsideTopic):
    """`partitions` and `place_on`: by shard, one of its own."""

    def __init__(self, workers: Workers, name: str) -> None:
        super().__init__(workers, name, 16)
        chosen = [self.first_on(shard) for shard in range(SHARDS)]
        self.partitions, self.place_on = [partition for partition, _ in chosen], [place for _, place in chosen]

    def sending(self, shard: int, *messages: NewMessage) -> Coroutine[Any, Any, None]:
        partitioning = Partitioning(PartitioningKind.PARTITION, self.partitions[shard])
        request = SendMessages.of("st", self.name, partitioning, messages or [NewMessage(b"m")])
        return self.context.services.messages.send_messages(self.identity, request)

    def reading(self, shard: int) -> Coroutine[Any, Any, object]:
        who = Consumer(ConsumerKind.CONSUMER, 1)
        partition, first = self.partitions[shard], PollingKind.FIRST
        request = requests.PollMessages(who, "st", self.name, partition, first, 0, 100_000, True)
        return self.context.services.messages.poll_messages(self.identity, request)

    def count(self, shard: int) -> int:
        partition = self.partitions[shard]
        return [each.messages_count for each in self.root.partitions("st", self.name)][partition]

    def figures(self) -> dict[str, int]:
        """What has to be as before when no call is under way."""
        engine = self.context.engine
        gauges = engine.gauges()
        names = "calls", "call_record_bytes", "output_bytes", "read_jobs", "waiters"
        held = {name: gauges[name] for name in names}
        return held | self.calls.figures() | {"pool_used_bytes": engine.counters()["pool_used_bytes"]}

    async def before(self) -> dict[str, int]:
        """When the last answer to the test's own connection has left."""
        until = time.monotonic() + WAIT_S
        while self.figures()["output_bytes"] and time.monotonic() < until:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)
        return self.figures()

    async def until_as(self, before: dict[str, int]) -> None:
        until = time.monotonic() + WAIT_S
        while self.figures() != before and time.monotonic() < until:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)
        assert self.figures() == before


@pytest.fixture
def inside(workers: Workers, request: pytest.FixtureRequest) -> Inside:
    return Inside(workers, request.node.name[-60:])


@pytest.mark.parametrize("shard", [0, 1])
def test_ten_thousand_at_once_are_stored_or_refused_and_none_is_lost(inside: Inside, shard: int) -> None:
    async def ask() -> Counter[str]:
        before = await inside.before()
        sends = [inside.sending(shard, NewMessage(b"%d" % number)) for number in range(ASKED)]
        ends = await asyncio.gather(*sends, return_exceptions=True)
        await inside.until_as(before)
        return Counter(repr(end.status) if isinstance(end, ShardError) else repr(end) for end in ends)

    most = min(CALLS_MAX, POOL_BYTES // CALLS_POOL_PART // POOL_BLOCK_MIN)
    ends = inside.workers.call(ask())
    refused = repr(Status.SHARD_COMMUNICATION_ERROR)
    assert ends == {repr(None): most, refused: ASKED - most}
    assert inside.count(shard) == most
    found = inside.root.read_all("st", inside.name, inside.partitions[shard])
    assert {int(each.payload) for each in found} == set(range(most))
    inside.workers.call(inside.sending(shard))
    assert inside.count(shard) == most + 1


def test_the_loop_hears_of_many_ends_in_slices(inside: Inside) -> None:
    """Other work of the loop has its turn between them."""

    async def ask() -> int:
        sends = [asyncio.ensure_future(inside.sending(0)) for _ in range(2000)]
        done = most = 0
        async with asyncio.timeout(TIMEOUT_S):
            while done < len(sends):
                await asyncio.sleep(0)
                now = sum(send.done() for send in sends)
                done, most = now, max(most, now - done)
        await asyncio.gather(*sends)
        return most

    assert 0 < inside.workers.call(ask()) <= 2 * ENDS_PER_PASS


@pytest.mark.parametrize("shard", [0, 1])
def test_a_large_batch_is_copied_in_slices(inside: Inside, shard: int) -> None:
    """Other work of the loop has its turn between them, and who gives up in the middle has stored nothing."""
    large, slices = NewMessage(b"l" * (2 << 20)), (2 << 20) // COPIED_AT_ONCE_BYTES

    async def ask() -> None:
        before = await inside.before()
        engine = inside.context.engine
        given_up = asyncio.ensure_future(inside.sending(shard, large))
        for _ in range(slices // 2):
            await asyncio.sleep(0)
        held = engine.gauges()["call_record_bytes"]
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        assert held > engine.gauges()["call_record_bytes"] == 0
        sends = engine.counters()["sends"]
        send, turns = asyncio.ensure_future(inside.sending(shard, large)), 0
        while engine.counters()["sends"] == sends:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= slices
        await send
        await inside.until_as(before)

    inside.workers.call(ask())
    found = inside.root.read_all("st", inside.name, inside.partitions[shard])
    assert [each.payload for each in found] == [large.payload]


@pytest.mark.parametrize("shard", [0, 1])
def test_batches_beyond_their_part_of_the_pool_are_refused(inside: Inside, shard: int) -> None:
    async def ask() -> Counter[str]:
        before = await inside.before()
        sends = [inside.sending(shard, NewMessage(b"b" * (4 << 20))) for _ in range(20)]
        ends = await asyncio.gather(*sends, return_exceptions=True)
        await inside.until_as(before)
        return Counter(repr(end.status) if isinstance(end, ShardError) else repr(end) for end in ends)

    ends = inside.workers.call(ask())
    assert set(ends) == {repr(None), repr(Status.SHARD_COMMUNICATION_ERROR)}
    assert inside.count(shard) == ends[repr(None)]


@pytest.mark.parametrize("shard", [0, 1])
def test_what_is_cancelled_gives_everything_back(inside: Inside, shard: int) -> None:
    """After no time at all, and after ever more turns of the loop: before, between and behind windows."""

    async def ask() -> int:
        await inside.sending(shard, *LARGE)
        before = await inside.before()
        unfinished = 0
        for turns in range(40):
            tasks = [
                asyncio.ensure_future(each)
                for each in (inside.reading(shard), inside.sending(shard), inside.reading(shard))
            ]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks:
                unfinished += task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await inside.until_as(before)
        await inside.sending(shard)
        return unfinished

    assert inside.workers.call(ask()) > 0
    sent = inside.count(shard) - len(LARGE)
    assert 1 <= sent <= 41


def test_a_place_that_is_not_there_is_told(inside: Inside) -> None:
    async def ask() -> None:
        batch = SendMessages.of("st", "any", Partitioning(PartitioningKind.BALANCED), [NewMessage(b"m")])
        assert batch_check(batch.batch, batch.count) == 0
        for place in inside.place_on:
            wrong = place._replace(incarnation=place.incarnation + 1)
            reader = Reader(ConsumerKind.CONSUMER, 1)
            for call in (
                inside.calls.append(wrong, 1, batch.batch),
                inside.calls.read(wrong, reader, PollingKind.FIRST, 0, 1, auto_commit=True, bytes_max=100),
                inside.calls.store_offset(wrong, reader, 0),
            ):
                with pytest.raises(PlaceUnknownError):
                    await call

    inside.workers.call(ask())
    with pytest.raises(ValueError, match="there is no shard 2"):
        inside.workers.call(inside.calls.append(Place(2, 0, 0), 1, b""))


def test_answers_that_are_put_together_have_a_limit(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> Counter[str]:
        await inside.sending(0, *LARGE)
        before = await inside.before()
        ends = await asyncio.gather(*[inside.reading(0) for _ in range(5)], return_exceptions=True)
        await inside.until_as(before)
        return Counter(repr(end.status) if isinstance(end, ShardError) else type(end).__name__ for end in ends)

    monkeypatch.setattr("shardd.engine.calls.ANSWERS_BYTES_MAX", 2 * 40 * 100_064)
    ends = inside.workers.call(ask())
    assert ends == {"PolledMessages": 2, repr(Status.SHARD_COMMUNICATION_ERROR): 3}


class StandingStill:
    """Shard 1 does, as a context manager; `after_a_request`: as soon as it has taken one."""

    def __init__(self, workers: Workers, *, after_a_request: bool = False) -> None:
        self._workers, self._after_a_request = workers, after_a_request
        self._served = workers.context(1).engine.counters()["served_for_peers"]
        self.begun = threading.Event()
        self._let_go = threading.Event()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._workers.call, args=(self._hold(), 1))
        self._thread.start()
        if not self._after_a_request:
            assert self.begun.wait(TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go.set()
        self._thread.join(TIMEOUT_S)

    async def _hold(self) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while self._after_a_request and not self._has_served():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        self.begun.set()
        self._let_go.wait(TIMEOUT_S)

    def _has_served(self) -> bool:
        served = self._workers.context(1).engine.counters()["served_for_peers"]
        return bool(served > self._served)


def test_an_owner_that_is_down_is_told_and_nothing_is_stored(inside: Inside) -> None:
    async def ask(shard: int) -> list[object]:
        inside.context.engine.peer_down(1)
        before = await inside.before()
        ends = await asyncio.gather(inside.sending(shard), inside.reading(shard), return_exceptions=True)
        await inside.until_as(before)
        inside.context.engine.peer_up(1, inside.workers.context(1).engine.generation)
        return [getattr(end, "status", end) for end in ends]

    with StandingStill(inside.workers):
        ends = inside.workers.call(ask(1))
    assert ends == [Status.SHARD_COMMUNICATION_ERROR] * 2
    assert inside.count(1) == 0


def test_an_owner_that_dies_with_a_request_leaves_it_open(tmp_path: Path) -> None:
    """It had taken the batch, and waits for its device: nobody knows whether it has it."""

    async def ask(inside: Inside, still: StandingStill) -> ShardError:
        task = asyncio.ensure_future(inside.sending(1))
        async with asyncio.timeout(TIMEOUT_S):
            while not still.begun.is_set():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.001)
        inside.context.engine.peer_down(1)
        with pytest.raises(ShardError) as refused:
            await task
        inside.context.engine.peer_up(1, inside.workers.context(1).engine.generation)
        return refused.value

    with workers_with_stream(tmp_path / "data", "durable") as workers:
        inside = Inside(workers, "open")
        before = workers.call(inside.before())
        with StandingStill(workers, after_a_request=True) as still:
            error = workers.call(ask(inside, still))
        assert (error.status, error.close) == (Status.TASK_TIMEOUT, True)
        workers.call(inside.until_as(before))
        assert inside.count(1) == 1


def test_a_call_has_its_time(tmp_path: Path) -> None:
    """12001: nobody knows whether the owner does it. It gives everything back when it goes on."""
    with workers_with_stream(tmp_path / "data", settings={"server.request_timeout": "1 s"}) as workers:
        inside = Inside(workers, "late")
        before = workers.call(inside.before())
        with StandingStill(workers), pytest.raises(ShardError) as refused:
            workers.call(inside.sending(1))
        assert (refused.value.status, refused.value.close) == (Status.TASK_TIMEOUT, True)
        workers.call(inside.until_as(before))
        assert inside.count(1) == 1


def test_a_worker_stops_with_calls_under_way(tmp_path: Path) -> None:
    with workers_with_stream(tmp_path / "data") as workers:
        inside = Inside(workers, "last")

        async def ask() -> None:
            task = asyncio.ensure_future(inside.calls.append(inside.place_on[1], 1, _ONE.batch))
            await asyncio.sleep(0.05)
            inside.calls.close()
            with pytest.raises(OutcomeUnknownError):
                await task
            with pytest.raises(OutcomeUnknownError):
                await inside.calls.append(inside.place_on[0], 1, _ONE.batch)

        with StandingStill(workers):
            workers.call(ask())


_ONE: Final = SendMessages.of(0, 0, Partitioning(PartitioningKind.BALANCED), [NewMessage(b"m")])
