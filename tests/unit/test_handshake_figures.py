"""What a door tells of its handshakes: summed over its processes, and bounded, as a door may be captured."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest

from shardd.doors.handshake_counts import INTERVAL_S, HandshakeCounts, tell_handshakes
from shardd.doors.links import WorkerLostError
from shardd.doors.openings import Openings
from shardd.protocol.door_figures import TellHandshakes
from shardd.protocol.errors import ShardError, Status
from shardd.service.handshake_figures import FRESH_S, TELLING_PROCESSES_MAX, HandshakeFigures
from tests.support.on_loop import on_loop
from tests.unit.virtual_time import run_virtually


@on_loop
async def test_handshakes_of_all_processes_of_a_door_are_summed() -> None:
    now_s = 100.0
    figures = HandshakeFigures(lambda: now_s)
    assert figures.counters() == {} and figures.gauges() == {}
    await figures.tell(TellHandshakes(1, waiting=3, begun=5, handshakes=2, resumed=1, failed=1, refused=4))
    await figures.tell(TellHandshakes(2, waiting=2, begun=1))
    await figures.tell(TellHandshakes(1, waiting=1, handshakes=2))
    counted = {"tls_begun": 6, "tls_handshakes": 4, "tls_resumed": 1, "tls_failed": 1, "tls_refused": 4}
    assert figures.counters() == counted
    assert figures.gauges() == {"tls_waiting": 3}
    now_s += FRESH_S + 1
    await figures.tell(TellHandshakes(2, waiting=7))
    assert figures.gauges() == {"tls_waiting": 7}, "the other process has ended"
    assert figures.counters() == counted


@pytest.mark.parametrize(
    "told",
    [TellHandshakes(-1), TellHandshakes(1, waiting=-1), TellHandshakes(1, begun=-1), TellHandshakes(1, failed=1 << 64)],
)
@on_loop
async def test_what_is_no_count_is_refused(told: TellHandshakes) -> None:
    figures = HandshakeFigures()
    with pytest.raises(ShardError) as caught:
        await figures.tell(told)
    assert caught.value.status is Status.INVALID_COMMAND and figures.counters() == {}


@on_loop
async def test_processes_that_tell_are_bounded() -> None:
    figures = HandshakeFigures()
    for process in range(TELLING_PROCESSES_MAX):
        await figures.tell(TellHandshakes(process, waiting=1))
    with pytest.raises(ShardError):
        await figures.tell(TellHandshakes(TELLING_PROCESSES_MAX, waiting=1))
    assert figures.gauges() == {"tls_waiting": TELLING_PROCESSES_MAX}


def test_what_could_not_be_told_is_told_the_next_time() -> None:
    told: list[TellHandshakes] = []
    counts, waiting = HandshakeCounts(), 0

    async def task(name: str, request: TellHandshakes, *, shard: int) -> None:
        assert (name, shard) == ("tell", 0)
        if counts.begun == 1:
            raise WorkerLostError("it is replaced")
        told.append(request)

    async def main() -> None:
        nonlocal waiting
        door: Any = SimpleNamespace(task=task)
        telling = asyncio.create_task(tell_handshakes(door, "tell", counts, lambda: waiting))
        await asyncio.sleep(2 * INTERVAL_S)
        counts.begun = 1
        await asyncio.sleep(2 * INTERVAL_S)
        counts.begun, counts.failed, waiting = 3, 1, 2
        await asyncio.sleep(1.5 * INTERVAL_S)
        waiting = 0
        await asyncio.sleep(5 * INTERVAL_S)
        telling.cancel()

    run_virtually(main())
    assert told[0] == TellHandshakes(os.getpid(), waiting=2, begun=3, failed=1)
    assert told[-1] == TellHandshakes(os.getpid()), "no step waits any more"
    assert len(told) <= 4, "a door without handshakes tells nothing"


def test_steps_that_wait_are_counted() -> None:
    async def main() -> None:
        openings, done = Openings(lambda: 0.0), asyncio.Event()
        entries = [openings.enter(f"192.0.2.{number}", lambda: None) for number in range(3)]
        openings.enter("192.0.2.9", done.set)
        assert openings.waiting == 4
        openings.leave(entries[1])
        openings.leave(entries[1])
        assert openings.waiting == 3
        await done.wait()
        assert openings.waiting == 0

    run_virtually(main())
