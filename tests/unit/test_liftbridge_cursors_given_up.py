"""Cursors whose clients go away while the record is on its way: what is in the log is in the table, counts for its user
and for the next rewriting. Logs with more cursors than there are places."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from shardd.doors.liftbridge import cursors as module
from shardd.doors.liftbridge.cursors import Cursors, NoRoomError
from shardd.doors.links import WorkerLostError
from shardd.protocol.liftbridge.requests import AllUsers, InternalPoll, InternalPublish
from tests.support.on_loop import on_loop, until
from tests.unit.test_liftbridge_cursors import GREEDY, MAX, OTHER, ROOT, ForgetfulDoor, loaded, named


class SlowDoor(ForgetfulDoor):
    """Its workers store at once, and say so when they may."""

    def __init__(self, kept: int) -> None:
        super().__init__(kept)
        self.answers = asyncio.Event()
        self.answers.set()
        self.waiting = 0

    async def task(self, name: str, request: InternalPublish | InternalPoll | AllUsers, **more: object) -> Any:
        said = await super().task(name, request, **more)
        if isinstance(request, InternalPublish):
            self.waiting += 1
            try:
                await self.answers.wait()
            finally:
                self.waiting -= 1
        return said


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CURSORS_MAX", MAX)
    monkeypatch.setattr(module, "REWRITE_RECORDS", 50)


async def given_up(door: SlowDoor, call: Coroutine[Any, Any, object]) -> None:
    """When its record is in the log."""
    door.answers.clear()
    task = asyncio.ensure_future(call)
    await until(lambda: door.waiting == 1 or task.done())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    door.answers.set()
    await until(lambda: door.waiting == 0)


async def values(cursors: Cursors, *names: str) -> list[int]:
    return [await cursors.get(named(name)) for name in names]


@on_loop
async def test_a_cursor_whose_client_went_away_is_there_and_counts() -> None:
    door: Any = SlowDoor(kept=10_000)
    cursors = await loaded(door, 1)
    for number in range(MAX):
        await given_up(door, cursors.set(named(f"ghost{number}"), number, GREEDY))
    with pytest.raises(NoRoomError):
        await cursors.set(named("more"), 1, GREEDY)
    for number in range(3):
        await cursors.set(named(f"other{number}"), number, OTHER)
    for each in (cursors, await loaded(door, 1)):
        assert len(each) == MAX // 2 + 3
        assert await values(each, "ghost0", "ghost7", "ghost8", "other0", "other2") == [0, 7, -1, 0, 2]


@on_loop
async def test_records_whose_clients_went_away_count_for_the_next_rewriting() -> None:
    door: Any = SlowDoor(kept=300)
    cursors = await loaded(door, 1)
    await cursors.set(named("other"), 5, OTHER)
    for number in range(400):
        await given_up(door, cursors.set(named("ghost"), number, GREEDY))
    assert await values(await loaded(door, 1), "other", "ghost") == [5, 399]


@on_loop
async def test_a_removal_whose_client_went_away_is_one() -> None:
    door: Any = SlowDoor(kept=300)
    cursors = await loaded(door, 1)
    await cursors.set(named("c"), 5, OTHER)
    await given_up(door, cursors.set(named("c"), -1, OTHER))
    for each in (cursors, await loaded(door, 1)):
        assert await values(each, "c") == [-1] and len(each) == 0


class DoubtfulDoor(ForgetfulDoor):
    """Its workers store, and are gone before they say so."""

    is_doubtful = False

    async def task(self, name: str, request: InternalPublish | InternalPoll | AllUsers, **more: object) -> Any:
        said = await super().task(name, request, **more)
        if isinstance(request, InternalPublish) and self.is_doubtful:
            raise WorkerLostError("it is gone")
        return said


@on_loop
async def test_a_set_failed_and_was_stored_a_removal_holds_at_the_next_start() -> None:
    door: Any = DoubtfulDoor(kept=300)
    cursors = await loaded(door, 1)
    door.is_doubtful = True
    with pytest.raises(WorkerLostError):
        await cursors.set(named("c"), 5, OTHER)
    door.is_doubtful = False
    await cursors.set(named("c"), -1, OTHER)
    for each in (cursors, await loaded(door, 1)):
        assert await values(each, "c") == [-1]


@on_loop
async def test_a_client_that_goes_away_while_it_waits_for_its_turn_has_set_nothing() -> None:
    door: Any = SlowDoor(kept=300)
    cursors = await loaded(door, 1)
    door.answers.clear()
    first = asyncio.ensure_future(cursors.set(named("first"), 1, GREEDY))
    await until(lambda: door.waiting == 1)
    waiting = [asyncio.ensure_future(cursors.set(named(f"w{number}"), 1, GREEDY)) for number in range(7)]
    await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    ends = await asyncio.gather(*waiting, return_exceptions=True)  # while the log has not answered
    assert [type(end) for end in ends] == [asyncio.CancelledError] * 7 and not first.done()
    door.answers.set()
    await first
    assert len(cursors) == 1 and len(door.logs[0]) == 1
    for number in range(MAX // 2 - 1):  # their places are free
        await cursors.set(named(f"c{number}"), 1, GREEDY)


@pytest.mark.parametrize("greedy_there", [True, False])
@on_loop
async def test_a_log_with_too_many_cursors_keeps_those_without_an_owner_and_of_small_users(
    greedy_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that an earlier version did not count: those of others lie behind them."""
    door: Any = ForgetfulDoor(kept=10_000)
    for number in range(4 * MAX):
        await Cursors(door, 1).set(named(f"ghost{number}"), number, GREEDY)
    for number in range(3):
        await Cursors(door, 1).set(named(f"other{number}"), number, OTHER)
        await Cursors(door, 1).set(named(f"root{number}"), number, ROOT)
    door.users = {GREEDY, OTHER} if greedy_there else {OTHER}
    cursors = await loaded(door, 1)
    assert len(cursors) == MAX
    names = [f"{who}{number}" for who in ("other", "root") for number in range(3)]
    assert await values(cursors, *names) == [0, 1, 2] * 2
    last = 4 * MAX - 1
    ghosts = [f"ghost{number}" for number in (last, last - 9, last - 10)]
    assert await values(cursors, *ghosts) == [last, last - 9, -1]
    monkeypatch.setattr(module, "CURSORS_MAX", 100 * MAX)
    assert await values(await loaded(door, 1), *ghosts) == [last, last - 9, -1], "one without a place came back"
