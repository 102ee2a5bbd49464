"""Cursors over a log that forgets its oldest records: whatever is alive is written again in time. Their owners, shares
and ends (docs/adr/0137-cursors-have-owners.md)."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from shardd.doors.liftbridge import cursors as module
from shardd.doors.liftbridge.cursor_table import Cursor
from shardd.doors.liftbridge.cursors import Cursors, NoRoomError
from shardd.doors.links import WorkerLostError
from shardd.protocol.liftbridge.requests import AllUsers, InternalPoll, InternalPublish
from shardd.protocol.record_layout import INDEX_ENTRY, RECORD_HEAD

ROOT, GREEDY, OTHER, LATER = 0, 7, 8, 90  # incarnations
MAX = 16


class ForgetfulDoor:
    """Its workers keep so many records of a partition. `users`: the incarnations of those that there are, at the record
    `index`; `is_lost`: no worker takes anything."""

    def __init__(self, kept: int) -> None:
        self.logs: dict[int, deque[tuple[int, bytes]]] = {}
        self._kept = kept
        self._ends: dict[int, int] = {}
        self.users, self.index, self.is_lost = {GREEDY, OTHER}, 50, False

    async def task(self, name: str, request: InternalPublish | InternalPoll | AllUsers, **_more: object) -> Any:
        await asyncio.sleep(0)
        if isinstance(request, AllUsers):
            return {"index": self.index, "incarnations": [*self.users]}
        if self.is_lost:
            raise WorkerLostError("no worker is connected")
        log = self.logs.setdefault(request.partition, deque(maxlen=self._kept))
        if isinstance(request, InternalPoll):
            found = [each for each in log if each[0] >= request.offset][: request.count]
            newest = log[-1][0] if log else 0
            return {"count": len(found), "current_offset": newest, "records": b"".join(data for _, data in found)}
        at = INDEX_ENTRY.size * request.count
        for _ in range(request.count):
            checksum, id_, _, timestamp, origin, headers, payload, reserved = RECORD_HEAD.unpack_from(request.batch, at)
            end = at + RECORD_HEAD.size + headers + payload
            offset = self._ends.get(request.partition, 0)
            self._ends[request.partition] = offset + 1
            head = RECORD_HEAD.pack(checksum, id_, offset, timestamp, origin, headers, payload, reserved)
            log.append((offset, head + request.batch[at + RECORD_HEAD.size : end]))
            at = end
        return None


@pytest.mark.parametrize("partitions", [1, 3])
def test_cursors_that_are_alive_outlive_the_records_that_set_them(
    monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    monkeypatch.setattr(module, "REWRITE_RECORDS", 50)

    async def scenario() -> None:
        door: Any = ForgetfulDoor(kept=300)
        cursors = Cursors(door, partitions)
        expected = {}
        for number in range(3_000):
            cursor = Cursor("s", number % 7, "often") if number >= 20 else Cursor("s", number, "once")
            await cursors.set(cursor, number, ROOT)
            expected[cursor] = number
        again = Cursors(door, partitions)
        await again.load()
        assert {cursor: await again.get(cursor) for cursor in expected} == expected
        assert len(again) == len(expected) and await again.get(Cursor("s", 0, "never")) == -1

    asyncio.run(scenario())


def test_a_log_that_is_not_written_again_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other test would find."""
    monkeypatch.setattr(module, "REWRITE_RECORDS", 10**9)

    async def scenario() -> None:
        door: Any = ForgetfulDoor(kept=300)
        cursors = Cursors(door, 1)
        for number in range(1_000):
            await cursors.set(Cursor("s", 0, "once" if number == 0 else "often"), number, ROOT)
        again = Cursors(door, 1)
        await again.load()
        assert await again.get(Cursor("s", 0, "once")) == -1

    asyncio.run(scenario())


@pytest.fixture(autouse=True)
def short_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of a lost worker is not waited for."""
    monkeypatch.setattr("shardd.doors.liftbridge.internal._APPEND_TRIES", 1)


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CURSORS_MAX", MAX)


def named(name: str) -> Cursor:
    return Cursor("s", 0, name)


async def fill(cursors: Cursors, owner: int, name: str = "c") -> int:
    """As many new cursors as are let in."""
    for number in range(MAX + 1):
        try:
            await cursors.set(named(f"{name}{number}"), number, owner)
        except NoRoomError:
            return number
    raise AssertionError("more than the bound are set")


async def there(cursors: Cursors, *names: str) -> list[bool]:
    return [await cursors.get(named(name)) != -1 for name in names]


async def loaded(door: Any, partitions: int = 2) -> Cursors:
    cursors = Cursors(door, partitions)
    await cursors.load()
    return cursors


@pytest.mark.usefixtures("few_places")
def test_a_user_may_have_as_many_cursors_as_are_left_free() -> None:
    async def scenario() -> None:
        door: Any = ForgetfulDoor(kept=300)
        cursors = await loaded(door)
        assert await fill(cursors, GREEDY) == MAX // 2
        for again in (cursors, await loaded(door)):
            with pytest.raises(NoRoomError, match="this user has 8, and may have as many as are left free"):
                await again.set(named("more"), 1, GREEDY)
            await again.set(named("c0"), 5, GREEDY)
            assert await again.get(named("c0")) == 5
        assert await fill(cursors, OTHER, "other") == MAX // 4
        assert await fill(cursors, ROOT, "root") == MAX // 4  # which has no share
        with pytest.raises(NoRoomError, match="there are 16"):
            await cursors.set(named("more"), 1, ROOT)

    asyncio.run(scenario())


@pytest.mark.usefixtures("few_places")
def test_a_cursor_counts_for_the_user_that_set_it_last() -> None:
    async def scenario() -> None:
        door: Any = ForgetfulDoor(kept=300)
        cursors = await loaded(door)
        had = await fill(cursors, GREEDY)
        for number in range(4):
            await cursors.set(named(f"c{number}"), 1, ROOT)
        assert await fill(cursors, GREEDY, "more") == 2  # four fewer of its own, and as many as are free
        assert len(cursors) == had + 2

    asyncio.run(scenario())


@pytest.mark.usefixtures("few_places")
@pytest.mark.parametrize("restart", [False, True])
def test_cursors_of_a_deleted_user_go_when_a_place_is_needed_the_longest_unused_first(
    caplog: pytest.LogCaptureFixture, restart: bool
) -> None:
    async def scenario() -> None:
        door: Any = ForgetfulDoor(kept=300)
        cursors = await loaded(door)
        had = await fill(cursors, GREEDY)
        await cursors.set(named("c0"), 70, GREEDY)
        assert await there(cursors, "c1") == [True]
        door.users, door.index = {OTHER}, 60
        if restart:
            cursors = await loaded(door)
            assert await there(cursors, "c1") == [True]
        assert await fill(cursors, OTHER, "other") == MAX // 2  # the places of the deleted user count as free
        assert len(cursors) == MAX
        for number in range(3):
            await cursors.set(named(f"root{number}"), 1, ROOT)
        for after in (cursors, await loaded(door)):
            assert len(after) == MAX
            assert await there(after, *(f"c{number}" for number in range(had))) == [
                number not in (2, 3, 4) for number in range(had)
            ]
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert "cursors of deleted users removed, the longest unused first" in caplog.text


@pytest.mark.usefixtures("few_places")
def test_a_user_that_is_newer_than_what_is_known_is_there() -> None:
    async def scenario() -> None:
        door: Any = ForgetfulDoor(kept=300)
        cursors = await loaded(door)
        assert await fill(cursors, LATER) == MAX // 2
        assert await fill(cursors, OTHER, "other") == MAX // 4
        assert await there(cursors, *(f"c{number}" for number in range(MAX // 2))) == [True] * (MAX // 2)

    asyncio.run(scenario())


@pytest.mark.usefixtures("few_places")
def test_a_cursor_of_a_deleted_user_passes_to_the_user_that_sets_it() -> None:
    async def scenario() -> None:
        door: Any = ForgetfulDoor(kept=300)
        cursors = await loaded(door)
        await fill(cursors, GREEDY)
        door.users, door.index = {OTHER, LATER}, 90
        again = await loaded(door)
        assert await again.get(named("c3")) == 3
        await again.set(named("c3"), 4, LATER)
        assert await fill(again, OTHER, "other") == MAX // 2
        for number in range(4):
            await again.set(named(f"root{number}"), 1, ROOT)
        left = await there(again, *(f"c{number}" for number in range(MAX // 2)))
        assert left == [number == 3 or number > 4 for number in range(MAX // 2)]

    asyncio.run(scenario())


@pytest.mark.usefixtures("few_places")
def test_minus_one_removes_a_cursor_and_frees_its_place() -> None:
    async def scenario() -> None:
        door: Any = ForgetfulDoor(kept=300)
        cursors = await loaded(door)
        had = await fill(cursors, GREEDY)
        await cursors.set(named("c0"), -1, GREEDY)
        await cursors.set(named("never"), -1, GREEDY)
        assert len(cursors) == had - 1
        await cursors.set(named("more"), 1, GREEDY)
        for each in (cursors, await loaded(door)):
            assert await there(each, "c0", "never", "more") == [False, False, True]

    asyncio.run(scenario())


@pytest.mark.usefixtures("few_places")
def test_many_at_a_time_do_not_pass_a_share_or_the_bound() -> None:
    async def scenario() -> None:
        door: Any = ForgetfulDoor(kept=300)
        cursors = await loaded(door)
        await fill(cursors, GREEDY, "gone")
        door.users, door.index = {OTHER, LATER}, 95

        async def one(number: int, owner: int) -> bool:
            try:
                await cursors.set(named(f"{owner}.{number}"), 1, owner)
            except NoRoomError:
                return False
            return True

        done = await asyncio.gather(*(one(number, OTHER) for number in range(MAX)))
        assert sum(done) == MAX // 2
        done = await asyncio.gather(*(one(number, ROOT) for number in range(MAX)))
        assert sum(done) == MAX // 2 and len(cursors) == MAX
        again = await loaded(door)
        assert len(again) == MAX and await there(again, "gone0") == [False]

    asyncio.run(scenario())


@pytest.mark.usefixtures("few_places")
def test_a_set_that_fails_takes_no_place() -> None:
    async def scenario() -> None:
        door: Any = ForgetfulDoor(kept=300)
        cursors = await loaded(door)
        door.is_lost = True
        for number in range(MAX):
            with pytest.raises(WorkerLostError):
                await cursors.set(named(f"lost{number}"), 1, GREEDY)
        door.is_lost = False
        assert len(cursors) == 0 and await fill(cursors, GREEDY) == MAX // 2

    asyncio.run(scenario())


@pytest.mark.usefixtures("few_places")
def test_a_cursor_whose_removal_fails_stays_and_goes_later() -> None:
    async def scenario() -> None:
        door: Any = ForgetfulDoor(kept=300)
        cursors = await loaded(door)
        had = await fill(cursors, GREEDY)
        for number in range(MAX - had):
            await cursors.set(named(f"root{number}"), 1, ROOT)
        door.users, door.index = {OTHER}, 60
        door.is_lost = True
        with pytest.raises(WorkerLostError):
            await cursors.set(named("first"), 1, OTHER)
        door.is_lost = False
        assert len(cursors) == MAX
        await cursors.set(named("first"), 1, OTHER)
        assert len(cursors) == MAX and await there(cursors, "first", "c0", "c1") == [True, False, True]

    asyncio.run(scenario())


def test_a_fetch_is_written_once_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that may be set back."""
    now_us = 1_000_000 * module._USE_WRITTEN_US
    monkeypatch.setattr("time.time_ns", lambda: now_us * 1000)

    async def scenario() -> None:
        nonlocal now_us
        door: Any = ForgetfulDoor(kept=300)
        cursors = await loaded(door, 1)
        await cursors.set(named("of-user"), 4, GREEDY)
        await cursors.set(named("of-root"), 4, ROOT)
        records = []
        for days in (0.5, 0.6, -3, 0.1, 6, 0):
            now_us += int(days * module._USE_WRITTEN_US)
            assert await there(cursors, "of-user", "of-root") == [True, True]
            records.append(len(door.logs[0]) - 2)
        assert records == [0, 1, 1, 1, 2, 2]

    asyncio.run(scenario())
