"""The scheduler of jobs in the background, in virtual time, and what only real threads show."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import cast

import pytest

from shardd.maintenance.job import Job, JobThread, Turn
from shardd.maintenance.loop_load import LoopLoad
from shardd.maintenance.scheduler import LOOK_INTERVAL_S, RETRY_MAX_S, RETRY_S, STOP_S, JobScheduler
from shardd.runtime.slices import SLICE_MS
from shardd.runtime.throttle import StoppedError, Throttle
from tests.sim.loop import SimLoop
from tests.support.on_loop import on_loop, until

THREAD = JobThread("test")
NEAR_S = 0.001  # timers of the simulator move a little


def in_virtual_time(scenario: Callable[[], Awaitable[None]]) -> None:
    loop = SimLoop(seed=7)
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(asyncio.ensure_future(scenario(), loop=loop))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class Runs:
    """A job that notes when it was called, in seconds since the start."""

    def __init__(self) -> None:
        self.at_s: list[float] = []
        self._began_s = asyncio.get_running_loop().time()
        self.failing = False
        self.again_s: float | None = None

    async def work(self, _turn: Turn) -> float | None:
        self.at_s.append(round(asyncio.get_running_loop().time() - self._began_s, 2))
        if self.failing:
            raise ValueError("a fault of this job")
        return self.again_s


def test_a_job_runs_at_the_start_and_at_its_interval() -> None:
    async def scenario() -> None:
        jobs, first, later = JobScheduler(), Runs(), Runs()
        jobs.add(Job("first", first.work, 10.0))
        jobs.add(Job("later", later.work, 10.0, first_s=3.0))
        await asyncio.sleep(1)
        assert first.at_s == [], "nothing runs before the start"
        jobs.start()
        await asyncio.sleep(25)
        assert (first.at_s, later.at_s) == ([1, 11, 21], [4, 14, 24])
        await jobs.stop()
        await asyncio.sleep(100)
        assert len(first.at_s) == 3

    in_virtual_time(scenario)


def test_a_job_that_is_woken_runs_at_once_and_once() -> None:
    async def scenario() -> None:
        jobs, runs = JobScheduler(), Runs()
        wake = jobs.add(Job("event", runs.work, first_s=None))
        wake()
        jobs.start()
        await asyncio.sleep(50)
        assert runs.at_s == [0], "what was said before the start is not forgotten"
        wake()
        wake()
        await asyncio.sleep(50)
        assert runs.at_s == [0, 50]
        await jobs.stop()

    in_virtual_time(scenario)


def test_a_run_says_when_the_next_one_is_due() -> None:
    async def scenario() -> None:
        jobs, runs = JobScheduler(), Runs()
        jobs.add(Job("trash", runs.work, 15.0))
        runs.again_s = 1.0
        jobs.start()
        await asyncio.sleep(2.5)
        runs.again_s = None
        await asyncio.sleep(30)
        assert runs.at_s == [0, 1, 2, 3, 18]
        await jobs.stop()

    in_virtual_time(scenario)


def test_a_job_that_raises_is_named_counted_and_tried_again_later_and_later(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        jobs, runs, other = JobScheduler(), Runs(), Runs()
        wake = jobs.add(Job("faulty", runs.work, 1.0))
        jobs.add(Job("other", other.work, 1.0))
        runs.failing = True
        jobs.start()
        await asyncio.sleep(4 * RETRY_S)
        wake()  # does not hasten what fails
        await asyncio.sleep(NEAR_S)
        assert runs.at_s == [0, RETRY_S, 3 * RETRY_S]
        assert len(other.at_s) >= 20, "the other jobs go on"
        assert (jobs.counters()["faulty.errors"], jobs.gauges()["faulty.failing"]) == (3, 3)
        await asyncio.sleep(100 * RETRY_MAX_S)
        assert max(b - a for a, b in zip(runs.at_s, runs.at_s[1:], strict=False)) <= RETRY_MAX_S + 1
        runs.failing = False
        await asyncio.sleep(RETRY_MAX_S + 10)
        assert jobs.gauges()["faulty.failing"] == 0 and runs.at_s[-1] - runs.at_s[-2] == pytest.approx(1, abs=0.1)
        await jobs.stop()

    with caplog.at_level(logging.ERROR):
        in_virtual_time(scenario)
    assert "the job faulty has failed" in caplog.messages[0]
    assert caplog.records[0].exc_info is not None


def test_figures_of_a_job() -> None:
    async def scenario() -> None:
        async def work(_turn: Turn) -> None:
            await asyncio.sleep(2)

        jobs = JobScheduler()
        jobs.add(Job("slow", work, 10.0))
        jobs.start()
        await asyncio.sleep(1)
        assert jobs.gauges()["slow.running_ms"] == pytest.approx(1000, abs=2)
        assert jobs.gauges()["slow.waiting_ms"] == 0
        await asyncio.sleep(6)
        assert jobs.gauges()["slow.running_ms"] == 0
        assert jobs.gauges()["slow.waiting_ms"] == pytest.approx(5000, abs=2)
        assert jobs.counters() == {"slow.runs": 1, "slow.steps": 0, "slow.busy_ms": 2000, "slow.errors": 0}
        await jobs.stop()

    in_virtual_time(scenario)


def test_a_stop_ends_a_job_that_waits_for_something_else(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async def forever(_turn: Turn) -> None:
            await asyncio.get_running_loop().create_future()

        async def deaf(_turn: Turn) -> None:
            while True:
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    await asyncio.sleep(5)
                    raise

        jobs = JobScheduler()
        jobs.add(Job("forever", forever))
        jobs.add(Job("deaf", deaf))
        jobs.start()
        await asyncio.sleep(1)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await jobs.stop()
        assert loop.time() - began_s <= STOP_S + NEAR_S
        await asyncio.sleep(10)

    in_virtual_time(scenario)
    assert caplog.messages == [f"jobs that do not end within {STOP_S:.1f} s: deaf"]


def test_jobs_that_cannot_be_are_refused() -> None:
    async def scenario() -> None:
        jobs, runs = JobScheduler(), Runs()
        jobs.add(Job("one", runs.work))
        with pytest.raises(ValueError, match="there is a job one already"):
            jobs.add(Job("one", runs.work))
        for job in (Job("two", runs.work, per_second=1), Job("two", runs.work, gives_way=lambda: True)):
            with pytest.raises(ValueError, match="would rest on the loop"):
                jobs.add(job)

    in_virtual_time(scenario)


class Load(LoopLoad):
    """As told."""

    high = False

    def is_high(self) -> bool:
        return self.high


def test_a_job_gives_way_to_load_but_not_for_ever_and_to_a_device_that_stands_still() -> None:
    async def scenario() -> None:
        load, still = Load(), False
        jobs = JobScheduler(lambda: still, load=lambda: load)
        release = asyncio.Event()

        async def work(_turn: Turn) -> None:
            await release.wait()

        jobs.add(Job("gentle", work, thread=THREAD, gives_way=lambda: True))
        jobs.add(Job("urgent", work, thread=THREAD))
        jobs.start()

        async def looks(number: int) -> list[int]:
            found = []
            for _ in range(number):
                await asyncio.sleep(LOOK_INTERVAL_S)
                found.append(jobs.gauges()["gentle.held"])
                assert jobs.gauges()["urgent.held"] == 0
            return found

        await asyncio.sleep(LOOK_INTERVAL_S / 2)
        assert await looks(4) == [0, 0, 0, 0]
        load.high = True
        assert await looks(11) == [1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1]
        load.high = False
        assert await looks(2) == [0, 0]
        still = True
        assert await looks(20) == [1] * 20
        release.set()
        await asyncio.sleep(LOOK_INTERVAL_S)
        assert jobs.gauges()["gentle.held"] == 0 and jobs.counters()["gentle.runs"] == 1
        await jobs.stop()

    in_virtual_time(scenario)


@on_loop
async def test_work_on_the_loop_is_done_in_slices_and_ends_with_the_stop() -> None:
    jobs, taken = JobScheduler(), []

    def steps() -> Iterator[None]:
        while True:
            taken.append(time.monotonic())
            time.sleep(SLICE_MS / 1000)
            yield

    async def work(turn: Turn) -> None:
        await turn.on_loop(steps())

    jobs.add(Job("endless", work))
    jobs.start()
    turns = 0
    while len(taken) < 5:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 5, "the loop goes on beside it"
    await jobs.stop()
    assert jobs.counters()["endless.steps"] == len(taken)
    seen = len(taken)
    await asyncio.sleep(0.01)
    assert len(taken) == seen


@on_loop
async def test_a_thread_ends_in_the_middle_of_its_rest_when_it_is_stopped() -> None:
    jobs, ended = JobScheduler(), threading.Event()

    def read(throttle: Throttle) -> None:
        try:
            for _ in range(1000):
                throttle.spend(1000)  # 1,000 seconds of rest
        except StoppedError:
            ended.set()
            raise

    async def work(turn: Turn) -> None:
        await turn.beside(read, turn.throttle)

    jobs.add(Job("slow", work, thread=THREAD, per_second=1, unit="bytes"))
    jobs.start()
    await until(lambda: jobs.counters()["slow.bytes"] == 1000)
    await jobs.stop()
    await jobs.close()  # waits for the thread
    assert ended.is_set()
    figures = jobs.counters()
    assert (figures["slow.runs"], figures["slow.steps"], figures["slow.bytes"], figures["slow.errors"]) == (
        0,
        1,
        1000,
        0,
    )


@on_loop
async def test_threads_are_made_when_they_are_needed_and_shared_by_name() -> None:
    jobs, seen = JobScheduler(), []

    async def work(turn: Turn) -> None:
        seen.append(await turn.beside(threading.get_native_id))

    wake = [jobs.add(Job(name, work, first_s=None, thread=THREAD)) for name in ("one", "two")]
    jobs.add(Job("other", work, first_s=None, thread=JobThread("other", nice=1)))
    jobs.start()
    await asyncio.sleep(0)
    assert "test-0" not in [each.name for each in threading.enumerate()]
    for each in wake:
        each()
    await until(lambda: len(seen) == 2)
    assert len(set(seen)) == 1 and seen[0] != threading.get_native_id()
    await jobs.stop()
    await jobs.close()


def test_a_throttle_that_is_held_waits_until_it_goes_on_or_is_stopped() -> None:
    waits: list[float | None] = []
    calls = cast(list[Callable[[], None]], [])

    def wait(seconds: float | None) -> None:
        waits.append(seconds)
        calls.pop(0)()

    throttle = Throttle(clock=lambda: 0.0, wait=wait)
    throttle.hold()
    calls[:] = [throttle.hold, throttle.go_on]
    throttle.spend(5)
    assert waits == [None, None] and (throttle.steps, throttle.units) == (1, 5)
    throttle.hold()
    calls[:] = [throttle.stop]
    with pytest.raises(StoppedError):
        throttle.spend(5)
    assert (throttle.steps, throttle.units) == (1, 5)
    with pytest.raises(StoppedError):
        throttle.count()


def test_the_load_of_a_loop_that_computes_and_of_one_that_waits() -> None:
    load = LoopLoad()
    until_s = time.monotonic() + 0.1
    while time.monotonic() < until_s:
        pass
    assert load.is_high()
    time.sleep(0.2)
    assert not load.is_high()
