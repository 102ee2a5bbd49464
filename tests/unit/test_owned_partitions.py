"""Opening the partitions of a shard: the loop goes on meanwhile, and a full disk is tried again when there is room."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from shardd.config import load_settings
from shardd.engine import Engine
from shardd.log import layout
from shardd.log.incarnation import write_incarnation
from shardd.log.recovery import Recovered
from shardd.metadata import Record, State, apply, commands
from shardd.metadata.commands import Ref
from shardd.shard import partitions
from shardd.shard.helper_threads import HelperThreads
from shardd.shard.partitions import SLICE, OwnedPartitions

PARTITIONS = 40
TIMEOUT_S = 20


class Calls:
    """Takes the place of the engine: (namespace, incarnation, state) of what is open."""

    def __init__(self) -> None:
        self.open: dict[int, tuple[int, int]] = {}

    def partition_open(
        self, ns: int, incarnation: int, slot: int, directory: str, size: int, state: int, *_: Any
    ) -> None:
        assert ns not in self.open
        self.open[ns] = (incarnation, state)

    def partition_close(self, ns: int) -> None:
        del self.open[ns]

    def routes_invalidate(self) -> None:
        pass


def state_with(count: int, topics: int = 1) -> State:
    state = apply(State(), Record(1, 1, 1, 0, commands.CreateStream("s")))
    for number in range(topics):
        command = commands.CreateTopic(Ref(0, 1), f"t{number}", count, 1, 0, 0, 1)
        state = apply(state, Record(2 + number, 1, 1, 0, command))
    return state


def owned(calls: Calls, data: Path, progress: list[int] | None = None) -> OwnedPartitions:
    beats = [] if progress is None else progress
    system = load_settings(None, {}).settings.system
    return OwnedPartitions(cast(Engine, calls), 0, 1, data, system, lambda: beats.append(1))


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

    def slow(directory: Path, incarnation: int) -> Recovered:
        assert loop_ran.wait(TIMEOUT_S), "the scan waits for the loop, and the loop for the scan"
        return Recovered()

    monkeypatch.setattr(partitions, "open_partition", slow)

    async def scenario() -> None:
        calls, threads = Calls(), HelperThreads(2)
        recovery = asyncio.create_task(owned(calls, tmp_path).recover(state_with(PARTITIONS), threads))
        await asyncio.sleep(0.05)
        assert not recovery.done()
        loop_ran.set()
        await recovery
        assert len(calls.open) == PARTITIONS
        await threads.close()

    run(scenario())


def test_a_deletion_of_many_partitions_tells_that_it_makes_progress(tmp_path: Path) -> None:
    count, topics = 1000, 20
    full = state_with(count, topics)
    beats: list[int] = []
    calls = Calls()
    shard = owned(calls, tmp_path, beats)
    shard.follow(State(), full)
    assert len(calls.open) == count * topics
    beats.clear()
    gone = apply(full, Record(full.index + 1, 1, 1, 0, commands.DeleteStream(Ref(0, 1))))
    shard.follow(full, gone)
    assert calls.open == {}
    assert len(beats) >= count * topics // SLICE


def test_what_a_full_disk_left_read_only_is_opened_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_directories(tmp_path, 2)
    full = True

    def open_partition(directory: Path, incarnation: int) -> Recovered:
        if full and directory.name == "1":
            raise OSError(errno.ENOSPC, "no room")
        return Recovered()

    monkeypatch.setattr(partitions, "open_partition", open_partition)

    async def scenario() -> None:
        nonlocal full
        state, calls, threads = state_with(2), Calls(), HelperThreads(2)
        shard = owned(calls, tmp_path)
        await shard.recover(state, threads)
        assert calls.open == {0: (2, 0), 1: (2, 10006)}
        await shard.room_returned(lambda: state, threads)
        assert calls.open[1] == (2, 10006), "there is no room yet"
        full = False
        await shard.room_returned(lambda: state, threads)
        assert calls.open == {0: (2, 0), 1: (2, 0)}
        full = True
        await shard.room_returned(lambda: state, threads)
        assert calls.open == {0: (2, 0), 1: (2, 0)}, "what is open stays"
        await threads.close()

    run(scenario())
