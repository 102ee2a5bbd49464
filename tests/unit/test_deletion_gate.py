"""How much lies in the trash, how fast it goes, and who waits for it (docs/adr/0037)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import pytest

from shardd.maintenance import deletion_gate
from shardd.maintenance.deletion_gate import DeletionGate
from shardd.maintenance.trash_content import BLOCK_BYTES, TrashContent
from shardd.maintenance.trash_emptier import NAMES_STEP, TrashEmptier, empty_trash, pace
from shardd.protocol.errors import Status
from shardd.runtime.helper_threads import HelperThreads
from tests.support.on_loop import on_loop, until

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
PARTITION_NAMES = 3  # of `fill`


def fill(trash: Path, names: range) -> None:
    for number in names:
        directory = trash / f"partition-{number}"
        directory.mkdir(parents=True)
        (directory / "log").write_bytes(bytes(5000))
        (directory / "index").write_bytes(b"")


def counted(trash: Path) -> tuple[int, int]:
    """Names and bytes, found out anew."""
    content = TrashContent(trash)
    content.look()
    return content.names, content.size_bytes


def test_names_and_bytes_are_counted_once_and_carried_on(tmp_path: Path) -> None:
    fill(tmp_path, range(3))
    (tmp_path / "segment.log").write_bytes(bytes(100))
    content = TrashContent(tmp_path)
    content.look()
    everything = [tmp_path, *tmp_path.rglob("*")][1:]
    assert (content.names, len(content)) == (3 * PARTITION_NAMES + 1, 4)
    assert content.size_bytes == sum(each.lstat().st_blocks * BLOCK_BYTES for each in everything if each.is_file())
    fill(tmp_path, range(3, 5))
    content.look()
    assert content.names == 5 * PARTITION_NAMES + 1
    for step in empty_trash(tmp_path):
        content.removed(step.path, step.freed_bytes, name=step.removed)
        assert content.names == counted(tmp_path)[0]
    assert (content.names, content.size_bytes, len(content)) == (0, 0, 0)


def test_what_somebody_else_removes_is_gone_at_the_next_look(tmp_path: Path) -> None:
    fill(tmp_path, range(2))
    content = TrashContent(tmp_path)
    content.look()
    list(empty_trash(tmp_path))
    content.look()
    assert (content.names, content.size_bytes) == (0, 0)
    content.removed(tmp_path / "partition-0" / "log", 5000, name=True)
    assert TrashContent(tmp_path / "none").names == 0


def test_nobody_waits_for_what_cannot_be_removed(tmp_path: Path) -> None:
    fill(tmp_path, range(2))
    content = TrashContent(tmp_path)
    content.look()
    size_bytes = content.size_bytes
    content.is_stuck(tmp_path / "partition-0" / "log")
    content.is_stuck(tmp_path / "partition-0")
    content.is_stuck(tmp_path)  # it cannot be read
    assert (content.names, content.size_bytes) == (PARTITION_NAMES, size_bytes)
    content.try_again()
    assert content.names == 2 * PARTITION_NAMES
    content.is_stuck(tmp_path / "partition-0")
    list(empty_trash(tmp_path))
    content.look()
    assert content.names == 0


def test_the_pace_grows_with_what_is_left_and_as_room_falls() -> None:
    assert pace(200, 0, 50_000, 100.0) == 200
    assert pace(200, NAMES_STEP, 50_000, 100.0) == 400
    assert pace(200, 10 * NAMES_STEP, 50_000, 100.0) == 2_200
    assert pace(200, 0, 50_000, 4.0) == 400
    assert pace(200, 50_001, 50_000, 100.0) == 0 == pace(200, 0, 50_000, 1.9)
    by_names = [pace(200, names, 50_000, 100.0) for names in range(0, 50_000, 1000)]
    by_room = [pace(200, 100, 50_000, reserves / 10) for reserves in range(200, 20, -1)]
    assert by_names == sorted(by_names) and by_room == sorted(by_room)


class Gate:
    """With a trash that is emptied by the test."""

    def __init__(self, trash: Path, names_max: int) -> None:
        self.content = TrashContent(trash)
        self.woken = 0
        self.threads = HelperThreads(1)
        self.gate = DeletionGate(self.content, names_max, self.threads, self._wake)
        self.order: list[int] = []

    def _wake(self) -> None:
        self.woken += 1

    async def delete(self, user: int, work: Callable[[], None] = lambda: None) -> Status:
        async with self.gate.enter(user) as status:
            if status == Status.OK:
                self.order.append(user)
                work()
            return status


@on_loop
async def test_a_deletion_waits_for_the_trash_and_is_counted_before_the_next_one(tmp_path: Path) -> None:
    """However many wait: the trash never has more than its bound and what one deletion brings."""
    gate = Gate(tmp_path, 2 * PARTITION_NAMES)
    numbers = iter(range(100))
    most = 0

    def work() -> None:
        nonlocal most
        number = next(numbers)
        fill(tmp_path, range(4 * number, 4 * number + 4))
        most = max(most, counted(tmp_path)[0])

    deletions = [asyncio.create_task(gate.delete(number % 3, work)) for number in range(9)]
    while not all(each.done() for each in deletions):
        for step in empty_trash(tmp_path):
            gate.content.removed(step.path, step.freed_bytes, name=step.removed)
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
    assert [each.result() for each in deletions] == [Status.OK] * 9
    assert most <= 6 * PARTITION_NAMES and gate.woken > 0
    assert gate.gate.gauges() == {"deletions_waiting": 0}
    await gate.threads.close()


@on_loop
async def test_users_take_turns(tmp_path: Path) -> None:
    gate = Gate(tmp_path, 0)
    fill(tmp_path, range(1))
    deletions = [asyncio.create_task(gate.delete(user)) for user in (1, 1, 1, 1, 2)]
    await until(lambda: gate.woken > 0)
    assert gate.gate.gauges() == {"deletions_waiting": 5} and gate.order == []
    list(empty_trash(tmp_path))
    gate.content.look()
    await asyncio.gather(*deletions)
    assert gate.order[:3] in ([1, 1, 2], [1, 2, 1])
    await gate.threads.close()


@on_loop
async def test_who_waits_too_long_gets_a_status_and_nothing_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(deletion_gate, "WAIT_S", 0.2)
    gate = Gate(tmp_path, 0)
    fill(tmp_path, range(1))
    statuses = await asyncio.gather(*(gate.delete(1) for _ in range(3)))
    assert statuses == [Status.CANNOT_DELETE_FILE] * 3 and gate.order == []
    assert gate.gate.counters() == {"deletions_refused": 3}
    assert len(caplog.messages) == 1
    list(empty_trash(tmp_path))
    gate.content.look()
    assert await gate.delete(1) == Status.OK, "nobody is left in its place"
    await gate.threads.close()


@on_loop
async def test_a_stop_ends_the_waiting_at_once(tmp_path: Path) -> None:
    gate = Gate(tmp_path, 0)
    fill(tmp_path, range(1))
    deletions = [asyncio.create_task(gate.delete(user)) for user in range(3)]
    await until(lambda: gate.woken > 0)
    gate.gate.close()
    assert await asyncio.gather(*deletions, gate.delete(9)) == [Status.DISCONNECTED] * 4
    assert gate.order == [] and gate.gate.counters() == {"deletions_refused": 0}
    await gate.threads.close()


@on_loop
async def test_who_leaves_while_it_waits_leaves_no_trace(tmp_path: Path) -> None:
    gate = Gate(tmp_path, 0)
    fill(tmp_path, range(1))
    first, second = (asyncio.create_task(gate.delete(user)) for user in range(2))
    await until(lambda: gate.woken > 0)
    first.cancel()
    await asyncio.wait([first])
    list(empty_trash(tmp_path))
    gate.content.look()
    assert await second == Status.OK
    await gate.threads.close()


class Held:
    """Jobs without a scheduler: what they say."""

    def __init__(self) -> None:
        self.jobs: dict[str, Callable[[], bool] | None] = {}

    def add(self, job: object) -> Callable[[], None]:
        self.jobs[job.name] = job.gives_way  # type: ignore[attr-defined]
        return threading.Event().set


def test_the_trash_gives_way_while_there_is_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Held()
    reserves = [100.0]
    monkeypatch.setattr("shardd.maintenance.trash_emptier.reserves_free", lambda *_: reserves[0])
    emptier = TrashEmptier(tmp_path, jobs, names_max=4 * PARTITION_NAMES)  # type: ignore[arg-type]
    gives_way = jobs.jobs["trash"]
    assert gives_way is not None and gives_way()
    fill(tmp_path, range(2))
    emptier.content.look()
    assert gives_way()
    reserves[0] = 7.0
    assert not gives_way()
    reserves[0] = 100.0
    fill(tmp_path, range(2, 3))
    emptier.content.look()
    assert not gives_way()
