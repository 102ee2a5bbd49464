"""Backups of data directories without a server: what the next one shares, where they lie, what a restore gives."""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash

from shardd.backup import segment
from shardd.backup.backups_directory import MARKER, complete_backups, locked, remove_leftovers
from shardd.backup.create import Options, create_backup
from shardd.backup.format import BACKUP_NAME, BackupError
from shardd.backup.restore import GUARD, restore_backup
from shardd.backup.verify import verify_backup
from shardd.log import layout
from shardd.log.directory_info import DirectoryInfo, write_info
from shardd.log.manifest import Manifest, Sealed, write_manifest
from shardd.log.recovery import open_partition
from shardd.log.segment_reader import segment_starts
from shardd.log.single_pass import PassReader
from shardd.server.data_directory import prepare_directory
from shardd.server.errors import StartupError
from tests.support.history import incarnation_in, without_history
from tests.unit import backup_data, log_files
from tests.unit.backup_data import SEGMENT_COUNT, DataDirectory, back_up, kept_log


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    backup_data.quick(monkeypatch)


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    return DataDirectory(tmp_path / "data")


# ---- incremental ----


def test_the_next_backup_shares_sealed_segments_without_reading_them(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = back_up(data)
    data.append(0, log_files.segment(3 * SEGMENT_COUNT, [3], 7000))
    read: list[int] = []
    monkeypatch.setattr("shardd.log.single_pass.PassReader.read", _counting(read))
    second = back_up(data)
    assert second.backup.base == first.path.name
    kept = [segment.kept for segment in second.backup.partitions[0].segments]
    assert kept == ["shared", "shared", "shared", "copied"], "the tail of then has not grown: it is shared, too"
    assert kept_log(second, 0).samefile(kept_log(first, 0))
    again, newest = (data.log(0, start).stat().st_size for start in (2 * SEGMENT_COUNT, 3 * SEGMENT_COUNT))
    both = "that of the base is verified before it takes the place of the other"
    assert sum(read) == 2 * again + newest + data.log(1, 0).stat().st_size, both
    shutil.rmtree(first.path)
    assert verify_backup(second.path).damage == [], "a backup does not need its base"


def _counting(read: list[int]) -> Callable[..., memoryview]:
    plain = PassReader.read

    def count(self: PassReader, position: int, length: int) -> memoryview:
        found = plain(self, position, length)
        read.append(len(found))
        return found

    return count


def seal(data: DataDirectory, start: int) -> None:
    """As the server does it after a roll."""
    log = data.log(0, start).read_bytes()
    digest = xxhash.xxh3_128_digest(log)
    sealed = Sealed(len(log), SEGMENT_COUNT, 1000 + start, 1001 + start, digest)
    write_manifest(data.partition(0), Manifest(data.incarnation(0), start, sealed=sealed), durable=False)


def test_a_segment_that_the_server_has_verified_is_not_read_again(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = back_up(data)
    read: list[int] = []
    monkeypatch.setattr("shardd.log.single_pass.PassReader.read", _counting(read))
    for start in (0, SEGMENT_COUNT):
        seal(data, start)
    made = back_up(data, Options(full=True))
    assert sum(read) == data.log(0, 2 * SEGMENT_COUNT).stat().st_size + data.log(1, 0).stat().st_size
    for before, now in zip(plain.backup.partitions[0].segments, made.backup.partitions[0].segments, strict=True):
        assert msgspec.structs.replace(now, manifest=None) == before, "the same as by reading"
    assert verify_backup(made.path).damage == []
    restore_backup(made.path, data.path.with_name("restored"))
    directory = layout.partition_directory(data.path.with_name("restored"), 0, 0, 0)
    recovered = open_partition(directory, incarnation_in(data.path.with_name("restored")))
    assert (recovered.notes, recovered.unsealed) == ([], [])


def test_bits_that_rotted_behind_a_good_manifest_are_found(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(data, 0)
    content = bytearray(data.log(0, 0).read_bytes())
    content[100] ^= 1
    data.log(0, 0).write_bytes(content)
    linked = back_up(data)
    assert any(str(kept_log(linked, 0)) in sentence for sentence in verify_backup(linked.path).damage)
    monkeypatch.setattr(os, "link", _refuse)
    copied = back_up(data, Options(full=True))
    assert "BAD_CHECKSUM" in copied.backup.warnings[0]
    assert verify_backup(copied.path).damage == []


def _refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EXDEV, "another file system")


def test_another_file_with_the_same_name_is_never_shared(data: DataDirectory) -> None:
    first = back_up(data)
    same = data.log(0, 0).read_bytes()
    data.log(0, 0).unlink()
    data.log(0, 0).write_bytes(same)  # another inode, the same bytes
    other = log_files.segment(SEGMENT_COUNT, [15, 5], 1500, payload_bytes=41)
    data.log(0, SEGMENT_COUNT).unlink()
    data.log(0, SEGMENT_COUNT).write_bytes(other.log)
    second = back_up(data)
    assert [segment.kept for segment in second.backup.partitions[0].segments] == ["shared", "linked", "copied"]
    assert kept_log(second, 0).samefile(kept_log(first, 0))
    assert kept_log(second, SEGMENT_COUNT).read_bytes() == other.log
    assert verify_backup(first.path).damage == verify_backup(second.path).damage == []


@pytest.mark.parametrize("harm", ["one bit", "cut", "compressed"])
def test_a_file_of_the_base_that_is_not_what_it_was_is_never_shared(data: DataDirectory, harm: str) -> None:
    first = back_up(data)
    kept, log = kept_log(first, SEGMENT_COUNT), data.log(0, SEGMENT_COUNT).read_bytes()
    kept.unlink()  # a link to the log of the server
    kept.write_bytes(
        {"one bit": bytes([log[0] ^ 1]) + log[1:], "cut": log[:-1], "compressed": zlib.compress(log)}[harm]
    )
    data.log(0, SEGMENT_COUNT).unlink()
    data.log(0, SEGMENT_COUNT).write_bytes(log)  # another file: that of a directory that was restored
    second = back_up(data)
    assert verify_backup(first.path).damage
    assert [segment.kept for segment in second.backup.partitions[0].segments] == ["shared", "linked", "copied"]
    assert verify_backup(second.path).damage == []


def test_a_listing_that_misses_a_segment_while_it_gets_another_name_is_made_again(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, missing = segment_starts, [SEGMENT_COUNT]

    def missed(directory: Path) -> list[int]:
        starts = plain(directory)
        if missing and missing[0] in starts:
            starts.remove(missing.pop())
        return starts

    monkeypatch.setattr(segment, "segment_starts", missed)
    made = back_up(data)
    assert not missing
    assert [each.start_offset for each in made.backup.partitions[0].segments] == [0, SEGMENT_COUNT, 2 * SEGMENT_COUNT]


def test_a_base_can_be_chosen_or_declined(data: DataDirectory, tmp_path: Path) -> None:
    first, second = back_up(data), back_up(data)
    assert back_up(data, Options(base=first.path)).backup.base == first.path.name
    full = back_up(data, Options(full=True))
    assert full.backup.base == ""
    assert {segment.kept for segment in full.backup.partitions[0].segments} == {"linked", "copied"}
    (second.path / BACKUP_NAME).unlink()
    with pytest.raises(BackupError, match="no complete backup"):
        back_up(data, Options(base=second.path))
    other = DataDirectory(tmp_path / "other")
    write_info(other.path, DirectoryInfo("shardd-data", 1, "2026-11-21T10:00:00Z"))
    with pytest.raises(BackupError, match="another data directory"):
        back_up(other, Options(base=first.path))
    assert create_backup(other.path, tmp_path / "backups").backup.base == ""


# ---- places ----


def test_what_a_killed_run_has_left_is_removed_and_nothing_else(data: DataDirectory) -> None:
    directory = data.path.with_name("backups")
    ours, empty, half = (directory / f"20260101T00000{n}.0Z.incomplete" for n in range(3))
    foreign, other = directory / "20260101T000009.0Z.incomplete", directory / "notes"
    for path in (ours / "streams", empty, half, foreign, other):
        path.mkdir(parents=True)
    (ours / "in-progress").write_bytes(MARKER)
    (half / "in-progress").touch()
    (foreign / "x").touch()
    (other / "in-progress").write_bytes(MARKER)
    for path in (ours, foreign, other):
        with pytest.raises(BackupError, match="no complete backup"):
            verify_backup(path)
    made = back_up(data)
    assert made.removed == [ours, empty, half]
    assert sorted(path.name for path in directory.iterdir()) == sorted([".lock", foreign.name, "notes", made.path.name])
    assert complete_backups(directory) == [made.path]


def test_a_removal_that_is_killed_at_any_step_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leftover = tmp_path / "20260101T000000.0Z.incomplete"
    number = 0
    while True:
        for name in ("a", "b"):
            (leftover / name).mkdir(parents=True)
            (leftover / name / "log").touch()
        (leftover / "state.messages").touch()
        (leftover / "in-progress").write_bytes(MARKER)
        killed = False
        with monkeypatch.context() as patch:
            for name in ("unlink", "rmdir"):
                patch.setattr(os, name, _killed_at(number, getattr(os, name)))
            try:
                remove_leftovers(tmp_path)
            except KilledError:
                killed = True
        if not killed:
            break
        remove_leftovers(tmp_path)
        assert not leftover.exists()
        number += 1
    assert number >= 4


def test_one_run_at_a_time(data: DataDirectory) -> None:
    with locked(data.path.with_name("backups")), pytest.raises(BackupError, match="another backup"):
        back_up(data)
    back_up(data)


def test_a_failed_run_leaves_nothing(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(errno.EIO, "the device is gone")

    monkeypatch.setattr("shardd.backup.backups_directory.sync_file_system", refuse)
    with pytest.raises(BackupError, match="the device is gone"):
        back_up(data)
    assert [path.name for path in data.path.with_name("backups").iterdir()] == [".lock"]


@pytest.mark.parametrize("where", ["data/backups", "."])
def test_a_backup_inside_the_data_is_refused(data: DataDirectory, where: str) -> None:
    with pytest.raises(BackupError, match="in one another"):
        create_backup(data.path, data.path.parent / where)


def test_damaged_metadata_stops_a_backup(data: DataDirectory) -> None:
    path = data.path / "state.snapshot"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BackupError, match=f"{path} is damaged"):
        back_up(data)


def test_the_name_comes_last(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is on the device before backup.json, and that before the name of a complete backup."""
    steps: list[str] = []
    directory = data.path.with_name("backups")

    def look(step: str) -> None:
        (path,) = (path for path in directory.iterdir() if path.is_dir())
        described = "described" if (path / BACKUP_NAME).exists() else "bare"
        steps.append(f"{step} {path.suffix == '.incomplete'} {described}")

    monkeypatch.setattr("shardd.backup.backups_directory.sync_file_system", lambda _descriptor: look("all"))
    monkeypatch.setattr("shardd.log.layout.sync_directory", lambda _path: look("directory"))
    back_up(data)
    assert steps == ["all True bare", "directory True described", "directory False described"]


# ---- restore ----


def test_a_restore_takes_only_an_empty_directory(data: DataDirectory, tmp_path: Path) -> None:
    made = back_up(data)
    target = tmp_path / "target"
    target.mkdir()
    (target / "x").touch()
    with pytest.raises(BackupError, match="not an empty directory"):
        restore_backup(made.path, target)
    assert [path.name for path in target.iterdir()] == ["x"]
    (target / "x").unlink()
    restore_backup(made.path, target)
    with pytest.raises(BackupError, match="not an empty directory"):
        restore_backup(made.path, target)


def test_a_restore_links_sealed_segments_only_when_asked(data: DataDirectory, tmp_path: Path) -> None:
    made = back_up(data)
    for link in (False, True):
        target = tmp_path / f"link-{link}"
        restore_backup(made.path, target, link=link)
        directory = layout.partition_directory(target, 0, 0, 0)
        same = [
            layout.segment_log(directory, start).samefile(kept_log(made, start))
            for start in (0, SEGMENT_COUNT, 2 * SEGMENT_COUNT)
        ]
        assert same == [link, link, False]


@pytest.mark.parametrize("link", [False, True])
def test_a_linked_segment_that_the_server_writes_to_again_stays_what_it_was(
    data: DataDirectory, tmp_path: Path, link: bool
) -> None:
    """Its successors were removed by hand, as the manual has it for a damaged partition."""
    made = back_up(data)
    before = without_history(data.path)
    for start in (SEGMENT_COUNT, 2 * SEGMENT_COUNT):
        data.log(0, start).unlink()
    with data.log(0, 0).open("ab") as log:
        log.write(log_files.segment(SEGMENT_COUNT, [5], 9000).log)
    assert verify_backup(made.path).damage == []
    restore_backup(made.path, tmp_path / "target", link=link)
    assert without_history(tmp_path / "target") == before


def test_a_server_refuses_a_restore_that_was_cut_off(
    data: DataDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before any of its files is opened: a server refuses what is there, or there is no file of the backup."""
    made = back_up(data)
    monkeypatch.setattr("shardd.backup.restore._remove_content", lambda _path: None)  # killed: nobody cleans up
    refused = number = 0
    while True:
        target = tmp_path / f"target-{number}"
        target.mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", _killed_at(number, os.open))
            try:
                restore_backup(made.path, target)
                break
            except KilledError:
                pass
        number += 1
        if [path.name for path in target.iterdir()] in ([], ["info.json.tmp"]):
            continue
        if GUARD not in (target / "info.json").read_text():  # only the sync of its name was left
            assert without_history(target) == without_history(data.path)
            continue
        for fresh in (False, True):
            with pytest.raises(StartupError, match="no data directory"):
                prepare_directory(target, fresh=fresh)
        refused += 1
    assert refused > 15
    prepare_directory(target, fresh=False)


class KilledError(BaseException):
    """What nobody catches."""


def _killed_at(number: int, plain: Callable[..., Any]) -> Callable[..., Any]:
    calls = iter(range(10**9))

    def step(*arguments: Any, **options: Any) -> Any:
        if next(calls) == number:
            raise KilledError
        return plain(*arguments, **options)

    return step
