"""Queues in which a crowd waits among itself."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter

from shardd.runtime.fair_turns import FairQueue, FairTurns


def test_keys_take_turns_at_every_level() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(4):
        queue.put(("crowd", "one"), f"one {number}")
    queue.put(("crowd", "two"), "two 0")
    queue.put(("alone", "one"), "alone")
    taken = [queue.take() for _ in range(6)]
    assert taken == ["one 0", "alone", "two 0", "one 1", "one 2", "one 3"]
    assert not queue
    assert queue.take_all("crowd") == []


def test_everything_under_a_key_leaves_in_order() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(6):
        queue.put((("odd" if number % 2 else "even"),), number)
    assert queue.take_all("odd") == [1, 3, 5]
    assert [queue.take() for _ in range(3)] == [0, 2, 4]
    assert not queue


def test_places_are_never_lost_or_doubled_whoever_is_cancelled() -> None:
    chance = random.Random(5)

    async def scenario() -> None:
        turns, inside, most, served = FairTurns(2), 0, 0, Counter[str]()

        async def visit(key: str) -> None:
            nonlocal inside, most
            async with turns.turn((key,)):
                inside += 1
                most = max(most, inside)
                try:
                    await asyncio.sleep(0)
                    served[key] += 1
                finally:
                    inside -= 1

        tasks = [asyncio.create_task(visit(f"{number % 5}")) for number in range(400)]
        while any(not task.done() for task in tasks):
            chance.choice(tasks).cancel()
            await asyncio.sleep(0)
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        assert most == 2
        assert 50 < served.total() < 400
        for _ in range(3):
            await visit("after")
        assert served["after"] == 3

    asyncio.run(asyncio.wait_for(scenario(), 30))
