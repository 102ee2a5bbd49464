"""Long computations on the loop of a worker (shardd.runtime.slices)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from shardd.runtime.slices import SLICE_MS, Slices
from shardd.runtime.threads import UnwantedError
from shardd.service.identity import Identity
from shardd.service.long_answers import LongAnswers

STEP_S = SLICE_MS / 1000 / 4


def busy(steps: int) -> Iterator[None]:
    """Each step takes a quarter of a slice, on the clock of the loop."""
    for _ in range(steps):
        end = time.monotonic() + STEP_S
        while time.monotonic() < end:
            pass
        yield


def test_many_long_computations_leave_the_loop_turning() -> None:
    """Whoever else has something to do gets a turn after each slice, not after each computation."""

    async def main() -> int:
        slices, turns = Slices(), 0
        jobs = [asyncio.create_task(slices.run(busy(16))) for _ in range(20)]
        while not all(job.done() for job in jobs):
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(main()) >= 20 * 16 // 4 // 2, "at most two slices in one turn"


def test_short_ones_of_one_turn_share_a_slice() -> None:
    async def main() -> int:
        slices, turns = Slices(), 0
        jobs = [asyncio.create_task(slices.run(busy(2))) for _ in range(100)]
        while not all(job.done() for job in jobs):
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(main()) >= 100 * 2 // 4 // 2


def test_computations_of_one_user_leave_a_turn_to_another_user() -> None:
    async def main() -> int:
        slices = Slices()
        crowd = [asyncio.create_task(slices.run(busy(8), path=("1",))) for _ in range(20)]
        other = asyncio.create_task(slices.run(busy(8), path=("2",)))
        await other
        ended = sum(each.done() for each in crowd)
        await asyncio.gather(*crowd)
        return ended

    assert asyncio.run(main()) <= 2


def test_long_answers_of_one_user_leave_a_turn_to_another_user() -> None:
    async def main() -> int:
        connections: Any = SimpleNamespace(conn_alive=lambda connection: True)
        answers = LongAnswers(connections)
        crowd = [asyncio.create_task(answers.take(Identity(1, 5), busy(8))) for _ in range(20)]
        other = asyncio.create_task(answers.take(Identity(2, 6), busy(8)))
        await other
        ended = sum(each.done() for each in crowd)
        await asyncio.gather(*crowd)
        return ended

    assert asyncio.run(main()) <= 2


def test_what_nobody_waits_for_is_not_computed() -> None:
    async def main() -> list[int]:
        slices, taken = Slices(), list[int]()

        def steps() -> Iterator[None]:
            taken.append(1)
            yield

        first = asyncio.create_task(slices.run(busy(100)))
        await asyncio.sleep(0)
        with pytest.raises(UnwantedError):
            await slices.run(steps(), lambda: False)
        await first
        await slices.run(steps(), lambda: False)  # its turn comes at once: nobody can have left
        return taken

    assert asyncio.run(main()) == [1]


def test_a_computation_that_fails_gives_its_turn_to_the_next_one() -> None:
    def failing() -> Iterator[None]:
        yield
        raise ValueError("no")

    async def main() -> None:
        slices = Slices()
        with pytest.raises(ValueError, match="no"):
            await slices.run(failing())
        await asyncio.wait_for(slices.run(busy(1)), 10)

    asyncio.run(main())
