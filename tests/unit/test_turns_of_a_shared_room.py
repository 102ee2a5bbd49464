"""Who waits in a room of shares, kept from it by others alone, comes in after a bounded number of turns."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from functools import partial
from typing import Final

import pytest

from shardd.dispatch.door.places import HANDED_ONE_SHARE, Work
from shardd.runtime.aside import HAND_OVER, STEP_ASIDE, handed_over
from shardd.runtime.crowds import SharedRoom
from tests.support.on_loop import on_loop
from tests.unit.test_aside import Crowd, Device

LARGE_BYTES: Final = 1 << 40  # counts as the most that one send may
SMALL_BYTES: Final = 64 << 10
ANSWERED_AT_ONCE: Final = 24
ROUNDS_MAX: Final = 400


class Flow:
    """A device that answers what it has had for longest, and users who send again as soon as they have an answer."""

    def __init__(self) -> None:
        self.crowd = Crowd()
        self.has: list[asyncio.Future[None]] = []
        self.done = Counter[str]()
        self.floods: list[asyncio.Task[None]] = []

    async def send(self, name: str, work: Work) -> None:
        STEP_ASIDE.set(partial(self.crowd.places.aside, work))
        HAND_OVER.set(partial(self.crowd.places.handed_over, work))
        try:
            async with handed_over():
                self.has.append(asyncio.get_running_loop().create_future())
                await self.has[-1]
            self.done[name] += 1
        finally:
            self.crowd.places.leave(work)

    def flood(self, user: int, cost_bytes: int, at_once: int) -> None:
        async def one() -> None:
            while True:
                work = self.crowd.begin(f"{user}", user, 100, self.send, cost_bytes)
                assert work.task is not None
                await work.task

        self.floods += [asyncio.ensure_future(one()) for _ in range(at_once)]

    async def answer(self, count: int) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        for each in self.has[:count]:
            each.set_result(None)
        del self.has[:count]
        for _ in range(5):
            await asyncio.sleep(0)

    async def end(self) -> None:
        for each in self.floods:
            each.cancel()
        await asyncio.gather(*self.floods, return_exceptions=True)
        while self.crowd.handed.room.used:
            await self.answer(len(self.has))


@pytest.mark.parametrize("users", [1, 2, 3, 4, 8, 16, 32])
@on_loop
async def test_large_send_beside_floods_of_small_ones_has_its_turn(users: int) -> None:
    flow = Flow()
    room, size = flow.crowd.handed.room, flow.crowd.handed.size_of(LARGE_BYTES)
    for user in range(users):
        flow.flood(user, SMALL_BYTES, 600 // users + 40)
    for _ in range(40):
        await flow.answer(ANSWERED_AT_ONCE)
    assert room.used > room._max // 2 - SMALL_BYTES
    flow.crowd.begin("large", 99, 100, flow.send, LARGE_BYTES)
    for _ in range(ROUNDS_MAX):
        await flow.answer(ANSWERED_AT_ONCE)
        if flow.done["large"]:
            break
    assert flow.done["large"] == 1 and size == room._max // HANDED_ONE_SHARE
    before = Counter(flow.done)
    for _ in range(ROUNDS_MAX // 4):
        await flow.answer(ANSWERED_AT_ONCE)
    assert all(flow.done[f"{user}"] > before[f"{user}"] for user in range(users)), "they go on"
    await flow.end()


@on_loop
async def test_users_with_large_sends_alone_take_turns() -> None:
    flow = Flow()
    for user in range(3):
        flow.flood(user, LARGE_BYTES, 5)
    for _ in range(60):
        await flow.answer(1)
    counts = [flow.done[f"{user}"] for user in range(3)]
    assert min(counts) >= 10 and sum(counts) == 60
    await flow.end()


@on_loop
async def test_owners_with_less_than_the_one_that_waits_would_have_find_room_at_a_hung_device() -> None:
    crowd = Crowd()
    device, most = Device(crowd), crowd.handed.size_of(LARGE_BYTES)
    works = [crowd.begin(name, user, most, device.send) for name, user in (("a", 1), ("b", 2), ("c", 3))]
    await asyncio.sleep(0)
    assert device.has == ["a", "b", "c"]
    waiting = crowd.begin("d", 4, most, device.send)
    further = [crowd.begin(f"{user}", user, most // 4, device.send) for user in (5, 6)]
    small = [crowd.begin(f"{user}", user, 100, device.send) for user in range(7, 40)]
    await asyncio.sleep(0)
    assert {"5", *(f"{user}" for user in range(7, 40))} <= {*device.has}
    assert waiting.waiting is not None
    device.answers.set()
    await crowd.settle(*works, waiting, *further, *small)
    assert crowd.handed.room.used == 0 and not crowd.refused


@on_loop
async def test_owner_with_more_than_the_one_that_waits_would_have_gets_nothing_before_it() -> None:
    room, came = SharedRoom(64, of_addresses=False), list[str]()
    room.enter("most", "", lambda: None, 20, at_work=True)
    other = room.enter("other", "", lambda: None, 14, at_work=True)

    async def come(owner: str, size: int) -> None:
        await room.take(owner, "", lambda: None, size, at_work=True)
        came.append(owner)

    assert room.passes_nobody("most", 1) and room.has_room("most", "", 1)
    waiting = [asyncio.create_task(come("large", 16))]
    await asyncio.sleep(0)
    assert room.has_room("most", "", 1) and not room.passes_nobody("most", 1)
    assert room.passes_nobody("few", 4) and room.has_room("few", "", 4)
    waiting += [asyncio.create_task(come(owner, 1)) for owner in ("most", "few")]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert came == ["few"]
    room.leave(other)
    await asyncio.gather(*waiting)
    assert came == ["few", "large", "most"]


@on_loop
async def test_nothing_is_lost_in_a_shared_room_and_no_owner_starves() -> None:
    """Whatever sizes come, wait, are cancelled and leave, in whatever order."""

    async def scenario(seed: int) -> None:
        chance = random.Random(seed)
        room = SharedRoom(64, chance.choice([None, 32]), of_addresses=chance.random() < 0.5)

        async def one(owner: str | None) -> None:
            size = chance.choice([1, 1, 1, 2, 7, 16, 32])
            if chance.random() < 0.5 and room.passes_nobody(owner, size) and room.has_room(owner, "", size):
                member = room.enter(owner, "", lambda: None, size, at_work=True)
            else:
                member = await room.take(owner, chance.choice("pq"), lambda: None, size, at_work=True)
            try:
                assert 0 < room.used <= 64
                for _ in range(chance.randint(0, 3)):
                    await asyncio.sleep(0)
            finally:
                room.leave(member)

        tasks = [asyncio.create_task(one(chance.choice(["a", "b", "c", "d", None]))) for _ in range(300)]
        for each in chance.sample(tasks, 100):
            await asyncio.sleep(0)
            each.cancel()
        async with asyncio.timeout(60):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in results} <= {type(None), asyncio.CancelledError}
        assert room.used == 0

    for seed in range(40):
        await scenario(seed)


def test_shared_room_of_one_place_is_refused() -> None:
    """Nobody would ever come in."""
    with pytest.raises(AssertionError):
        SharedRoom(1)
