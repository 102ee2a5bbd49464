"""A file beside a log that cannot be read costs its own content in a backup, never the backup."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardd.backup.verify import verify_backup
from shardd.log import layout
from shardd.log.offsets_table import BYTES_MAX
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
