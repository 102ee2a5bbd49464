"""Backups that earlier versions have made: still whole, and restored to what they were made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardd.backup.format import read_backup
from shardd.backup.restore import restore_backup
from shardd.backup.verify import verify_backup
from shardd.log import layout
from shardd.log.recovery import open_partition
from shardd.log.stored_offsets import read_offsets
from tests.support import golden_directory
from tests.support.archives import unpack_fixture
from tests.support.history import incarnation_in, without_history

BACKUPS = Path(__file__).parent / "backups"
SOURCES = {"v1": "v2", "v2": "v3"}  # format version of the backup -> the golden data directory that it was made of
KEPT = (".log", ".manifest", "consumer-offsets", "state")


def contents(root: Path) -> dict[str, object]:
    """What a restore gives back."""
    return {name: content for name, content in without_history(root).items() if name.endswith(KEPT)}


def test_every_version_is_covered() -> None:
    assert {path.name.partition(".")[0] for path in BACKUPS.glob("*.tar.xz")} == SOURCES.keys()


@pytest.mark.parametrize("version", SOURCES)
def test_a_backup_of_an_earlier_version_is_restored(tmp_path: Path, version: str) -> None:
    unpack_fixture(BACKUPS / f"{version}.tar.xz", tmp_path)
    path = tmp_path / "backup"
    backup = read_backup(path)
    assert f"v{backup.format_version}" == version
    assert verify_backup(path).damage == []
    restore_backup(path, tmp_path / "restored")
    original = golden_directory.unpack(SOURCES[version], tmp_path)
    assert contents(tmp_path / "restored") == contents(original)
    segments = 0
    for partition in backup.partitions:
        directory = layout.partition_directory(tmp_path / "restored", *partition.ids)
        recovered = open_partition(directory, incarnation_in(tmp_path / "restored"))
        assert (recovered.state, recovered.notes) == (0, [])
        stored, notes = read_offsets(directory, incarnation_in(tmp_path / "restored"))
        assert sorted(each[:3] for each in stored) == sorted(partition.offsets) and not notes
        assert all(each.used_us for each in stored)  # none has a time in the backup: used at this start
        segments += len(recovered.segments)
    assert segments > len(backup.partitions) / 2
