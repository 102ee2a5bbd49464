"""Who looks how long the steps of a worker's loop compute (shardd.runtime.loop_watch)."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from shardd.cli.top_view import compare, shards_table
from shardd.client.values import Metrics, ShardMetrics
from shardd.engine.loop import EngineSelector, Event, _Ready
from shardd.runtime.loop_watch import (
    ENGINE_TURN,
    EXIT_STATUS,
    GARBAGE,
    LIMIT_MS,
    LIMIT_VARIABLE,
    NAMES_MAX,
    OTHERS,
    LoopWatch,
)
from tests.support import wire
from tests.unit.services_harness import Workers


def compute(ms: float) -> None:
    """On the CPU, however long that takes."""
    end_ns = time.thread_time_ns() + int(ms * 1e6)
    while time.thread_time_ns() < end_ns:
        pass


def too_long() -> None:
    compute(LIMIT_MS + 1)


def watched(steps: list[Callable[[], object]], watch: LoopWatch) -> LoopWatch:
    """Takes them one after the other, as a loop does."""
    watch.start()
    ready = _Ready(watch)
    loop = asyncio.new_event_loop()
    ready.extend(asyncio.Handle(step, (), loop) for step in steps)
    for _ in steps:
        ready.popleft()._run()
    watch.begin(None)
    loop.close()
    watch.stop()
    return watch


def over_limit(watch: LoopWatch) -> dict[str, int]:
    return {name.removesuffix(".over_limit"): n for name, n in watch.counters().items() if name != "over_limit"}


def test_a_step_that_computes_too_long_is_counted_under_its_name() -> None:
    watch = watched([lambda: None, too_long, functools.partial(compute, LIMIT_MS + 1), too_long], LoopWatch())
    assert over_limit(watch) == {"too_long": 2, "compute": 1}
    assert watch.counters()["over_limit"] == 3
    assert watch.gauges()["too_long.longest_us"] >= LIMIT_MS * 1000


def test_a_step_that_only_waits_is_not_too_long() -> None:
    """A busy machine, or a device: that is not what the step asks for."""
    watch = watched([lambda: time.sleep(3 * LIMIT_MS / 1000)], LoopWatch())
    assert over_limit(watch) == {}


def test_what_others_computed_before_is_not_charged_to_a_step() -> None:
    """The CPU time of the thread is not read at each step."""
    steps = [functools.partial(compute, 0.3)] * 50
    watch = watched([*steps, lambda: time.sleep(3 * LIMIT_MS / 1000)], LoopWatch())
    assert over_limit(watch) == {}
    assert watch.gauges().get("longest_us", 0) < LIMIT_MS * 1000


def test_exact_measures_every_step() -> None:
    def short() -> None:
        pass

    assert watched([short], LoopWatch()).gauges() == {"longest_us": 0}
    assert "short" in "".join(watched([short], LoopWatch(exact=True)).gauges())


def test_a_task_is_named_as_its_maker_says_and_else_by_its_coroutine() -> None:
    watch = LoopWatch(exact=True)

    async def work() -> None:
        too_long()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop._ready = _Ready(watch)  # type: ignore[attr-defined]
        watch.start()
        await asyncio.gather(asyncio.create_task(work(), name="GET_STREAMS"), asyncio.create_task(work()))
        watch.stop()

    asyncio.run(main())
    names = over_limit(watch)
    assert names.pop("GET_STREAMS") == 1
    assert [name.rpartition(".")[2] for name in names] == ["work"]


def test_the_pause_of_the_collector_has_a_name_of_its_own() -> None:
    def collect() -> None:
        gc.collect()

    figures = watched([collect], LoopWatch(exact=True)).gauges()
    assert figures[f"{GARBAGE}.longest_us"] > 0
    assert not any("collect.<" in name for name in figures)


class LongTurns:
    """An engine that says how long its passes computed."""

    def __init__(self, *longest_us: int) -> None:
        self._longest_us = list(longest_us)

    def turn(self, _epoll_fd: int, _timeout_ms: int) -> tuple[bool, list[Event], int]:
        return False, [], self._longest_us.pop(0)


def test_a_turn_of_the_engine_has_a_name_of_its_own() -> None:
    watch = LoopWatch()
    turns = LongTurns(LIMIT_MS * 1000 + 1, 0, 2000, LIMIT_MS * 1000 + 1)
    selector = EngineSelector(turns, lambda events: None, watch)  # type: ignore[arg-type]
    selector.select(0)
    assert watch.gauges() == {"longest_us": 0}, "not before the start"
    watch.start()
    for _ in range(3):
        selector.select(0)
    watch.stop()
    selector.close()
    assert over_limit(watch) == {ENGINE_TURN: 1}
    assert watch.gauges()[f"{ENGINE_TURN}.longest_us"] == LIMIT_MS * 1000 + 1


def test_what_was_done_before_the_start_does_not_count() -> None:
    watch = LoopWatch(exact=True)
    watch.begin(too_long)
    too_long()
    watch.start()
    watch.begin(None)
    watch.stop()
    assert over_limit(watch) == {}


def test_names_are_bounded() -> None:
    watch = LoopWatch(exact=True)
    watch.start()
    for number in range(NAMES_MAX + 10):
        watch._note(f"name {number}", LIMIT_MS * 1_000_000)
    watch.stop()
    assert len(over_limit(watch)) == NAMES_MAX + 1
    assert over_limit(watch)[OTHERS] == 10


def test_only_a_battery_ends_the_process() -> None:
    program = (
        "import os, tests.unit.test_loop_watch as here\n"
        "from shardd.runtime.loop_watch import watch_of\n"
        "here.watched([here.too_long], watch_of(os.environ))\n"
        "print('went on')\n"
    )
    for limit_ms, ends in ((None, False), (0, False), (10 * LIMIT_MS, False), (LIMIT_MS, True)):
        environment = {name: value for name, value in os.environ.items() if name != LIMIT_VARIABLE}
        if limit_ms is not None:
            environment[LIMIT_VARIABLE] = str(limit_ms)
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, "went on" in done.stdout) == ((EXIT_STATUS, False) if ends else (0, True))
        assert ("too_long broke the rule of 10 ms" in done.stderr) == ends


def test_a_worker_watches_every_callback_of_its_loop(tmp_path: Path) -> None:
    """Also those that asyncio does not pass through anything public, as readers of descriptors."""
    with Workers(tmp_path) as workers:
        watch = workers._threads[0]._worker.watch

        async def ask() -> None:
            loop, (ours, theirs) = asyncio.get_running_loop(), os.pipe()
            read = asyncio.Event()

            def readable() -> None:
                loop.remove_reader(ours)
                too_long()
                read.set()

            loop.add_reader(ours, readable)
            os.write(theirs, b"x")
            await read.wait()
            loop.call_later(0.001, too_long)
            await asyncio.sleep(0.01)
            os.close(ours)
            os.close(theirs)

        workers.call(ask())
        names = [name.rpartition(".")[2] for name in over_limit(watch)]
        assert {"readable", "too_long"} <= set(names)


def test_requests_are_named_by_their_command(tmp_path: Path) -> None:
    with Workers(tmp_path) as workers:
        watch = workers._threads[0]._worker.watch
        watch._look_ns = watch._noted_ns = 0
        connection = workers.connect(0)
        connection.request(wire.GET_STREAMS)
        connection.status(12345)
        names = {name.removesuffix(".longest_us") for name in watch.gauges()}
        assert {"GET_STREAMS", "unknown command", "RequestEvent"} <= names


def test_top_names_the_longest_step() -> None:
    figures = {"over_limit": 3, "longest_us": 14_000, "GET_USERS.longest_us": 14_000, "PING.longest_us": 1_000}
    values = {f"loop.{name}": value for name, value in figures.items()}
    metrics = Metrics(1, 0, 2, frozenset(), (ShardMetrics(1, 1, 1, values, ()),))
    caption = shards_table(compare(metrics, metrics), "here").caption
    assert caption == "down: shard 0; shard 1: 3 steps too long, at most 14.0 ms (GET_USERS)"
