"""Backups of segments that have no record for some of their offsets, or damaged ones that an operator has given up:
taken, verified and restored as they are."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from shardd.backup.format import BackupError
from shardd.backup.restore import restore_backup
from shardd.backup.verify import verify_backup
from shardd.log import layout
from shardd.log.diagnosis import diagnose_partition, isolate
from shardd.log.manifest import read_manifest, write_manifest
from shardd.log.recovery import open_partition
from tests.unit import log_files
from tests.unit.backup_data import DataDirectory, back_up

KEPT = [20, 21, 25, 33]
THIN = log_files.thinned(log_files.segment(20, [15, 5], 1020), KEPT)
END = 40


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    directory = DataDirectory(tmp_path / "data")
    directory.fill(0, THIN)
    write_manifest(directory.partition(0), log_files.manifest_of(THIN, END, incarnation=directory.incarnation(0)))
    return directory


def _no_links(*_: object, **__: object) -> None:
    raise OSError(errno.EXDEV, "other file system")


@pytest.mark.parametrize("linked", [True, False])
def test_a_sparse_segment_comes_back_as_it_was(
    data: DataDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    if not linked:
        monkeypatch.setattr(os, "link", _no_links)
    made = back_up(data)
    monkeypatch.undo()
    description = json.loads((made.path / "backup.json").read_text())
    assert description["format_version"] == 2  # an earlier program would take it for damaged
    [partition] = [each for each in made.backup.partitions if each.ids == (0, 0, 0)]
    assert [(each.start_offset, each.end_offset, each.count, each.damage) for each in partition.segments] == [
        (0, 20, 20, ""),
        (20, 40, 4, ""),
        (40, 60, 20, ""),
    ]
    assert verify_backup(made.path).damage == []
    before = open_partition(data.partition(0), data.incarnation(0))
    for link in (False, True):
        target = tmp_path / f"restored-{link}"
        restore_backup(made.path, target, link=link)
        restored = DataDirectory.__new__(DataDirectory)
        restored.path = target
        recovered = open_partition(restored.partition(0), restored.incarnation(0))
        assert (recovered.segments, recovered.damaged) == (before.segments, [])
        assert layout.segment_index(restored.partition(0), 20).read_bytes() == THIN.index
        manifest = read_manifest(restored.partition(0), 20)
        assert manifest is not None and (manifest.sparse, manifest.end_offset) == (True, END)


def test_a_backup_without_gaps_is_of_version_1_still(tmp_path: Path) -> None:
    made = back_up(DataDirectory(tmp_path / "data", version=1))
    content = (made.path / "backup.json").read_text()
    assert json.loads(content)["format_version"] == 1 and "records" not in content


def test_a_record_less_than_was_backed_up_is_found(data: DataDirectory, tmp_path: Path) -> None:
    made = back_up(data)
    log = layout.segment_log(layout.partition_directory(made.path, 0, 0, 0), 20)
    fewer = log_files.thinned(log_files.segment(20, [15, 5], 1020), KEPT[:-1])
    log.unlink()
    log.write_bytes(fewer.log)
    assert any(str(log) in each for each in verify_backup(made.path).damage)
    with pytest.raises(BackupError):
        restore_backup(made.path, tmp_path / "restored")


def test_a_second_backup_shares_the_sparse_segment(data: DataDirectory) -> None:
    back_up(data)
    second = back_up(data)
    [partition] = [each for each in second.backup.partitions if each.ids == (0, 0, 0)]
    assert [each.kept for each in partition.segments] == ["shared", "shared", "copied"]
    assert partition.segments[1].count == 4 and verify_backup(second.path).damage == []


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("with_base", [True, False])
def test_segment_with_isolated_messages_is_read_whatever_its_digest_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool, with_base: bool
) -> None:
    data = DataDirectory(tmp_path / "data")
    directory, incarnation = data.partition(0), data.incarnation(0)
    whole = log_files.segment(0, [15, 5], 1000)
    write_manifest(directory, log_files.manifest_of(whole, incarnation=incarnation))
    if with_base:
        back_up(data)
    log = bytearray(whole.log)
    log[whole.borders[7] + 66] ^= 1  # in its payload
    with data.log(0, 0).open("r+b") as file:  # the file that the base has, too
        file.write(log)
    isolate(directory, [each for view in diagnose_partition(directory) for each in view.open_damage()])
    before = read_manifest(directory, 0)
    assert before is not None and before.sealed is not None and before.isolated == ((7, 8),)

    if not linked:
        monkeypatch.setattr(os, "link", _no_links)
    made = back_up(data)
    monkeypatch.undo()
    assert verify_backup(made.path).damage == []
    for link in (False, True):
        target = tmp_path / f"restored-{link}"
        restore_backup(made.path, target, link=link)
        restored = layout.partition_directory(target, 0, 0, 0)
        after = read_manifest(restored, 0)
        assert layout.segment_log(restored, 0).read_bytes() == log
        assert after is not None and after.isolated == before.isolated
