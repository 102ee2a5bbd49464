"""The last syncs of a stop come to an end, whatever the device does."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import cast

import pytest

from shardd.engine import Engine
from shardd.maintenance import flush
from shardd.runtime.helper_threads import HelperThreads

TIMEOUT_S = 10


class Dirty:
    """Takes the place of the engine. `left`: how many files are dirty in each round; the last number stays, as on a
    full disk, where each refused write makes its file dirty again."""

    def __init__(self, file: Path, left: list[int], write_s: float = 0.0) -> None:
        self._file = file
        self._left = left
        self._write_s = write_s
        self.rounds = 0
        self.synced: list[int] = []

    def counters(self) -> dict[str, int]:
        return {"syncs_running": 0}

    def flush_all(self) -> list[int]:
        count = self._left[min(self.rounds, len(self._left) - 1)]
        self.rounds += 1
        time.sleep(self._write_s)
        return [os.open(self._file, os.O_RDONLY) for _ in range(count)]

    def flush_all_done(self, error: int) -> None:
        self.synced.append(error)


def last_syncs(dirty: Dirty, seconds: float) -> None:
    async def scenario() -> None:
        threads = HelperThreads(1)
        await flush.flush_everything(cast(Engine, dirty), threads, time.monotonic() + seconds)
        await threads.close()

    asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_S))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.touch()
    return path


def test_all_rounds_that_bring_something_to_a_slow_device_are_made(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush, "_PAUSE_S", 0.0)  # each round is a slow one
    dirty = Dirty(file, [3, 2, 1, 0], write_s=0.15)
    last_syncs(dirty, 0.3)
    assert dirty.synced == [0, 0, 0]


def test_a_slow_device_that_takes_nothing_does_not_keep_a_worker_from_its_end(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush, "_PAUSE_S", 0.0)
    monkeypatch.setattr(flush, "_AFTER_STALL_S", 0.2)
    dirty = Dirty(file, [2])
    last_syncs(dirty, 0.1)
    assert dirty.rounds > 1  # there might be room again
