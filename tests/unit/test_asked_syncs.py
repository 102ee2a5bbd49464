"""Syncs that readers ask for: one at a time, each partition at most once in a second."""

from __future__ import annotations

import asyncio

from shardd.runtime.asker import ASKER, SERVER, Asker
from shardd.service.asked_syncs import INTERVAL_S, AskedSyncs

A, B = (1, 10), (2, 20)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_syncs_are_of_no_user_whoever_asked_first() -> None:
    askers: list[Asker] = []

    async def sync(_: tuple[int, int]) -> None:
        askers.append(ASKER.get())

    async def play() -> None:
        ASKER.set(Asker(7, "10.0.0.1"))
        AskedSyncs(sync).ask(A, A)
        await turns()
        assert ASKER.get().owner == 7

    asyncio.run(play())
    assert askers == [SERVER]


def test_many_askers_cause_one_sync_in_a_second() -> None:
    now, begun, gate = [0.0], [], asyncio.Event()

    async def sync(partition: tuple[int, int]) -> None:
        begun.append(partition)
        await gate.wait()

    async def play() -> None:
        asked = AskedSyncs(sync, lambda: now[0])
        for _ in range(3):
            for each in (A, B):
                asked.ask(each, each)
            await turns()
        assert begun == [A]  # a device that does not answer has one of them to carry out
        gate.set()
        await turns()
        assert begun == [A, B]
        now[0] = INTERVAL_S / 2
        asked.ask(A, A)
        await turns()
        assert begun == [A, B]
        now[0] = INTERVAL_S
        asked.ask(A, A)
        await turns()
        assert begun == [A, B, A]

    asyncio.run(play())
