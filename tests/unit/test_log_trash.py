"""Trash and the sweep over unknown directories."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shardd.log import layout
from shardd.log.foreign import sweep_streams
from shardd.log.trash import move_to_trash
from shardd.maintenance import trash_emptier
from shardd.maintenance.scheduler import JobScheduler
from shardd.maintenance.trash_emptier import CUT_BYTES, NAMES_STEP, TrashEmptier, empty_trash
from tests.support.on_loop import on_loop, until
from tests.unit.log_files import segment, tree, write


def test_move_and_empty(tmp_path: Path) -> None:
    directory, trash = layout.topic_directory(tmp_path, 1, 2), layout.trash_directory(tmp_path)
    for durable in (True, False):  # the same name twice
        write(layout.partition_directory(tmp_path, 1, 2, 0), segment(0, [2]))
        assert move_to_trash(directory, trash, durable=durable) is not None
        assert not directory.exists()
    assert move_to_trash(directory, trash) is None
    assert len(list(trash.iterdir())) == 2
    steps = list(empty_trash(trash))
    assert len(steps) == 2 * (3 + 3)  # three files; the directories of topic, partitions, partition
    assert list(trash.iterdir()) == []
    assert list(empty_trash(tmp_path / "none")) == []


def test_symbolic_links_are_unlinked_and_not_followed(tmp_path: Path) -> None:
    outside, trash = tmp_path / "outside", tmp_path / "trash"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    trash.mkdir()
    (trash / "link").symlink_to(outside)
    assert len(list(empty_trash(trash))) == 1
    assert (outside / "kept").exists()


@asynccontextmanager
async def emptying(trash: Path, steps_per_s: int = 1000) -> AsyncIterator[TrashEmptier]:
    """Its jobs run, and end with the context."""
    jobs = JobScheduler()
    emptier = TrashEmptier(trash, jobs, steps_per_s=steps_per_s)
    jobs.start()
    try:
        yield emptier
    finally:
        await jobs.stop()
        await jobs.close()


def left(emptier: TrashEmptier) -> tuple[int, int]:
    gauges = emptier.gauges()
    return gauges["entries_left"], gauges["files_in_use"]


@on_loop
async def test_emptier_works_beside_the_loop_and_when_it_is_woken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trash = layout.trash_directory(tmp_path)
    write(layout.partition_directory(tmp_path, 1, 2, 0), segment(0, [2]))
    move_to_trash(layout.stream_directory(tmp_path, 1), trash)
    async with emptying(trash) as emptier:
        for stream in (1, 2):
            await until(lambda: not list(trash.iterdir()))
            write(layout.partition_directory(tmp_path, stream, 2, 0), segment(0, [2]))
            move_to_trash(layout.stream_directory(tmp_path, stream), trash)
            emptier.wake()
        await until(lambda: not list(trash.iterdir()))
    assert caplog.messages == []


@on_loop
async def test_emptier_keeps_its_rate(tmp_path: Path) -> None:
    trash = layout.trash_directory(tmp_path)
    trash.mkdir()
    files, steps_per_s = 500, 100
    for number in range(files):
        (trash / str(number)).write_bytes(b"x")
    started = time.monotonic()
    async with emptying(trash, steps_per_s):
        await until(lambda: len(list(trash.iterdir())) < files - 10)
    removed = files - len(list(trash.iterdir()))
    grown = steps_per_s * (1 + files / NAMES_STEP)
    assert 1 <= removed <= (time.monotonic() - started) * grown + 1


def sparse(path: Path, size_bytes: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size_bytes)
    return path


def test_a_large_file_is_cut_in_steps_before_it_is_unlinked(tmp_path: Path) -> None:
    path = sparse(tmp_path / "large", 3 * CUT_BYTES + 5)
    steps = empty_trash(tmp_path)
    sizes = []
    for step in steps:
        assert step.error is None
        sizes.append(path.stat().st_size if path.exists() else 0)
    assert sizes == [2 * CUT_BYTES + 5, CUT_BYTES + 5, 5, 0]


def test_a_large_file_that_somebody_reads_stays_as_it_is_until_it_is_closed(tmp_path: Path) -> None:
    path = sparse(tmp_path / "large", 2 * CUT_BYTES)
    with path.open("rb"):
        (step,) = empty_trash(tmp_path)
        assert step.error is not None
        assert step.error.errno == errno.EBUSY
        assert path.stat().st_size == 2 * CUT_BYTES
    assert sum(step.freed_bytes for step in empty_trash(tmp_path)) == 2 * CUT_BYTES
    assert not path.exists()


def test_a_large_file_that_somebody_reads_loses_its_name_when_room_is_short(tmp_path: Path) -> None:
    path = sparse(tmp_path / "large", 2 * CUT_BYTES)
    with path.open("rb") as reader:
        assert [step.error for step in empty_trash(tmp_path, lambda: True)] == [None]
        assert os.fstat(reader.fileno()).st_size == 2 * CUT_BYTES, "the reader has all of it"
    assert not path.exists()


def test_the_other_name_of_a_large_file_keeps_its_bytes(tmp_path: Path) -> None:
    trash, other = tmp_path / "trash", tmp_path / "backup"
    trash.mkdir()
    other.hardlink_to(sparse(trash / "large", 2 * CUT_BYTES))
    assert [step.freed_bytes for step in empty_trash(trash)] == [0]
    assert other.stat().st_size == 2 * CUT_BYTES


@on_loop
async def test_what_was_removed_and_what_is_left_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trash = tmp_path / "trash"
    trash.mkdir()
    path = sparse(trash / "large", 2 * CUT_BYTES)
    (trash / "small").write_bytes(b"12345")
    async with emptying(trash) as emptier:
        with path.open("rb"):
            await until(lambda: left(emptier) == (1, 1))
            assert emptier.counters() == {"names_removed": 1, "bytes_freed": 5}
        emptier.wake()
        await until(lambda: left(emptier) == (0, 0))
        assert emptier.counters() == {"names_removed": 2, "bytes_freed": 5 + 2 * CUT_BYTES}
    assert caplog.messages == []


@on_loop
async def test_a_deleted_file_that_was_read_goes_soon_after_it_is_closed_whoever_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a partition lies in the trash: in directories, which cannot go before it."""
    monkeypatch.setattr(trash_emptier, "LOOK_INTERVAL_S", 3600.0)
    directory = tmp_path / "trash" / "topic" / "partition"
    directory.mkdir(parents=True)
    path = sparse(directory / "large", 2 * CUT_BYTES)
    async with emptying(tmp_path / "trash") as emptier:
        with path.open("rb"):
            await until(lambda: emptier.gauges()["files_in_use"] == 1)
            assert path.exists()
        await until(lambda: not list((tmp_path / "trash").iterdir()))
    assert caplog.messages == [], "nothing is wrong with it"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for stream, incarnation in ((1, 10), (2, 20)):
        write(layout.partition_directory(tmp_path, stream, 0, 0), segment(0, [1]), incarnation=incarnation)
    return tmp_path


KNOWN = {(1, 0, 0): 10, (2, 0, 0): 20}


def test_known_directories_are_silent(data: Path) -> None:
    before = tree(data)
    assert sweep_streams(data, KNOWN, 100) == []
    assert tree(data) == before
    assert sweep_streams(data / "nothing", KNOWN, 100) == []


def test_deleted_stream_goes_to_the_trash(data: Path) -> None:
    (note,) = sweep_streams(data, {(1, 0, 0): 10}, 100)
    assert "moved to" in note
    assert not layout.stream_directory(data, 2).exists()
    assert len(list(layout.trash_directory(data).iterdir())) == 1
    assert layout.partition_directory(data, 1, 0, 0).exists()


def test_sweep_touches_nothing_else(data: Path) -> None:
    streams = data / layout.STREAMS
    (streams / "backup").mkdir()
    (streams / "7").write_text("a file")
    (streams / "1" / "topics" / "copy-of-0").mkdir()
    write(layout.partition_directory(data, 9, 0, 0), segment(0, [1]))
    (layout.partition_directory(data, 9, 0, 0) / layout.INCARNATION).unlink()
    write(layout.partition_directory(data, 1, 0, 5), segment(0, [1]), incarnation=10)  # marker of a living partition
    write(layout.partition_directory(data, 1, 0, 6), segment(0, [1]), incarnation=101)  # newer than the metadata
    before = tree(data)
    notes = sweep_streams(data, KNOWN, 100)
    assert len(notes) == 6
    assert all("left alone" in note for note in notes)
    assert tree(data) == before
    assert layout.partition_directory(data, 9, 0, 0).is_dir()


def test_what_was_made_just_before_a_crash_and_holds_nothing_is_removed(data: Path) -> None:
    for partition in (0, 1):
        layout.partition_directory(data, 9, 0, partition).mkdir(parents=True)
    (layout.partition_directory(data, 9, 0, 1) / "incarnation.tmp").write_bytes(b"SHRD")
    assert len(sweep_streams(data, KNOWN, 100)) == 2
    assert not layout.stream_directory(data, 9).exists()


def test_a_shard_judges_its_own_places_only(data: Path) -> None:
    (data / layout.STREAMS / "backup").mkdir()
    before = tree(data)
    assert sweep_streams(data, {}, 100, lambda place: False, report_foreign=False) == []
    assert tree(data) == before
    assert len(sweep_streams(data, {}, 100, lambda place: place[0] == 1)) == 2
    assert layout.stream_directory(data, 2).exists()
    assert not layout.stream_directory(data, 1).exists()
