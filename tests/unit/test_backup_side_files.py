"""A file beside a log that cannot be read costs its own content in a backup, never the backup."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardd.backup.format import Backup, read_backup
from shardd.backup.verify import verify_backup
from shardd.log import layout
from shardd.log.imported import write_imported
from shardd.log.offsets_table import BYTES_MAX
from shardd.log.sealing import seal_segment
from shardd.runtime.throttle import Throttle
from tests.crash.fault_control import FaultControl
from tests.unit.backup_data import SEGMENT_COUNT, DataDirectory, back_up


@pytest.mark.parametrize(
    ("name", "size_bytes"),
    [
        (layout.CONSUMER_OFFSETS, BYTES_MAX + 1),
        (layout.IMPORTED, 5),
        (layout.IMPORTED, 1 << 30),
        (f"{0:020d}.manifest", 1 << 30),
    ],
)
def test_an_unusable_side_file_is_a_warning_of_the_backup(tmp_path: Path, name: str, size_bytes: int) -> None:
    data = DataDirectory(tmp_path / "data")
    path = data.partition(0) / name
    path.touch()
    os.truncate(path, size_bytes)
    made = back_up(data)
    assert any(str(path) in warning for warning in made.backup.warnings)
    assert not any("/proc/" in warning for warning in made.backup.warnings)
    assert made.backup.partitions[0].end_offset == 3 * SEGMENT_COUNT
    assert verify_backup(made.path).damage == []


FIRST_INDEX, FIRST_MANIFEST = (f"{0:020d}.{kind}" for kind in ("index", "manifest"))
WHOLE = {  # what the rest of the backup tells of the file
    (2, layout.CONSUMER_OFFSETS): True,
    (1, f"{layout.OFFSETS}/{layout.CONSUMERS}/7"): True,
    (2, layout.IMPORTED): True,
    (2, layout.INCARNATION): True,
    (2, layout.PRODUCERS): False,  # nothing of it is in a backup
    (2, FIRST_INDEX): False,
    (2, FIRST_MANIFEST): True,
}


def backed_up_without(tmp_path: Path, data: DataDirectory, name: str) -> Backup:
    """What `backup create` makes while the device does not give this file of partition 0."""
    control = FaultControl(tmp_path)
    control.arm("read", f"partitions/0/{name}$", 1, errno.EIO, for_ever=True)
    command = [sys.executable, "-m", "shardd", "backup", "create", str(tmp_path / "backups"), "--data", str(data.path)]
    made = subprocess.run(command, env=os.environ | control.environment, capture_output=True, text=True, check=False)
    [backup] = (each.parent for each in (tmp_path / "backups").rglob("backup.json"))
    described = read_backup(backup)
    assert made.returncode == (3 if described.left_out else 0), made.stderr
    assert control.disarm()[1] > 0 or not WHOLE.get((2, name), True)
    assert verify_backup(backup).damage == []
    return described


@pytest.mark.parametrize(("version", "name"), WHOLE)
def test_a_side_file_that_the_device_does_not_give_is_a_warning_of_the_backup(
    tmp_path: Path, version: int, name: str
) -> None:
    data = DataDirectory(tmp_path / "data", version)
    if name == layout.IMPORTED:
        write_imported(data.partition(0), SEGMENT_COUNT)
    else:
        for start in (0, SEGMENT_COUNT):
            assert seal_segment(data.partition(0), start, data.incarnation(0), Throttle())[0] > 0
    path = data.partition(0) / name
    path.touch()
    described = backed_up_without(tmp_path, data, name)
    if WHOLE[version, name]:
        assert any(str(path) in each for each in described.warnings), described.warnings
    assert not any("/proc/" in each for each in described.warnings)
    assert not described.left_out
    assert described.partitions[0].end_offset == 3 * SEGMENT_COUNT


def test_a_partition_whose_marker_nothing_tells_is_left_out_and_the_others_are_taken(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    described = backed_up_without(tmp_path, data, layout.INCARNATION)
    assert len(described.left_out) == 1 and "Input/output error" in described.left_out[0]
    assert str(data.partition(0)) in described.left_out[0] and "/proc/" not in described.left_out[0]
    assert {each.partition: each.end_offset for each in described.partitions}[1] > 0
