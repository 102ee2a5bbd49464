"""The server goes on while a backup is made: whatever it does, at whichever step of the backup, the backup is whole,
fits its metadata, and has lost nothing that this metadata still knows."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardd.backup import metadata
from shardd.backup.create import ROUNDS_MAX, Made, create_backup
from shardd.backup.metadata import incarnations
from shardd.backup.verify import verify_backup
from shardd.log import compressing, layout, spool
from shardd.log.blocks import Codec
from shardd.log.sealing import seal_segment
from shardd.log.segment_layout import COMPRESSED
from shardd.log.segment_reader import opened_log, segment_starts
from shardd.log.trash import move_to_trash
from shardd.maintenance.trash_emptier import empty_trash
from shardd.metadata import commands
from shardd.metadata.load import load_state
from shardd.metadata.log_file import FILE_NAME
from shardd.metadata.snapshot import snapshot_path, write_snapshot
from shardd.metadata.wal import MetadataLog
from shardd.runtime.throttle import Throttle
from tests.unit import backup_data, log_files
from tests.unit.backup_data import SEGMENT_COUNT, STREAM, TOPIC, DataDirectory, kept_log

Event = Callable[[DataDirectory], Iterator[None] | None]  # one with stages takes one of them before each step
FAST = Throttle(0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    backup_data.quick(monkeypatch)


# ---- what a server does, in its order ----


def _trash(data: DataDirectory, unlink: bool) -> None:
    for number in range(3):
        move_to_trash(data.partition(number), layout.trash_directory(data.path), durable=False)
    if unlink:
        list(empty_trash(layout.trash_directory(data.path)))


def purge_record(data: DataDirectory) -> None:
    """The record is durable, the directories are still the earlier ones."""
    data.change(commands.PurgeTopic(STREAM, TOPIC))


def purge(data: DataDirectory) -> None:
    data.change(commands.PurgeTopic(STREAM, TOPIC))
    _trash(data, unlink=True)
    data.fill(0, log_files.segment(0, [2], 9000))


def delete_topic(data: DataDirectory) -> None:
    data.change(commands.DeleteTopic(STREAM, TOPIC))
    _trash(data, unlink=False)


def delete_and_create(data: DataDirectory) -> None:
    data.change(commands.DeleteTopic(STREAM, TOPIC), commands.CreateTopic(STREAM, "u", 2, 1, 0, 0, 1))
    _trash(data, unlink=True)
    data.fill(1, log_files.segment(0, [6], 9000))


def create_partitions(data: DataDirectory) -> None:
    data.change(commands.CreatePartitions(STREAM, TOPIC, 2))
    data.fill(4, log_files.segment(0, [2], 9000))


def delete_segments(data: DataDirectory) -> None:
    trash = layout.trash_directory(data.path)
    trash.mkdir()
    for start in (0, SEGMENT_COUNT):
        data.log(0, start).rename(trash / f"1-1-1-{start}.log")


def roll(data: DataDirectory) -> None:
    data.append(0, log_files.segment(3 * SEGMENT_COUNT, [3], 9000))
    data.append(1, log_files.segment(4, [], 9000))


def seal(data: DataDirectory) -> Iterator[None]:
    for start in (0, SEGMENT_COUNT):
        assert seal_segment(data.partition(0), start, data.incarnation(0), FAST)[0] > 0
        yield


def compress(data: DataDirectory) -> Iterator[None]:
    """Both sealed segments get their file of blocks, and the logs go: each stage of it may meet each of a backup."""
    here, seen = data.partition(0), data.incarnation(0)
    yield from seal(data)
    for start in (0, SEGMENT_COUNT):
        assert compressing.prepare(here, start, seen, Codec("zstd", 1), FAST).outcome is compressing.Outcome.READY
        yield
        for suffix in (COMPRESSED.suffix, "manifest"):  # the renames of `put_in_place`
            target = layout.segment_file(here, start, suffix)
            target.with_name(target.name + layout.TEMPORARY_SUFFIX).replace(target)
            yield
        compressing.drop_plain(here, start)
        yield
        list(empty_trash(layout.trash_directory(data.path)))


def compress_at_once(data: DataDirectory) -> None:
    for _ in compress(data):
        pass


def retention(data: DataDirectory) -> Iterator[None]:
    """Oldest segments first, one file after the other, as the engine renames them; then they are unlinked."""
    yield from _away(data, str(layout.trash_directory(data.path) / "1-1-segment"))
    list(empty_trash(layout.trash_directory(data.path)))


def archive(data: DataDirectory) -> Iterator[None]:
    """The same into the spool, where they become entries."""
    yield from seal(data)
    layout.incoming_directory(data.path).mkdir(parents=True)
    yield from _away(data, spool.incoming_prefix(data.path, (0, 0, 0), data.incarnation(0)))
    for segment in spool.incoming(data.path):
        assert spool.make_entry(data.path, segment, ("s", "t"), "required", FAST) is not None
        yield


def _away(data: DataDirectory, prefix: str) -> Iterator[None]:
    layout.trash_directory(data.path).mkdir(exist_ok=True)
    for start in (0, SEGMENT_COUNT):
        for suffix in ("blocks", "log", "index", "manifest"):
            source = layout.segment_file(data.partition(0), start, suffix)
            if source.exists():
                source.rename(f"{prefix}-{source.name}")
                yield


def compress_and_retain(data: DataDirectory) -> Iterator[None]:
    yield from compress(data)
    yield from retention(data)


def compact(data: DataDirectory) -> None:
    """A snapshot, then the log is cut."""
    write_snapshot(snapshot_path(data.path / FILE_NAME), data.state(), [])
    log, content = MetadataLog.open(data.path / FILE_NAME)
    log.adopt(log.prepare_cut(content.index - 1))
    log.close()


EVENTS: list[Event] = [
    purge_record, purge, delete_topic, delete_and_create, create_partitions, delete_segments, roll, compact, seal,
    compress, compress_at_once, retention, archive, compress_and_retain,
]  # fmt: skip


class Steps:
    """Counts the calls that touch the source and lets something happen before one of them, stage by stage before those
    that follow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, happen: Callable[[], Iterator[None] | None]) -> None:
        self.left = at
        self._happen = happen
        self._stages: Iterator[None] = iter(())
        self._busy = False
        for name in ("open", "link"):
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def finish(self) -> None:
        """What of the event is left."""
        for _ in self._stages:
            pass

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            if not self._busy:  # else it is one of the event
                self._busy = True
                self.left -= 1
                if self.left == -1:
                    self._stages = self._happen() or iter(())
                next(self._stages, None)
                self._busy = False
            return call(*arguments, **options)

        return step


def contents(data: Path) -> dict[tuple[int, int], dict[int, bytes]]:
    """Bytes of every log by (partition, incarnation of the metadata), as a recovery opens them."""
    found: dict[tuple[int, int], dict[int, bytes]] = {}
    for place, incarnation in incarnations(load_state(data / FILE_NAME)).items():
        directory = layout.partition_directory(data, *place)
        marker = directory / layout.INCARNATION
        ours = marker.exists() and marker.read_bytes()[8:] == incarnation.to_bytes(8, "little")
        found[place[2], incarnation] = (
            {start: _log(directory, start) for start in segment_starts(directory)} if ours else {}
        )
    return found


def _log(directory: Path, start: int) -> bytes:
    with opened_log(directory, start) as descriptor, open(descriptor, "rb", closefd=False) as file:
        return file.read()


def kept_contents(made: Made) -> dict[tuple[int, int], dict[int, bytes]]:
    return {
        (entry.partition, entry.incarnation): {
            segment.start_offset: kept_log(made, segment.start_offset, entry.partition, entry.topic).read_bytes()
            for segment in entry.segments
        }
        for entry in made.backup.partitions
    }


@pytest.mark.parametrize("based", [False, True], ids=["full", "based"])
@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_whatever_happens_at_any_step_the_backup_is_whole(
    tmp_path: Path, event: Event, stride: int, based: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so is the next one, which shares its files."""
    original = DataDirectory(tmp_path / "original")
    before = contents(original.path)
    number, happened = EVENTS.index(event) % stride, 0
    while True:
        data = object.__new__(DataDirectory)
        data.path = tmp_path / f"{number}" / "data"
        shutil.copytree(original.path, data.path)
        backups = data.path.with_name("backups")
        if based:
            create_backup(data.path, backups)
        with monkeypatch.context() as patch:
            steps = Steps(patch, number, lambda data=data: event(data))  # type: ignore[misc]
            made = create_backup(data.path, backups)
        if steps.left >= 0:
            break
        happened += 1
        assert not made.backup.left_out
        assert verify_backup(made.path).damage == [], f"step {number}"
        steps.finish()
        assert verify_backup(create_backup(data.path, backups).path).damage == [], f"after step {number}"
        after, kept = contents(data.path), kept_contents(made)
        for identity, logs in kept.items():
            for start, content in before.get(identity, {}).items():
                gone = start not in after.get(identity, {start: b""})
                assert logs.get(start) == content or (start not in logs and gone), f"step {number}: {identity} {start}"
        shutil.rmtree(data.path.parent)
        number += stride
    assert happened > 10 // stride
    print(f"{event.__name__} at {happened} steps")


def test_a_partition_that_never_settles_is_left_out_and_named(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    (data.partition(1) / layout.INCARNATION).write_bytes(b"SHRDINC1" + (99).to_bytes(8, "little"))
    made = create_backup(data.path, tmp_path / "backups")
    (sentence,) = made.backup.left_out
    assert f"{data.partition(1)} was made by metadata record 99" in sentence
    assert [entry.partition for entry in made.backup.partitions] == [0, 2]
    verified = verify_backup(made.path)
    assert verified.damage == []
    assert verified.backup.left_out == [sentence]


def test_a_partition_that_the_device_does_not_give_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataDirectory(tmp_path / "data")
    broken, plain = data.log(0, SEGMENT_COUNT).stat().st_ino, os.preadv

    def read(descriptor: int, *arguments: Any) -> int:
        if os.fstat(descriptor).st_ino == broken:
            raise OSError(errno.EIO, "Input/output error")
        return plain(descriptor, *arguments)

    monkeypatch.setattr(os, "preadv", read)
    made = create_backup(data.path, tmp_path / "backups")
    assert made.backup.left_out == [f"{data.partition(0)} cannot be read: Input/output error at byte 0"]
    assert [entry.partition for entry in made.backup.partitions] == [1, 2]
    assert verify_backup(made.path).damage == []
    monkeypatch.undo()
    backup_data.quick(monkeypatch)
    whole = create_backup(data.path, tmp_path / "backups")
    monkeypatch.setattr(os, "preadv", read)
    assert any("Input/output error" in sentence for sentence in verify_backup(whole.path).damage)


def test_a_topic_that_is_purged_all_the_time_ends_the_backup_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataDirectory(tmp_path / "data")
    plain, calls = metadata.take_metadata, []

    def purged_again(source: Path, target: Path) -> Any:
        purge(data)
        calls.append(1)
        return plain(source, target)

    monkeypatch.setattr("shardd.backup.create.take_metadata", purged_again)
    made = create_backup(data.path, tmp_path / "backups")
    assert len(calls) == ROUNDS_MAX + 1
    assert made.backup.left_out == [], "nothing of it was there when the backup began"
    assert [(entry.incarnation, entry.segments) for entry in made.backup.partitions] == [(data.incarnation(0), [])] * 3
    assert len(made.backup.warnings) == 3
    assert verify_backup(made.path).damage == []
