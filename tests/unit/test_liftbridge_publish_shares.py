"""What publishers of Liftbridge share goes by user, within a user by address, and clients take turns: workers that
answer nothing to many clients hold up no other user. Nothing is measured."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from shardd.doors.liftbridge import publishing
from shardd.doors.liftbridge.fan_out import submit_all
from shardd.doors.liftbridge.publish_batches import Outcome
from shardd.doors.liftbridge.publishing import Publisher
from shardd.doors.liftbridge.router import Target
from shardd.protocol.errors import Status
from shardd.protocol.liftbridge.records import LiftbridgeMessage
from tests.support.on_loop import on_loop
from tests.unit.test_liftbridge_publishing import STREAM, Worker, turns

LARGE = LiftbridgeMessage(bytes(900_000))
PARTITIONS = 40
STRANGER = -1


@contextmanager
def flooding(publisher: Publisher, workers: list[Worker]) -> Iterator[None]:
    """Large messages of each client to many partitions, one after the other, whatever becomes of them."""

    async def flood(worker: Worker) -> None:
        for partition in itertools.cycle(range(PARTITIONS)):
            await publisher.room(worker.client)
            publisher.submit(worker.client, STREAM, partition, LARGE)

    floods = [asyncio.create_task(flood(worker)) for worker in workers for _ in range(2)]
    try:
        yield
    finally:
        for each in floods:
            each.cancel()


async def stored_at_once(publisher: Publisher, worker: Worker, message: LiftbridgeMessage = LARGE) -> bool:
    worker.at_once = True
    heard = list[Outcome]()

    async def publish() -> None:
        await publisher.room(worker.client)
        publisher.submit(worker.client, STREAM, 0, message, done=heard.append)

    publishing_one = asyncio.create_task(publish())
    await turns(50)
    publishing_one.cancel()
    return [each.status for each in heard] == [Status.OK]


@pytest.mark.parametrize("clients", [1, 2, 4, 16])
def test_clients_of_one_user_whose_worker_stands_still_leave_room_to_another_user(clients: int) -> None:
    @on_loop
    async def flood() -> None:
        publisher = Publisher(1 << 20)
        for networks in (1, clients):
            attackers = [Worker(5, f"192.0.2.{number % networks}") for number in range(clients)]
            with flooding(publisher, attackers):
                await turns(100)
                assert await stored_at_once(publisher, Worker(6))
                assert not await stored_at_once(publisher, attackers[0]), "the attacker has its share"

    flood()


@on_loop
async def test_users_whose_workers_stand_still_leave_room_to_further_users() -> None:
    publisher = Publisher(1 << 20)
    attackers = [Worker(user, f"192.0.2.{number}") for user in (5, 6, 7) for number in range(4)]
    with flooding(publisher, attackers):
        await turns(100)
        assert await stored_at_once(publisher, Worker(8))
        assert await stored_at_once(publisher, Worker(9))


@on_loop
async def test_user_made_again_with_the_same_id_has_a_share_of_its_own() -> None:
    publisher = Publisher(1 << 20)
    with flooding(publisher, [Worker(5, owner=100) for _ in range(4)]):
        await turns(100)
        assert await stored_at_once(publisher, Worker(5, owner=101))


@on_loop
async def test_clients_without_a_user_share_by_address() -> None:
    publisher = Publisher(1 << 20)
    crowd = [Worker(STRANGER, "2001:db8::/64", owner=0) for _ in range(4)]
    with flooding(publisher, crowd):
        await turns(100)
        assert not await stored_at_once(publisher, crowd[0])
        assert await stored_at_once(publisher, Worker(STRANGER, "2001:db8:0:1::/64", owner=0))


@on_loop
async def test_address_of_a_user_leaves_room_to_another_address_of_the_user() -> None:
    publisher = Publisher(1 << 20)
    with flooding(publisher, [Worker(5, "192.0.2.1") for _ in range(8)]):
        await turns(100)
        assert await stored_at_once(publisher, Worker(5, "192.0.2.2"))


@on_loop
async def test_clients_of_one_address_have_room_in_turns_and_each_in_its_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "PENDING_BYTES_MAX", 40 * (publishing.MESSAGE_OVERHEAD_BYTES + 1))
    publisher, many, few = Publisher(1 << 20, gather_s=0.0), Worker(), Worker()
    order = list[Worker]()

    async def publish(worker: Worker, number: int) -> None:
        await publisher.room(worker.client)
        order.append(worker)
        publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(b"%d" % number))

    tasks = [asyncio.create_task(publish(many, number)) for number in range(200)]
    await turns()
    tasks += [asyncio.create_task(publish(few, number)) for number in range(5)]
    await turns()
    before = len(order)
    assert order.count(few) == 1, "whoever has nothing waits for no other client of its address"
    for _ in range(1_000):
        await turns()
        for worker in (many, few):
            if any(not answer.done() for _, answer in worker.asked):
                worker.answer()
        if not publisher.pending_messages and all(task.done() for task in tasks):
            break
    await asyncio.wait_for(asyncio.gather(*tasks, publisher.drained()), 10)
    assert order[before : before + 8].count(few) == 4, "clients take turns"
    for worker, count in ((many, 200), (few, 5)):
        assert [each for batch in worker.batches for each in batch] == [b"%d" % each for each in range(count)]
    assert not publisher._submitted and not publisher._waiting and not publisher._pending.used


@pytest.mark.parametrize(("networks", "part", "part_max"), [(1, 4, 3), (32, 2, 2)])
def test_clients_of_one_account_have_all_that_one_account_may_have_while_no_other_one_waits(
    networks: int, part: int, part_max: int
) -> None:
    """A quarter was what one client had when shares were those of clients. A first message of each is let in beside
    an address that has its share."""

    @on_loop
    async def flood() -> None:
        publisher, workers = Publisher(1 << 20), [Worker(5, f"192.0.2.{number % networks}") for number in range(32)]
        with flooding(publisher, workers):
            await turns(100)
            full = publishing.PENDING_BYTES_MAX // part
            most = publishing.PENDING_BYTES_MAX // part_max + (1 << 20)
            assert full * 4 // 5 <= publisher.pending_bytes <= most
            under_way = publishing.UNDER_WAY_BYTES_MAX // part
            assert under_way * 4 // 5 <= publisher._under_way.used <= under_way + (1 << 20)
            for _ in range(20):
                for worker in workers:
                    if any(not answer.done() for _, answer in worker.asked):
                        worker.answer()
                await turns(100)
                assert full * 4 // 5 <= publisher.pending_bytes <= most, "it is full again"

    flood()


@on_loop
async def test_message_for_many_streams_takes_no_more_room_than_the_share() -> None:
    publisher, worker = Publisher(1 << 20), Worker()
    streams = {f"s{number}": msgspec.structs.replace(STREAM, topic_id=number) for number in range(200)}

    def submit(target: Target) -> None:
        publisher.submit(worker.client, streams[target.stream], 0, LARGE)

    rest = submit_all(publisher, worker.client, [Target(name, 0) for name in streams], submit)
    assert rest is not None
    task = asyncio.ensure_future(rest)
    await turns(50)
    assert publisher.pending_bytes <= publishing.PENDING_BYTES_MAX // 4 + (2 << 20)
    assert await stored_at_once(publisher, Worker(6))
    for _ in range(1_000):
        worker.at_once = True
        if any(not answer.done() for _, answer in worker.asked):
            worker.answer()
        await turns(2)
        if task.done():
            break
    await asyncio.wait_for(asyncio.gather(task, publisher.drained()), 10)
    assert len(worker.asked) == len(streams)


@on_loop
async def test_one_message_at_a_time_beside_a_client_of_its_address_that_sends_ahead_waits_for_nothing() -> None:
    publisher, one_by_one = Publisher(1 << 20), Worker()
    with flooding(publisher, [Worker()]):
        await turns(100)
        for _ in range(20):
            assert await stored_at_once(publisher, one_by_one, LiftbridgeMessage(b"x"))
            assert await stored_at_once(publisher, one_by_one)


@pytest.mark.parametrize("users", [1, 10])
@on_loop
async def test_line_for_room_ends_when_the_worker_goes_on(users: int) -> None:
    """Turns of the loop are counted: each tells of so many messages at most, and after a stop of as many as without
    one."""

    async def stored_in_turns(count: int, *, stood_still: bool) -> int:
        publisher, stored = Publisher(1 << 20, gather_s=0.0), [0]
        workers = [Worker(1 + at % users, f"192.0.2.{at % 200}", 1 + at % users) for at in range(300)]
        message = LiftbridgeMessage(bytes(1_000))

        async def publish(worker: Worker) -> None:
            left, heard = 200, asyncio.Event()

            def hear(_said: Outcome) -> None:
                nonlocal left
                left += 1
                stored[0] += 1
                heard.set()

            while True:
                while left > 0:
                    await publisher.room(worker.client)
                    left -= 1
                    publisher.submit(worker.client, STREAM, 0, message, done=hear)
                heard.clear()
                await heard.wait()

        tasks = [asyncio.create_task(publish(worker)) for worker in workers]
        if stood_still:
            await turns(200)
            assert publisher._waiting
        for worker in workers:
            worker.at_once = True
            while any(not answer.done() for _, answer in worker.asked):
                worker.answer()
        before = stored[0]
        steps = 0
        while stored[0] - before < count and steps < 10_000:
            await turns(1)
            steps += 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.wait_for(publisher.drained(), 10)
        assert not publisher._waiting and not publisher._pending.used and not publisher._under_way.used
        return steps

    count = 100_000
    for stood_still in (True, False):
        assert await stored_in_turns(count, stood_still=stood_still) <= 4 * count // publishing.TURN_MESSAGES_MAX


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_turn_in_which_nothing_is_submitted_gives_its_room_to_the_next_one(is_cancelled: bool) -> None:
    @on_loop
    async def give_up() -> None:
        publisher, flood = Publisher(1 << 20), Worker()
        with flooding(publisher, [flood]):
            await turns(100)
            idle = [Worker() for _ in range(60)]
            for worker in idle:  # beside its first message each waits
                publisher.submit(worker.client, STREAM, 0, LiftbridgeMessage(b"x"))
            rooms = [asyncio.create_task(publisher.room(worker.client)) for worker in idle]
            await turns()
        assert not any(room.done() for room in rooms)
        for worker in (flood, *idle):
            worker.at_once = True
        for _ in range(1_000):
            for worker in (flood, *idle):
                if any(not answer.done() for _, answer in worker.asked):
                    worker.answer()
            if is_cancelled and publisher._waiting:
                rooms[0].cancel()
            await turns(1)
            if not publisher.pending_messages and not publisher._waiting:
                break
        await asyncio.wait_for(asyncio.gather(*rooms, return_exceptions=True), 10)
        await turns()
        assert not publisher._submitted and not publisher._waiting and not publisher._pending.used

    give_up()
