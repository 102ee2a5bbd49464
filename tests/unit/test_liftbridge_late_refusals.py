"""A publisher over NATS whose worker is lost before its right was asked hears of its message when another worker says
that it may send there, and nothing otherwise. Of clients that have left, nothing is kept."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from shardd.doors.door import DoorClient
from shardd.doors.liftbridge import late_refusals
from shardd.doors.liftbridge.ingest import Arrived, Ingest
from shardd.doors.liftbridge.late_refusals import LateRefusals
from shardd.doors.liftbridge.losses import Losses
from shardd.doors.liftbridge.publishing import Publisher
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge.envelope import decode_ack
from shardd.protocol.liftbridge.records import LiftbridgeMessage
from shardd.protocol.liftbridge.requests import RequireRight, Right
from tests.support.on_loop import on_loop
from tests.unit.liftbridge_clients import FakeClient
from tests.unit.test_liftbridge_ingest import BYTES_MAX, STREAM, View, Worker, said
from tests.unit.test_liftbridge_publishing import Worker as StoringWorker

GONE = WorkerLostError("gone")


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_refusals, "PAUSE_S", 0.001)


class Publishing:
    """One message with an inbox for its ack, of a client whose worker is lost; `clients`: those that the door has."""

    def __init__(self, *clients: FakeClient) -> None:
        self.lost = Worker(GONE, GONE)
        self.acks: list[Any] = []
        self.clients = [self.lost.client, *(each.client for each in clients)]
        self.late = LateRefusals(lambda: self.clients)

    async def publish(self) -> None:
        view, publisher = View(STREAM), Publisher(BYTES_MAX)
        ingest = Ingest(view, publisher, BYTES_MAX, Losses(), late=self.late)
        arrived = Arrived("sub", "", said(), lambda inbox, ack: self.acks.append((inbox, decode_ack(ack))))
        self.lost.is_open = False
        ingest.take(self.lost.client, arrived, view.router.matches("sub"))
        await asyncio.wait_for(publisher.drained(), 10)

    async def until(self, is_done: Any) -> None:
        for _ in range(2_000):
            if is_done():
                return
            await asyncio.sleep(0.005)
        raise AssertionError("in vain")


@on_loop
async def test_publisher_with_the_right_hears_by_the_next_worker_that_its_message_may_be_lost() -> None:
    made = Publishing()
    await made.publish()
    assert not made.acks
    next_one = Worker()
    made.clients.append(next_one.client)  # it has connected again
    await made.until(lambda: made.acks)
    [(inbox, ack)] = made.acks
    assert (inbox, ack.stream, ack.ackError, ack.correlationId) == ("acks", "s", 1, "c")
    assert next_one.rights == [RequireRight(Right.SEND, ("s",))] and not made.late._room.used


@pytest.mark.parametrize("denial", [Status.UNAUTHORIZED, Status.STREAM_ID_NOT_FOUND])
def test_publisher_without_the_right_hears_nothing_from_the_next_worker(denial: Status) -> None:
    @on_loop
    async def publish() -> None:
        next_one = Worker(denial=ShardError(denial))
        made = Publishing(next_one)
        await made.publish()
        await made.until(lambda: next_one.rights and not made.late._room.used)
        assert not made.acks

    publish()


@on_loop
async def test_clients_of_other_users_are_not_asked_and_the_wait_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_refusals, "LATE_S", 0.05)
    other, made_again, closed = Worker(), Worker(), Worker()
    other.user_id, made_again.owner, closed.is_open = 2, 7, False
    made = Publishing(other, made_again, closed)
    await made.publish()
    await made.until(lambda: made.late._looking is None)
    assert not made.acks and not made.late._room.used
    assert not other.rights and not made_again.rights and not closed.rights


@on_loop
async def test_next_worker_that_is_lost_as_well_is_followed_by_another_one() -> None:
    made = Publishing(Worker(denial=GONE))
    await made.publish()
    await made.until(lambda: made.clients[1].rights)  # type: ignore[attr-defined]
    made.clients[1] = Worker().client
    await made.until(lambda: made.acks)


@on_loop
async def test_acks_that_wait_leave_room_to_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_refusals, "LATE_MAX", 64)
    sent, late = list[int](), LateRefusals(list[DoorClient])
    for user in (1, 1, 2, 3):
        for _ in range(64):
            late.tell(FakeClient(user).client, "s", lambda: sent.append(1))
    assert sorted(len(each) for each in late._waiting.values()) == [9, 12, 16]


@on_loop
async def test_of_a_client_that_has_left_no_stream_is_remembered() -> None:
    publisher, workers = Publisher(BYTES_MAX), [StoringWorker() for _ in range(3)]
    for worker in workers:
        worker.at_once = True
        for incarnation in range(5):
            stream = msgspec.structs.replace(STREAM, incarnation=incarnation)
            publisher.submit(worker.client, stream, 0, LiftbridgeMessage(b"x"))
    await asyncio.wait_for(publisher.drained(), 10)
    assert len(publisher._refusals) == 15
    workers[0].leave()
    assert len(publisher._refusals) == 10
    workers[1].at_once = False
    publisher.submit(workers[1].client, STREAM, 0, LiftbridgeMessage(b"x"))
    await asyncio.sleep(0)
    workers[1].leave()
    assert len(publisher._refusals) == 10, "it has not heard of its message yet"
    for _ in range(100):
        await asyncio.sleep(0)
        if any(not answer.done() for _, answer in workers[1].asked):
            workers[1].answer()
            break
    await asyncio.wait_for(publisher.drained(), 10)
    assert len(publisher._refusals) == 5
