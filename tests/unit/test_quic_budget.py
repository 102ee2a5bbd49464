"""Room that is shared: nobody takes all of it, and who waits comes in his turn."""

from __future__ import annotations

import asyncio
import random

from shardd.doors.budget import Budget


def test_half_of_it_is_for_one_address_and_the_others_pass_him() -> None:
    async def scenario() -> None:
        budget = Budget(100)
        await budget.take("a", 50)
        waiting = asyncio.create_task(budget.take("a", 10))
        await asyncio.sleep(0)
        await budget.take("b", 40)
        assert not waiting.done() and budget.used_bytes == 90
        budget.give("a", 50)
        await waiting
        assert budget.used_bytes == 50

    asyncio.run(scenario())


def test_whoever_gives_up_waiting_has_nothing() -> None:
    async def scenario() -> None:
        budget = Budget(100)
        await budget.take("a", 50)
        waiting = [asyncio.create_task(budget.take("a", 10)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        budget.give("a", 50)
        waiting[1].cancel()  # it has just been let in
        await asyncio.gather(*waiting, return_exceptions=True)
        assert budget.used_bytes == 10

    asyncio.run(scenario())


def test_nothing_is_lost_and_nobody_starves() -> None:
    async def scenario(seed: int) -> None:
        chance, budget = random.Random(seed), Budget(64)

        async def one(host: str) -> None:
            count = chance.randint(1, 32)
            await budget.take(host, count)
            assert 0 < budget.used_bytes <= 64
            for _ in range(chance.randint(0, 3)):
                await asyncio.sleep(0)
            budget.give(host, count)

        await asyncio.wait_for(asyncio.gather(*(one(chance.choice("abc")) for _ in range(300))), 30)
        assert budget.used_bytes == 0

    for seed in range(20):
        asyncio.run(scenario(seed))
