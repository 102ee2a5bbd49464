"""A writer of a file of the data directory makes nothing that its readers refuse: it says so before (docs/files.md)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from shardd.backup import format as backup_format
from shardd.backup.create import create_backup
from shardd.backup.format import BackupError, read_backup
from shardd.engine import _native
from shardd.log import layout, unproven_tail
from shardd.log.manifest import Manifest, read_manifest, write_manifest
from shardd.log.offsets_table import BYTES_MAX, ENTRY_BYTES, HEAD_BYTES, PLACES_MAX
from shardd.metadata.log_file import FILE_NAME, read_log
from shardd.metadata.snapshot import encode_snapshot, read_snapshot, snapshot_path, write_snapshot
from shardd.metadata.wal import AppendError, MetadataLog
from shardd.protocol.errors import Status
from shardd.runtime import disk
from shardd.runtime.regular_files import SMALL_BYTES_MAX, read_regular
from tests.unit.backup_data import DataDirectory, back_up
from tests.unit.test_metadata_snapshot import state_at
from tests.unit.test_metadata_wal import encoded

OTHER_TAG: Final = 77  # of a section that this version keeps as it is


def test_metadata_log_refuses_a_change_that_its_reader_would_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is that of the one check of both."""
    path, chain = tmp_path / FILE_NAME, [data for data, _ in encoded(4)]
    log, _ = MetadataLog.open(path)
    for data in chain[:3]:
        log.append(data)
    size = path.stat().st_size
    monkeypatch.setattr(disk, "FILE_BYTES_MAX", size + len(chain[3]) - 1)
    with pytest.raises(AppendError, match="more than such a file can have") as refused:
        log.append(chain[3])
    assert refused.value.status == Status.CANNOT_WRITE_TO_FILE
    assert path.stat().st_size == size
    assert len(read_log(path).records) == 3
    monkeypatch.setattr(disk, "FILE_BYTES_MAX", size + len(chain[3]))
    log.append(chain[3])
    assert len(read_log(path).records) == 4
    log.close()


def test_metadata_snapshot_is_not_written_where_its_reader_would_not_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = snapshot_path(tmp_path / FILE_NAME)
    write_snapshot(path, state_at(3), [])
    monkeypatch.setattr(disk, "FILE_BYTES_MAX", len(encode_snapshot(state_at(20), [])) - 1)
    with pytest.raises(OSError, match="more than such a file can have") as refused:
        write_snapshot(path, state_at(20), [])
    assert refused.value.errno == errno.EFBIG
    assert read_snapshot(path).state == state_at(3)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_backup_is_refused_where_no_reader_would_take_its_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataDirectory(tmp_path / "data")
    first = back_up(data)
    size = (first.path / backup_format.BACKUP_NAME).stat().st_size
    monkeypatch.setattr(backup_format, "BACKUP_BYTES_MAX", size - 100)
    with pytest.raises(BackupError, match=f"may have {size - 100}"):
        create_backup(data.path, tmp_path / "others")
    assert not [each for each in (tmp_path / "others").iterdir() if backup_format.is_backup_name(each.name)]
    monkeypatch.undo()
    assert read_backup(first.path).metadata == first.backup.metadata


@pytest.mark.parametrize("write", [layout.write_durably, layout.write_whole])
def test_small_files_are_written_up_to_the_bound_of_their_readers(
    tmp_path: Path, write: Callable[[Path, bytes], None]
) -> None:
    """Markers, info.json, retention.clock, producers.boot, manifests, entries of the spool: all of them use these
    two."""
    path = tmp_path / "small"
    write(path, b"first")
    with pytest.raises(OSError, match="its readers take") as refused:
        write(path, bytes(SMALL_BYTES_MAX + 1))
    assert refused.value.errno == errno.EFBIG
    assert path.read_bytes() == b"first" and [each.name for each in tmp_path.iterdir()] == ["small"]
    write(path, bytes(SMALL_BYTES_MAX))
    assert read_regular(path) == bytes(SMALL_BYTES_MAX)


def test_manifest_that_would_be_too_large_leaves_the_one_before(tmp_path: Path) -> None:
    small = Manifest(7, 0, others=((OTHER_TAG, bytes(100)),))
    write_manifest(tmp_path, small)
    for durable in (True, False):
        with pytest.raises(OSError, match="its readers take"):
            write_manifest(tmp_path, Manifest(7, 0, others=((OTHER_TAG, bytes(SMALL_BYTES_MAX)),)), durable=durable)
        found = read_manifest(tmp_path, 0)
        assert found is not None and found.others == small.others


def test_readers_of_one_file_share_its_bound() -> None:
    assert unproven_tail.BYTES_MAX == _native.PRODUCERS_FILE_READ_MAX > _native.PRODUCERS_FILE_BYTES_MAX
    assert HEAD_BYTES + PLACES_MAX * ENTRY_BYTES == BYTES_MAX
