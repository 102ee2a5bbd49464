"""Opening the partitions of a shard: the loop goes on meanwhile, and a full disk is tried again when there is room."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from shardd.config.loader import load_settings
from shardd.engine import Engine, ExpiryClock
from shardd.log import layout
from shardd.log.incarnation import NewerIncarnationError, write_incarnation
from shardd.log.offsets_table import OFFSET_CONSUMER, StoredOffset
from shardd.log.recovered import Recovered
from shardd.log.stored_offsets import read_table
from shardd.metadata import Record, State, Topic, apply, commands
from shardd.metadata.commands import Ref
from shardd.runtime.helper_threads import HelperThreads
from shardd.worker import opening, partitions
from shardd.worker.partitions import OwnedPartitions
from tests.support.first_offsets import first_table

PARTITIONS = 40
TIMEOUT_S = 20
BELIEVED_US = 1_000_000_000_000_000


class Calls:
    """Takes the place of the engine: (namespace, incarnation, state) of what is open."""

    def __init__(self) -> None:
        self.open: dict[int, tuple[int, int]] = {}
        self.turns_of_others: Callable[[], int] = lambda: 0
        self.longest_run = 0  # calls without a turn of anybody else
        self._run = (0, 0)  # turns of the others, calls since

    def _count(self) -> None:
        turns, calls = self._run
        self._run = (turns, calls + 1) if self.turns_of_others() == turns else (self.turns_of_others(), 1)
        self.longest_run = max(self.longest_run, self._run[1])

    def partition_open(
        self, ns: int, incarnation: int, slot: int, directory: str, size: int, state: int, *_: Any
    ) -> tuple[int, int]:
        assert ns not in self.open
        self._count()
        self.open[ns] = (incarnation, state)
        return 0, 0

    def expiry_clock(self) -> ExpiryClock:
        return ExpiryClock((BELIEVED_US, BELIEVED_US, 0, 0, 0, 0, bytes(64), 0, 0))

    def partition_close(self, ns: int, incarnation: int) -> None:
        self._count()
        assert self.open.get(ns, (incarnation, 0))[0] == incarnation
        self.open.pop(ns, None)  # unknown ones are no error (engine_partitions.c)


def state_with(count: int, topics: int = 1) -> State:
    state = apply(State(), Record(1, 1, 1, 0, commands.CreateStream("s")))
    for number in range(topics):
        command = commands.CreateTopic(Ref(0, 1), f"t{number}", count, 1, 0, 0, 1)
        state = apply(state, Record(2 + number, 1, 1, 0, command))
    return state


def owned(calls: Calls, data: Path) -> OwnedPartitions:
    return OwnedPartitions(cast(Engine, calls), 0, 1, data, load_settings(None, {}).settings)


def make_directories(data: Path, count: int) -> None:
    for number in range(count):
        directory = layout.partition_directory(data, 0, 0, number)
        directory.mkdir(parents=True)
        write_incarnation(directory, 2)


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario, TIMEOUT_S))


def test_the_loop_goes_on_while_directories_are_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_directories(tmp_path, 3)
    loop_ran = threading.Event()

    def slow(directory: Path, incarnation: int, *, now_us: int) -> Recovered:
        assert loop_ran.wait(TIMEOUT_S), "the scan waits for the loop, and the loop for the scan"
        return Recovered()

    monkeypatch.setattr(opening, "open_partition", slow)

    async def scenario() -> None:
        calls, threads = Calls(), HelperThreads(2)
        recovery = asyncio.create_task(owned(calls, tmp_path).recover(lambda: state_with(PARTITIONS), threads))
        await asyncio.sleep(0.05)
        assert not recovery.done()
        loop_ran.set()
        await recovery
        assert len(calls.open) == PARTITIONS
        await threads.close()

    run(scenario())


def purged(state: State) -> State:
    return apply(state, Record(state.index + 1, 1, 1, 0, commands.PurgeStream(Ref(0, 1))))


def deleted(state: State) -> State:
    return apply(state, Record(state.index + 1, 1, 1, 0, commands.DeleteStream(Ref(0, 1))))


def test_the_loop_goes_on_while_many_partitions_are_made_purged_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "FOLLOW_SLICE_MS", 0.0)  # each slice is one call of the engine
    count, topics = 100, 20
    full = state_with(count, topics)

    async def scenario() -> None:
        calls, threads = Calls(), HelperThreads(2)
        shard, turns = owned(calls, tmp_path), 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        others = asyncio.create_task(other())
        for old, new in ((State(), full), (full, purged(full)), (purged(full), deleted(full))):
            assert len(calls.open) == sum(len(topic.partitions) for topic in old_topics(old))
            calls.turns_of_others = lambda: turns
            calls.longest_run = 0
            await shard.follow(old, new, threads)
            assert calls.longest_run <= 2, "calls of the engine without anybody else's turn"
        assert calls.open == {}
        others.cancel()
        await threads.close()

    run(scenario())


def old_topics(state: State) -> list[Topic]:
    return [topic for stream in state.streams.values() for topic in stream.topics.values()]


def test_a_purge_closes_everything_before_it_opens_anything_and_leaves_no_directory(tmp_path: Path) -> None:
    make_directories(tmp_path, 3)
    full = state_with(PARTITIONS)

    async def scenario() -> None:
        calls, threads = Calls(), HelperThreads(2)
        shard = owned(calls, tmp_path)
        await shard.recover(lambda: full, threads)
        assert await shard.follow(full, purged(full), threads), "something went to the trash"
        assert {incarnation for incarnation, _ in calls.open.values()} == {full.index + 1}
        assert len(list(layout.trash_directory(tmp_path).iterdir())) == 3
        assert not any((layout.topic_directory(tmp_path, 0, 0) / layout.PARTITIONS).iterdir())
        assert not await shard.follow(purged(full), deleted(purged(full)), threads)
        assert calls.open == {}
        assert not layout.stream_directory(tmp_path, 0).exists()
        await threads.close()

    run(scenario())


def test_what_is_deleted_during_a_recovery_is_not_opened_and_goes_to_the_trash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_directories(tmp_path, 3)
    now = full = state_with(PARTITIONS)

    def delete_meanwhile(directory: Path, incarnation: int, *, now_us: int) -> Recovered:
        nonlocal now
        now = deleted(full)
        return Recovered()

    monkeypatch.setattr(opening, "open_partition", delete_meanwhile)

    async def scenario() -> None:
        calls, threads = Calls(), HelperThreads(2)
        shard = owned(calls, tmp_path)
        state = await shard.recover(lambda: now, threads)
        assert state is full
        assert len(calls.open) == PARTITIONS - 3, "those with files were deleted while they were scanned"
        assert await shard.follow(state, now, threads)
        assert calls.open == {}
        assert not layout.stream_directory(tmp_path, 0).exists()
        await threads.close()

    run(scenario())


def test_what_a_full_disk_left_read_only_is_opened_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_directories(tmp_path, 2)
    full = True

    def open_partition(directory: Path, incarnation: int, *, now_us: int) -> Recovered:
        if full and directory.name == "1":
            raise OSError(errno.ENOSPC, "no room")
        return Recovered()

    monkeypatch.setattr(opening, "open_partition", open_partition)

    async def scenario() -> None:
        nonlocal full
        state, calls, threads = state_with(2), Calls(), HelperThreads(2)
        shard = owned(calls, tmp_path)
        await shard.recover(lambda: state, threads)
        assert calls.open == {0: (2, 0), 1: (2, 10006)}
        await shard.try_again(lambda: state, threads)
        assert calls.open[1] == (2, 10006), "there is no room yet"
        full = False
        await shard.try_again(lambda: state, threads)
        assert calls.open == {0: (2, 0), 1: (2, 0)}
        full = True
        await shard.try_again(lambda: state, threads)
        assert calls.open == {0: (2, 0), 1: (2, 0)}, "what is open stays"
        await threads.close()

    run(scenario())


ROOM, MOMENTARY = (errno.ENOSPC, errno.EDQUOT), (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)


@pytest.mark.parametrize("in_the_engine", [False, True])
@pytest.mark.parametrize("code", [*ROOM, *MOMENTARY])
def test_an_open_that_fails_for_room_or_for_the_moment_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, *, in_the_engine: bool
) -> None:
    """Whichever part of it has failed: the recovery or the engine."""
    make_directories(tmp_path, 1)
    fails = True

    def check(part: bool) -> None:
        if fails and part is in_the_engine:
            raise OSError(code, "it fails")

    class Failing(Calls):
        def partition_open(self, ns: int, incarnation: int, slot: int, *rest: Any) -> tuple[int, int]:
            if rest[2] == 0:
                check(True)
            return super().partition_open(ns, incarnation, slot, *rest)

    def open_partition(directory: Path, incarnation: int, *, now_us: int) -> Recovered:
        check(False)
        return Recovered()

    monkeypatch.setattr(opening, "open_partition", open_partition)

    async def scenario() -> None:
        nonlocal fails
        state, calls, threads = state_with(1), Failing(), HelperThreads(2)
        shard = owned(calls, tmp_path)
        await shard.recover(lambda: state, threads)
        assert calls.open == {0: (2, 10006)}
        await shard.try_again(lambda: state, threads)
        assert calls.open == {0: (2, 10006)}, "it fails still"
        fails = False
        await shard.try_again(lambda: state, threads)
        assert calls.open == {0: (2, 0)}
        await threads.close()

    run(scenario())


@pytest.mark.parametrize(
    ("error", "moved"),
    [(OSError(errno.EIO, "a sector"), True), (NewerIncarnationError("newer"), False), (ValueError("later"), False)],
)
@pytest.mark.parametrize("change", [purged, deleted])
def test_only_what_is_foreign_is_left_where_it_is_by_a_purge_or_a_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[State], State], error: Exception, *, moved: bool
) -> None:
    make_directories(tmp_path, 1)

    def open_partition(directory: Path, incarnation: int, *, now_us: int) -> Recovered:
        raise error

    monkeypatch.setattr(opening, "open_partition", open_partition)

    async def scenario() -> None:
        state, calls, threads = state_with(1), Calls(), HelperThreads(2)
        shard = owned(calls, tmp_path)
        await shard.recover(lambda: state, threads)
        assert calls.open == {0: (2, 10006)}
        await shard.try_again(lambda: state, threads)
        assert calls.open == {0: (2, 10006)}
        assert await shard.follow(state, change(state), threads) is moved
        assert layout.partition_directory(tmp_path, 0, 0, 0).exists() is not moved
        await threads.close()

    run(scenario())


def test_stored_offsets_of_version_1_count_as_used_at_the_time_that_the_engine_believes(tmp_path: Path) -> None:
    make_directories(tmp_path, 1)
    directory = layout.partition_directory(tmp_path, 0, 0, 0)
    (directory / layout.CONSUMER_OFFSETS).write_bytes(first_table(2, [StoredOffset(OFFSET_CONSUMER, 7, 0)]))

    async def scenario() -> None:
        state, calls, threads = state_with(1), Calls(), HelperThreads(2)
        await owned(calls, tmp_path).recover(lambda: state, threads)
        await threads.close()

    run(scenario())
    table = read_table(directory, 2)
    assert table is not None
    assert table.offsets == [StoredOffset(OFFSET_CONSUMER, 7, 0, BELIEVED_US)]
