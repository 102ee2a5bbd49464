"""What a client publishes is stored in its order, in batches, within bounds; whatever happens, it hears of each message
once. Real workers are in tests/doors/test_liftbridge_nats.py."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from shardd.doors.liftbridge import publishing
from shardd.doors.liftbridge.publish_batches import AckError, Outcome
from shardd.doors.liftbridge.publishing import Publisher
from shardd.doors.liftbridge.refusals import COMMAND as RIGHT
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge.records import LiftbridgeMessage
from shardd.protocol.liftbridge.requests import Publish, StreamInfo
from shardd.protocol.record_layout import INDEX_ENTRY, RECORD_HEAD
from tests.support.on_loop import on_loop
from tests.unit.liftbridge_clients import FakeClient

STREAM = StreamInfo("s", "sub", "", 1, 2, 3, 4, 1, {})
CONTROLLED = msgspec.structs.replace(STREAM, settings={"optimisticConcurrencyControl": True})


def payloads(request: Publish) -> Iterator[bytes]:
    """Read as the documentation of the batch says."""
    batch = bytes(request.batch)
    index = INDEX_ENTRY.size * request.count
    begin = 0
    for number in range(request.count):
        _, end, _ = INDEX_ENTRY.unpack_from(batch, number * INDEX_ENTRY.size)
        size = RECORD_HEAD.unpack_from(batch, index + begin)[6]
        yield batch[index + begin + RECORD_HEAD.size :][:size]
        begin = end
    assert index + begin == len(batch)


class Worker(FakeClient):
    """The answers of a worker to one client, given when the test says so."""

    def __init__(self, user_id: int = 1, network: str = "192.0.2.1", owner: int = 1) -> None:
        super().__init__(user_id, network, owner)
        self.asked: list[tuple[Publish, asyncio.Future[Any]]] = []
        self.offset = 0
        self.at_once: Exception | bool = False

    async def command(self, name: str, request: Publish) -> Any:
        if name == RIGHT:  # whoever sends has it
            return None
        assert name == "liftbridge_publish"
        request = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Publish)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.asked.append((request, answer))
        if isinstance(self.at_once, Exception):
            raise self.at_once
        if self.at_once:
            self.answer()
        return await answer

    def answer(self, error: Exception | None = None) -> None:
        """The oldest one."""
        request, answer = next(each for each in self.asked if not each[1].done())
        if error is not None:
            answer.set_exception(error)
            return
        answer.set_result({"base_offset": self.offset, "timestamp_us": 1_000 + self.offset})
        self.offset += request.count

    @property
    def batches(self) -> list[list[bytes]]:
        return [[*payloads(request)] for request, _ in self.asked]


async def turns(count: int = 8) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@on_loop
async def test_a_turn_of_the_loop_is_a_batch_and_so_is_what_comes_while_one_is_under_way() -> None:
    worker, publisher, heard = Worker(), Publisher(1 << 20, gather_s=0.0), list[tuple[int, Outcome]]()

    def hear(number: int, said: Outcome) -> None:
        heard.append((number, said))

    for number in range(3):
        publisher.submit(worker.client, STREAM, 1, LiftbridgeMessage(b"%d" % number), done=partial(hear, number))
    await turns()
    for number in range(3, 7):
        publisher.submit(worker.client, STREAM, 1, LiftbridgeMessage(b"%d" % number), done=partial(hear, number))
        await turns(3)
    publisher.submit(worker.client, STREAM, 2, LiftbridgeMessage(b"other"))  # another partition waits for nobody
    await turns()
    assert worker.batches == [[b"0", b"1", b"2"], [b"other"]]
    worker.answer()
    await turns()
    assert worker.batches[2:] == [[b"3", b"4", b"5", b"6"]]
    worker.answer()
    worker.answer()
    await asyncio.wait_for(publisher.drained(), 10)
    assert [number for number, _ in heard] == [*range(7)]
    assert [said.offset for _, said in heard] == [0, 1, 2, 4, 5, 6, 7]
    assert [said.timestamp_ns for _, said in heard[:3]] == [1_000_000, 1_001_000, 1_002_000]
    assert publisher.pending_messages == publisher.pending_bytes == 0 and not publisher._queues


@on_loop
async def test_a_batch_is_bounded() -> None:
    worker, publisher = Worker(), Publisher(4 << 20)
    worker.at_once = True
    for _ in range(3_000):
        publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(b"x"))
    for _ in range(5):
        publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(b"x" * 600_000))
    publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(b"x" * (2 << 20)))
    await asyncio.wait_for(publisher.drained(), 10)
    assert [len(batch) for batch in worker.batches] == [1_024, 1_024, 952, 1, 1, 1, 1, 1, 1]


@on_loop
async def test_a_message_that_expects_an_offset_goes_alone() -> None:
    worker, publisher = Worker(), Publisher(1 << 20, gather_s=0.0)
    worker.at_once = True
    for expected in (-1, -1, 5, 6, -1, -1, 0):
        publisher.submit(worker.client, CONTROLLED, 0, LiftbridgeMessage(b"x"), expected_offset=expected)
    await asyncio.wait_for(publisher.drained(), 10)
    assert [(request.count, request.expected_offset) for request, _ in worker.asked] == [
        (2, -1), (1, 5), (1, 6), (2, -1), (1, 0),
    ]  # fmt: skip
    worker.asked.clear()
    for _ in range(3):
        publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(b"x"), expected_offset=0)
    await asyncio.wait_for(publisher.drained(), 10)
    assert [(request.count, request.expected_offset) for request, _ in worker.asked] == [(3, -1)]


@on_loop
async def test_what_no_record_takes_is_refused_in_its_turn() -> None:
    worker, publisher, heard = Worker(), Publisher(10, gather_s=0.0), list[AckError]()
    worker.at_once = True
    for value in (b"large" * 3, b"a", b"b", b"large" * 3, b"large" * 3, b"", b"large" * 3):
        publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(value), done=lambda said: heard.append(said.error))
    await asyncio.wait_for(publisher.drained(), 10)
    assert heard == [3, 0, 0, 3, 3, 0, 3] and worker.batches == [[b"a", b"b"], [b"\0"]]


@pytest.mark.parametrize(
    ("error", "status", "ack"),
    [
        (WorkerLostError("gone"), Status.TASK_TIMEOUT, AckError.UNKNOWN),
        (ShardError(Status.TOPIC_ID_NOT_FOUND), Status.TOPIC_ID_NOT_FOUND, AckError.UNKNOWN),
        (ShardError(Status.TOO_BIG_MESSAGE_PAYLOAD), Status.TOO_BIG_MESSAGE_PAYLOAD, AckError.TOO_LARGE),
        (ShardError(Status.UNEXPECTED_OFFSET), Status.UNEXPECTED_OFFSET, AckError.INCORRECT_OFFSET),
        (RuntimeError("of this program"), Status.ERROR, AckError.UNKNOWN),
    ],
)
@on_loop
async def test_a_batch_that_fails_is_told_of_and_the_next_one_goes_on(
    error: Exception, status: Status, ack: AckError
) -> None:
    worker, publisher, heard = Worker(), Publisher(1 << 20, gather_s=0.0), list[Outcome]()
    publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(b"1"), done=heard.append)
    publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(b"2"), done=heard.append)
    await turns()
    publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(b"3"), done=heard.append)
    worker.answer(error)
    await turns()
    worker.answer()
    await asyncio.wait_for(publisher.drained(), 10)
    assert [(said.status, said.error) for said in heard] == [(status, ack)] * 2 + [(Status.OK, AckError.OK)]


@on_loop
async def test_who_hears_and_fails_keeps_it_from_nobody_else() -> None:
    worker, publisher, heard = Worker(), Publisher(1 << 20, gather_s=0.0), list[Outcome]()
    worker.at_once = True

    def fail(_: Outcome) -> None:
        raise ZeroDivisionError

    publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(b"1"), done=fail)
    publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(b"2"), done=heard.append)
    await asyncio.wait_for(publisher.drained(), 10)
    assert len(heard) == 1


@on_loop
async def test_a_turn_encodes_and_tells_a_bounded_number_of_messages() -> None:
    publisher, told, most = Publisher(1 << 20, gather_s=0.0), 0, 0
    workers = [Worker() for _ in range(40)]

    def hear(_: Outcome) -> None:
        nonlocal told
        told += 1

    for number, worker in enumerate(workers):
        worker.at_once = ShardError(Status.CLIENT_NOT_FOUND) if number % 2 else True
        for _ in range(700):
            publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(b"x"), done=hear)
    while publisher.pending_messages:
        before = told
        await asyncio.sleep(0)
        most = max(most, told - before)
    assert told == 28_000 and most <= 2 * publishing.TURN_MESSAGES_MAX


@on_loop
async def test_room_is_shared_and_whoever_waits_gets_it_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "PENDING_BYTES_MAX", 16 * (publishing.MESSAGE_OVERHEAD_BYTES + 1))
    publisher, flooding, modest = Publisher(1 << 20, gather_s=0.0), Worker(1), Worker(2)
    most = 0

    async def publish(worker: Worker, count: int) -> None:
        nonlocal most
        for _ in range(count):
            await publisher.room(worker.client)
            publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(b"x"))
            most = max(most, publisher._submitted[worker.client].messages)

    floods = [asyncio.create_task(publish(flooding, 5)) for _ in range(50)]
    await turns()
    assert publisher.pending_messages == 4  # one address has a quarter of all that there is
    await asyncio.wait_for(publish(modest, 3), 10)
    for _ in range(1_000):
        await turns()
        for worker in (flooding, modest):
            if any(not answer.done() for _, answer in worker.asked):
                worker.answer()
        if all(flood.done() for flood in floods):
            break
    await asyncio.wait_for(asyncio.gather(*floods), 10)
    assert most == 4 and sum(len(batch) for batch in flooding.batches) == 250
    assert not publisher._waiting


@on_loop
async def test_who_gives_up_waiting_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "PENDING_BYTES_MAX", 4 * (publishing.MESSAGE_OVERHEAD_BYTES + 1))
    publisher, worker = Publisher(1 << 20, gather_s=0.0), Worker()
    publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(b"x"))
    waiting = [asyncio.create_task(publisher.room(worker.client)) for _ in range(3)]
    await turns()
    worker.answer()
    for _ in range(20):  # as soon as the first one is let in
        await asyncio.sleep(0)
        if not publisher.pending_messages:
            break
    waiting[0].cancel()
    await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
    assert waiting[1].exception() is None and waiting[2].exception() is None and not publisher._waiting


@on_loop
async def test_users_take_turns_and_what_is_under_way_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "UNDER_WAY_BYTES_MAX", 16_000)
    publisher, flooding, modest = Publisher(1 << 20, gather_s=0.0), Worker(1), Worker(2)
    for topic in range(20):
        stream = msgspec.structs.replace(STREAM, topic_id=topic)
        publisher.submit(flooding.client, stream, 0, LiftbridgeMessage(b"x" * 1_000))
    publisher.submit(modest.client, STREAM, 0, LiftbridgeMessage(b"x"))
    await turns()
    assert len(flooding.asked) == 3 and len(modest.asked) == 1
    for _ in range(20):
        flooding.answer()
        await turns()
        assert publisher._under_way.used <= 3 * 1_512 + 513
    modest.answer()
    await asyncio.wait_for(publisher.drained(), 10)
    assert not publisher._under_way.used and not publisher._ready


@on_loop
async def test_who_sends_ahead_makes_batches_and_who_waits_for_each_answer_waits_for_nothing_else() -> None:
    worker, publisher = Worker(), Publisher(1 << 20, gather_s=0.2)
    publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(b"0"))
    await turns()
    publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(b"1"))
    worker.answer()
    await turns()
    publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(b"2"))
    await turns()
    assert worker.batches == [[b"0"]]
    for _ in range(1_000):
        await asyncio.sleep(0.01)
        if len(worker.batches) == 2:
            break
    assert worker.batches == [[b"0"], [b"1", b"2"]]
    worker.answer()
    await turns()
    publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(b"3"))
    await turns()
    assert worker.batches[2:] == [[b"3"]]
    worker.answer()
    await asyncio.wait_for(publisher.drained(), 10)
