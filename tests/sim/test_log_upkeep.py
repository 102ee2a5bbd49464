"""What the simulator has found in retention and compression, each by itself."""

from __future__ import annotations

import errno
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardd.log import layout
from shardd.log.recovery import open_partition
from shardd.log.segment_layout import COMPRESSED
from tests.sim.log_disk import LogDisk
from tests.sim.log_library import POLL_FIRST, Batch, LogPartition, Producing
from tests.sim.log_upkeep import Compressing
from tests.sim.planted import Planted
from tests.support.built import make

NATIVE = Path(__file__).parents[2] / "native"
INCARNATION = 5
WRITTEN, MEMORY = 0, 1
CANNOT_READ_FILE = 10002
NOW_US, EXPIRY_US = 1_000_000, 1000
SEGMENT_BYTES = 600


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    built = make(NATIVE, "sim")
    assert built.returncode == 0, built.stderr


class Stage:
    """A partition on a simulated disk."""

    def __init__(self, root: Path, level: int) -> None:
        root.mkdir()
        self.level = level
        self.directory = layout.partition_directory(root, 1, 2, 3)
        self.disk = LogDisk(root, random.Random(1))
        self.partition = self.opened()

    def opened(self) -> LogPartition:
        segments = open_partition(self.directory, INCARNATION).segments if self.directory.exists() else []
        self.disk.adopt()
        partition = LogPartition(
            self.disk, self.directory, INCARNATION, self.level, SEGMENT_BYTES, 0, 1, Producing(), segments
        )  # fmt: skip
        partition.clock(NOW_US, NOW_US)
        return partition

    def send(self, count: int) -> None:
        for _ in range(count):
            batch = Batch([bytes(48) + struct.pack("<IIQ", 0, 200, 0) + b"as before " * 20])
            self.partition.append([batch], NOW_US)
            assert batch.status == 0

    def sync(self) -> None:
        for descriptor in self.partition.sync_begin(everything=True):
            self.disk.fdatasync(descriptor)
            self.disk.close(descriptor)
        self.partition.sync_done(0)

    def compress_one(self) -> int:
        """Its names are given, and not synced."""
        step = Compressing(self.disk, self.directory, random.Random(1), Planted())
        assert step.step(self.partition, INCARNATION, 2**60).endswith("has its names")
        [blocks] = self.directory.glob(f"*.{COMPRESSED.suffix}")
        return int(blocks.stem)

    def poll(self) -> tuple[int, int]:
        """Status, and how many messages came."""
        status, _, count, _ = self.partition.poll(POLL_FIRST, 0, 1000, 1)
        return status, count


@pytest.fixture
def stages(tmp_path: Path) -> Iterator[list[Stage]]:
    made: list[Stage] = []
    yield made
    for each in made:
        each.partition.free(orderly=False)


def test_what_has_expired_in_the_journal_is_not_served(tmp_path: Path, stages: list[Stage]) -> None:
    """A poll saves the journal of level `memory` first: what becomes visible by that may have expired."""
    stage = Stage(tmp_path / "disk", MEMORY)
    stages.append(stage)
    stage.partition.limit(EXPIRY_US, 0)
    stage.send(3)
    assert stage.partition.ends().unsaved == 3
    stage.partition.clock(NOW_US + EXPIRY_US, NOW_US + EXPIRY_US)
    assert stage.poll() == (0, 0)


def test_a_compressed_segment_that_cannot_be_read_now_is_not_damaged(
    tmp_path: Path, stages: list[Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path / "disk", WRITTEN)
    stages.append(stage)
    stage.send(12)
    stage.sync()
    stage.compress_one()
    stage.partition.free(orderly=True)
    stage.disk.restart()
    stage.partition = stage.opened()
    pread = stage.disk.pread

    def broken(descriptor: int, length: int, position: int) -> bytes | int:
        of_blocks = Path(f"/proc/self/fd/{descriptor}").readlink().suffix == f".{COMPRESSED.suffix}"
        return -errno.EIO if of_blocks else pread(descriptor, length, position)

    monkeypatch.setattr(stage.disk, "pread", broken)
    assert stage.poll()[0] == CANNOT_READ_FILE
    monkeypatch.undo()
    assert stage.poll() == (0, 12)


def test_the_plain_file_leaves_behind_names_that_are_on_the_device(
    tmp_path: Path, stages: list[Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process died between the renames and their sync. The next start may not move the .log before that sync."""
    stage = Stage(tmp_path / "disk", WRITTEN)
    stages.append(stage)
    stage.send(12)
    stage.sync()
    start = stage.compress_one()
    log = layout.segment_log(stage.directory, start)
    synced = []

    def sync(directory: Path) -> None:
        synced.append((directory, log.exists()))

    monkeypatch.setattr(layout, "sync_directory", sync)
    open_partition(stage.directory, INCARNATION)
    assert not log.exists() and synced[0] == (stage.directory, True)
