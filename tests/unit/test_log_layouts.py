"""A segment whose manifest names a layout that this version does not know: every tool that reads logs refuses it with
the same error, tells which layout it is, and changes no byte."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash
from msgspec.structs import replace
from typer.testing import CliRunner

from shardd.backup.format import BackupError, file_digest
from shardd.backup.partition import Taker, UnsettledError
from shardd.backup.restore import restore_backup
from shardd.backup.verify import verify_backup
from shardd.cli.main import app
from shardd.engine import _native
from shardd.engine.record_faults import RecordFault
from shardd.log import layout
from shardd.log.damage import DamagedRange
from shardd.log.damage_survey import survey_segment
from shardd.log.diagnosis import diagnose_partition, isolate
from shardd.log.manifest import UnknownLayoutError, encode_manifest, read_layout, read_manifest, write_manifest
from shardd.log.recovery import open_partition
from shardd.log.sealing import seal_segment
from shardd.log.segment_layout import PLAIN
from shardd.log.segment_reader import segment_starts
from shardd.log.segment_scrub import SegmentScrub
from shardd.log.segments import check_sealed, scan_segment
from shardd.log.stored_offsets import write_table
from shardd.log.verified_slices import SegmentExtent
from shardd.runtime.boot import boot_id
from shardd.runtime.throttle import Throttle
from tests.unit import log_files
from tests.unit.backup_data import OFFSETS, SEGMENT_COUNT, DataDirectory, back_up, kept_log
from tests.unit.test_backup_hostile import rewritten

FIRST = log_files.segment(0, [15, 5], 1000)
NAMES = {2: "encrypted", 4: "remote", 3: "compressed and encrypted", 16: "bit 16", 10: "encrypted"}


def manifest_with(bits: int, incarnation: int) -> bytes:
    """As format version 2 has it, of the first segment."""
    content = encode_manifest(log_files.manifest_of(FIRST, SEGMENT_COUNT, incarnation=incarnation))
    assert content[8] == 2
    head = content[:12] + bytes([bits]) + content[13:56]
    return head + xxhash.xxh3_64_intdigest(head).to_bytes(8, "little") + content[64:]


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    """Partition 0 has the segment in question, a dense one behind it, and one more. Its stored offsets have a time:
    without one a start would look closer for their sake."""
    made = DataDirectory(tmp_path / "data")
    write_table(made.partition(0), made.incarnation(0), [each._replace(used_us=1) for each in OFFSETS])
    return made


@pytest.fixture(params=["with a .log", "with .blocks", "with an index alone", "with nothing else"])
def partition(request: pytest.FixtureRequest, data: DataDirectory) -> Path:
    path = data.partition(0)
    layout.segment_manifest(path, 0).write_bytes(manifest_with(2, data.incarnation(0)))
    log = layout.segment_log(path, 0)
    if request.param == "with .blocks":
        log.rename(log.with_suffix(".blocks"))
    elif request.param != "with a .log":
        log.unlink()
    if request.param == "with nothing else":
        layout.segment_index(path, 0).unlink()
    return path


def refused(use: Callable[[], object], partition: Path, error: type[Exception] = UnknownLayoutError) -> None:
    before = log_files.tree(partition)
    path = re.escape(layout.segment_manifest(partition, 0).name)
    with pytest.raises(error, match=rf"{path}: this version does not know layout 2 \(encrypted\)"):
        use()
    assert log_files.tree(partition) == before


def test_a_layout_is_refused_by_its_name(data: DataDirectory) -> None:
    for bits, name in NAMES.items():
        layout.segment_manifest(data.partition(0), 0).write_bytes(manifest_with(bits, data.incarnation(0)))
        for read in (read_manifest, read_layout):
            with pytest.raises(UnknownLayoutError, match=rf"layout {bits} \({name}\)"):
                read(data.partition(0), 0)
    layout.segment_manifest(data.partition(0), 0).unlink()
    assert read_layout(data.partition(0), 0) is PLAIN


def test_a_recovery_keeps_the_partition_closed(data: DataDirectory, partition: Path) -> None:
    assert _native.recover_partition(str(partition), data.incarnation(0), boot_id()) is None
    refused(lambda: open_partition(partition, data.incarnation(0)), partition)
    refused(lambda: scan_segment(partition, 0, 0), partition)
    if layout.segment_index(partition, 0).exists():
        refused(lambda: check_sealed(partition, 0, SEGMENT_COUNT, 0), partition)


def test_the_scrubber_does_not_read_it(partition: Path) -> None:
    extent = SegmentExtent(0, len(FIRST.log), SEGMENT_COUNT)
    refused(lambda: SegmentScrub(partition, extent, SEGMENT_COUNT, 0, ()), partition)


def test_a_survey_neither_reads_it_nor_writes_its_index(partition: Path) -> None:
    layout.segment_index(partition, 0).write_bytes(b"")  # which a survey would write again
    refused(lambda: survey_segment(partition, 0, 0, end_offset=SEGMENT_COUNT), partition)


def test_it_is_not_sealed(data: DataDirectory, partition: Path) -> None:
    refused(lambda: seal_segment(partition, 0, data.incarnation(0), Throttle()), partition)


def test_the_doctor_lists_no_other_segment_as_if_it_were_all(data: DataDirectory, partition: Path) -> None:
    refused(lambda: list(diagnose_partition(partition)), partition)
    before = log_files.tree(partition)
    for more in ([], ["--repair", "--yes"]):
        result = CliRunner().invoke(app, ["doctor", "log", str(data.path), *more])
        assert result.exit_code == 1, result.output
        assert "does not know layout 2 (encrypted)" in result.output
        assert "0/0/1  0 to 4" in result.output  # the next partition is read
        assert log_files.tree(partition) == before


def test_nothing_in_it_is_isolated(partition: Path) -> None:
    damaged = DamagedRange(0, 3, 5, 100, 200, RecordFault.BAD_CHECKSUM)
    refused(lambda: isolate(partition, [damaged]), partition)


def test_a_backup_leaves_the_partition_out_and_says_why(data: DataDirectory, partition: Path, tmp_path: Path) -> None:
    taker = Taker(data.path, tmp_path / "backup", None, Throttle())
    refused(lambda: taker.take((0, 0, 0), data.incarnation(0)), partition, UnsettledError)


def test_a_backup_that_has_such_a_segment_is_neither_whole_nor_restored(data: DataDirectory, tmp_path: Path) -> None:
    layout.segment_manifest(data.partition(0), 0).write_bytes(b"said nothing")
    made = back_up(data)
    kept = kept_log(made, 0).with_suffix(".manifest")
    kept.chmod(0o600)
    kept.write_bytes(manifest_with(2, data.incarnation(0)))
    entry = {"bytes": kept.stat().st_size, "digest": file_digest(xxhash.xxh3_128_digest(kept.read_bytes()))}

    def change(content: Any) -> None:
        content["partitions"][0]["segments"][0]["manifest"] = entry

    rewritten(made, change)
    sentence = f"{kept}: this version does not know layout 2 (encrypted)"
    assert verify_backup(made.path).damage == [sentence]
    with pytest.raises(BackupError, match=re.escape(sentence)):
        restore_backup(made.path, tmp_path / "restored")
    assert not (tmp_path / "restored" / "streams").exists()


def test_segments_that_can_be_read_are_told(data: DataDirectory) -> None:
    starts = [0, SEGMENT_COUNT, 2 * SEGMENT_COUNT]
    path = data.partition(0)
    assert segment_starts(path) == starts
    layout.segment_manifest(path, 60).write_bytes(b"damaged")  # one whose log is still to be made
    assert segment_starts(path) == starts


def test_one_behind_the_last_log_is_not_written_over_by_the_next_segment(data: DataDirectory) -> None:
    path, incarnation = data.partition(0), data.incarnation(0)
    for start in (0, SEGMENT_COUNT, 2 * SEGMENT_COUNT):
        stored = log_files.segment(start, [15, 5], 1000 + start)
        manifest = log_files.manifest_of(stored, incarnation=incarnation)
        write_manifest(path, manifest if start < 2 * SEGMENT_COUNT else replace(manifest, sealed=None))
    ahead = layout.segment_manifest(path, 3 * SEGMENT_COUNT)
    ahead.write_bytes(b"")  # a birth that was cut short
    assert _native.recover_partition(str(path), incarnation, boot_id()) is not None
    ahead.write_bytes(manifest_with(4, incarnation))
    before = log_files.tree(path)
    assert _native.recover_partition(str(path), incarnation, boot_id()) is None
    with pytest.raises(UnknownLayoutError, match=r"layout 4 \(remote\)"):
        open_partition(path, incarnation)
    assert log_files.tree(path) == before
