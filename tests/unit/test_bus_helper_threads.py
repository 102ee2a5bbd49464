"""Blocking calls away from the loop."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from shardd.runtime.helper_threads import JOBS_MAX, HelperThreads
from shardd.runtime.threads import UnwantedError

LONGEST_S = 20.0


def run(scenario: Callable[[HelperThreads], Coroutine[Any, Any, None]], threads: int = 2) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            helpers = HelperThreads(threads)
            try:
                await scenario(helpers)
            finally:
                await helpers.close()

    before = threading.active_count()
    asyncio.run(bounded())
    assert threading.active_count() == before


def test_a_call_that_nobody_waits_for_at_its_turn_is_not_made() -> None:
    async def scenario(helpers: HelperThreads) -> None:
        made: list[int] = []
        wanted = [number % 2 == 0 for number in range(6)]
        calls = [helpers.run(made.append, number, wanted=lambda number=number: wanted[number]) for number in range(6)]  # type: ignore[misc]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert sorted(made) == [0, 2, 4]
        assert [isinstance(result, UnwantedError) for result in results] == [False, True] * 3

    run(scenario)


def test_results_and_exceptions_come_back() -> None:
    async def scenario(helpers: HelperThreads) -> None:
        assert await helpers.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await helpers.run(divmod, 7, 0)
        assert await helpers.run(threading.get_ident) != threading.get_ident()

    run(scenario)


def test_the_loop_goes_on_and_calls_run_side_by_side() -> None:
    async def scenario(helpers: HelperThreads) -> None:
        together, go_on = threading.Barrier(2), threading.Event()

        def work() -> bool:
            together.wait(LONGEST_S)
            return go_on.wait(LONGEST_S)

        calls = asyncio.gather(*(helpers.run(work) for _ in range(2)))
        for _ in range(10):
            await asyncio.sleep(0.01)
        assert not calls.done()
        go_on.set()
        assert await calls == [True, True]

    run(scenario)


def test_more_calls_than_places_wait_and_all_are_done() -> None:
    async def scenario(helpers: HelperThreads) -> None:
        numbers = range(3 * JOBS_MAX)
        assert await asyncio.gather(*(helpers.run(abs, -number) for number in numbers)) == list(numbers)

    run(scenario)


def test_a_slow_call_does_not_hold_up_the_other_threads() -> None:
    async def scenario(helpers: HelperThreads) -> None:
        go_on = threading.Event()
        slow = asyncio.create_task(helpers.run(go_on.wait, LONGEST_S))
        for _ in range(50):
            await helpers.run(abs, -1)
        go_on.set()
        assert await slow, "it was told to go on after all others were done"

    run(scenario)


def test_a_cancelled_call_runs_to_its_end() -> None:
    async def scenario(helpers: HelperThreads) -> None:
        ended = threading.Event()

        def work() -> None:
            time.sleep(0.1)
            ended.set()

        call = asyncio.create_task(helpers.run(work))
        await asyncio.sleep(0.02)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await helpers.run(ended.wait, 5.0)

    run(scenario)


def test_closing_waits_for_the_call_at_work_and_refuses_the_others() -> None:
    async def scenario(helpers: HelperThreads) -> None:
        done: list[int] = []

        def work(number: int) -> None:
            time.sleep(0.2)
            done.append(number)

        calls = [asyncio.create_task(helpers.run(work, number)) for number in range(3)]
        await asyncio.sleep(0.05)
        await helpers.close()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert done == [0]
        assert outcomes[0] is None
        assert all(isinstance(outcome, RuntimeError) for outcome in outcomes[1:])
        with pytest.raises(RuntimeError):
            await helpers.run(abs, 1)

    run(scenario, threads=1)


def test_threads_may_have_a_lower_priority_than_the_loop() -> None:
    async def scenario() -> tuple[int, int, int]:
        gentle, plain = HelperThreads(1, "gentle", nice=10), HelperThreads(1, "plain")
        try:
            priorities = await asyncio.gather(gentle.run(_own_priority), plain.run(_own_priority))
            return *priorities, _own_priority()
        finally:
            await gentle.close()
            await plain.close()

    gentle, plain, ours = asyncio.run(scenario())
    assert (gentle, plain) == (min(ours + 10, 19), ours)


def _own_priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
