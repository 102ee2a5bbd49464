"""A file beside a log that cannot be read costs its own content in a backup, never the backup."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardd.backup.format import read_backup
from shardd.backup.verify import verify_backup
from shardd.log import layout
from shardd.log.imported import write_imported
from shardd.log.offsets_table import BYTES_MAX
from tests.crash.fault_control import FaultControl
from tests.unit.backup_data import SEGMENT_COUNT, DataDirectory, back_up


@pytest.mark.parametrize(
    ("name", "size_bytes"), [(layout.CONSUMER_OFFSETS, BYTES_MAX + 1), (layout.IMPORTED, 5), (layout.IMPORTED, 1 << 30)]
)
def test_an_unusable_side_file_is_a_warning_of_the_backup(tmp_path: Path, name: str, size_bytes: int) -> None:
    data = DataDirectory(tmp_path / "data")
    path = data.partition(0) / name
    path.touch()
    os.truncate(path, size_bytes)
    made = back_up(data)
    assert any(name in warning for warning in made.backup.warnings)
    assert made.backup.partitions[0].end_offset == 3 * SEGMENT_COUNT
    assert verify_backup(made.path).damage == []


@pytest.mark.parametrize(
    ("version", "name"),
    [(2, layout.CONSUMER_OFFSETS), (1, f"{layout.OFFSETS}/{layout.CONSUMERS}/7"), (2, layout.IMPORTED)],
)
def test_a_side_file_that_the_device_does_not_give_is_a_warning_of_the_backup(
    tmp_path: Path, version: int, name: str
) -> None:
    data = DataDirectory(tmp_path / "data", version)
    path = data.partition(0) / name
    if name == layout.IMPORTED:
        write_imported(data.partition(0), SEGMENT_COUNT)
    assert path.is_file()
    control = FaultControl(tmp_path)
    control.arm("read", f"/{name}$", 1, errno.EIO, for_ever=True)
    command = [sys.executable, "-m", "shardd", "backup", "create", str(tmp_path / "backups"), "--data", str(data.path)]
    made = subprocess.run(command, env=os.environ | control.environment, capture_output=True, text=True, check=False)
    assert control.disarm()[1] > 0
    assert made.returncode == 0, made.stderr
    [backup] = (each.parent for each in (tmp_path / "backups").rglob("backup.json"))
    described = read_backup(backup)
    assert any(name in each for each in described.warnings), described.warnings
    assert described.partitions[0].end_offset == 3 * SEGMENT_COUNT
    assert verify_backup(backup).damage == []
