"""Segments that are compressed: what readers, recovery and surveys find in them is what was in the plain log, at every
step of the change, and a damaged block costs the records that lie in it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from shardd.backup.create import Options
from shardd.backup.restore import restore_backup
from shardd.backup.verify import verify_backup
from shardd.config.codecs import LEVELS_MAX
from shardd.engine import SegmentInfo, _native
from shardd.log import layout
from shardd.log.blocks import BLOCK_BYTES, CODECS, ENTRY_BYTES, HEAD_BYTES, Codec
from shardd.log.compressing import Outcome, finish, prepare, put_in_place
from shardd.log.damage_survey import survey_segment
from shardd.log.diagnosis import diagnose_partition, isolate
from shardd.log.manifest import read_manifest, write_manifest
from shardd.log.recovery import open_partition
from shardd.log.sealing import seal_segment
from shardd.log.segment_reader import open_log, segment_starts
from shardd.log.segment_scrub import SegmentScrub
from shardd.log.verified_slices import SegmentExtent
from shardd.runtime.boot import boot_id
from shardd.runtime.throttle import StoppedError, Throttle
from tests.unit import log_files
from tests.unit.backup_data import DataDirectory, back_up, kept_log
from tests.unit.log_files import INCARNATION

SEALED = log_files.segment(0, [200] * 10, 1000, payload_bytes=200)
COUNT = SEALED.count
ACTIVE = log_files.segment(COUNT, [2, 3], 2000)
ROWS = [
    SegmentInfo((0, len(SEALED.log), COUNT, 1000, 1009, 0, 1, 0)),
    SegmentInfo((COUNT, len(ACTIVE.log), 5, 2000, 2001, 0, 0, 0)),
]
ZSTD = Codec("zstd", 3)


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A sealed segment, and one that grows."""
    directory = layout.partition_directory(tmp_path / "data", 1, 2, 0)
    log_files.write(directory, SEALED, ACTIVE)
    write_manifest(directory, log_files.manifest_of(SEALED))
    write_manifest(directory, replace(log_files.manifest_of(ACTIVE), sealed=None))
    return directory


def compress(directory: Path, codec: Codec = ZSTD) -> None:
    assert prepare(directory, 0, INCARNATION, codec, Throttle()).outcome is Outcome.READY
    assert put_in_place(directory, 0)
    finish(directory, 0)


def blocks_of(directory: Path) -> Path:
    return layout.segment_file(directory, 0, "blocks")


def plain(directory: Path) -> bytes:
    descriptor = open_log(directory, 0)
    try:
        return os.pread(descriptor, len(SEALED.log) + 1, 0)
    finally:
        os.close(descriptor)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def position_of(directory: Path, block: int) -> int:
    entry = blocks_of(directory).read_bytes()[HEAD_BYTES + block * ENTRY_BYTES :]
    return int.from_bytes(entry[:8], "little")


def records_in(block: int) -> tuple[int, int]:
    """Offsets (end exclusive) of the records with a byte in this block."""
    begin, end = block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES
    inside = [k for k in range(COUNT) if SEALED.borders[k] < end and SEALED.borders[k + 1] > begin]
    return inside[0], inside[-1] + 1


@pytest.mark.parametrize("name", CODECS)
def test_the_plain_log_is_what_it_was(partition: Path, name: str) -> None:
    for level in (1, LEVELS_MAX[name]):
        directory = partition.with_name(str(level))
        shutil.copytree(partition, directory)
        compress(directory, Codec(name, level))
        assert plain(directory) == SEALED.log and not layout.segment_log(directory, 0).exists()
        assert blocks_of(directory).stat().st_size < len(SEALED.log) // 2
        usual = _native.recover_partition(os.fspath(directory), INCARNATION, boot_id())
        assert usual is not None and usual.segments == ROWS and usual.unsealed == []
        assert segment_starts(directory) == [0, COUNT]


def test_a_crash_at_every_step_leaves_the_same_messages(partition: Path) -> None:
    def opened_as(rows: list[SegmentInfo], name: str) -> None:
        copy = partition.with_name(name)
        shutil.copytree(partition, copy)
        for _ in range(2):  # what the first start leaves is what the second one finds
            assert open_partition(copy, INCARNATION).segments == rows
            assert plain(copy) == SEALED.log
        assert len({layout.segment_log(copy, 0).exists(), blocks_of(copy).exists()}) == 2
        usual = _native.recover_partition(os.fspath(copy), INCARNATION, boot_id())
        assert (usual is not None and usual.segments == rows) or name == "13"

    before = [SegmentInfo((*ROWS[0][:6], 0, 0)), ROWS[1]]
    fresh = blocks_of(partition).with_suffix(".blocks.tmp")
    fresh.write_bytes(b"half")
    opened_as(before, "10")
    assert prepare(partition, 0, INCARNATION, ZSTD, Throttle()).outcome is Outcome.READY
    opened_as(before, "11")
    fresh.replace(blocks_of(partition))
    opened_as(before, "12")
    blocks_of(partition).replace(fresh)
    manifest = layout.segment_manifest(partition, 0)
    kept = manifest.read_bytes()
    manifest.with_suffix(".manifest.tmp").replace(manifest)  # a power loss may keep the later name alone
    opened_as(before, "13")
    fresh.replace(blocks_of(partition))
    opened_as(ROWS, "14")
    finish(partition, 0)
    opened_as(ROWS, "15")
    assert kept != manifest.read_bytes()


def test_what_is_stopped_or_not_whole_leaves_nothing(partition: Path) -> None:
    before = log_files.tree(partition)
    stopped = Throttle()
    stopped.stop()
    with pytest.raises(StoppedError):
        prepare(partition, 0, INCARNATION, ZSTD, stopped)
    assert log_files.tree(partition) == before
    flip(layout.segment_log(partition, 0), SEALED.borders[7] + 70)
    assert prepare(partition, 0, INCARNATION, ZSTD, Throttle()).outcome is Outcome.DAMAGED
    assert prepare(partition, 0, INCARNATION + 1, ZSTD, Throttle()).outcome is Outcome.NOTHING
    assert prepare(partition, COUNT, INCARNATION, ZSTD, Throttle()).outcome is Outcome.NOTHING
    assert log_files.tree(partition).keys() == before.keys()


def test_a_segment_that_was_deleted_meanwhile_does_not_come_back(partition: Path) -> None:
    assert prepare(partition, 0, INCARNATION, ZSTD, Throttle()).outcome is Outcome.READY
    for suffix in ("log", "index", "manifest"):
        layout.segment_file(partition, 0, suffix).unlink()
    assert not put_in_place(partition, 0)
    assert segment_starts(partition) == [COUNT] and not list(partition.glob("*.tmp"))


def test_random_bytes_stay_plain(tmp_path: Path) -> None:
    stored = log_files.store(0, [[os.urandom(5000) for _ in range(100)]])
    log_files.write(tmp_path, stored)
    write_manifest(tmp_path, log_files.manifest_of(stored))
    for name in CODECS:
        assert prepare(tmp_path, 0, INCARNATION, Codec(name, 1), Throttle()).outcome is Outcome.STAYS
    assert layout.segment_log(tmp_path, 0).exists() and not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("block", [0, 3, (len(SEALED.log) - 1) // BLOCK_BYTES])
@pytest.mark.parametrize("where", ["bytes", "entry"])
def test_a_damaged_block_costs_its_records(partition: Path, block: int, where: str) -> None:
    compress(partition)
    flip(blocks_of(partition), position_of(partition, block) + 5 if where == "bytes" else HEAD_BYTES + 32 * block + 9)
    first, end = records_in(block)
    found = survey_segment(partition, 0, 0, end_offset=COUNT, live_bytes=len(SEALED.log))
    assert [(each.start, each.end) for each in found.damaged] == [(first, end)]
    scrub = SegmentScrub(partition, SegmentExtent(0, len(SEALED.log), COUNT), COUNT, 0, [])
    while not scrub.finished:
        scrub.step()
    scrub.close()
    assert scrub.contradicts
    scrub = SegmentScrub(partition, SegmentExtent(0, len(SEALED.log), COUNT), COUNT, 0, [(first, end)])
    while not scrub.finished:
        scrub.step()
    scrub.close()
    assert not scrub.contradicts
    views = list(diagnose_partition(partition))
    assert [(each.start, each.end) for each in views[0].damaged] == [(first, end)]
    isolate(partition, views[0].damaged)
    manifest = read_manifest(partition, 0)
    assert manifest is not None and manifest.isolated == ((first, end),) and manifest.stored is not None
    assert [(each.start, each.end) for each in open_partition(partition, INCARNATION).damaged] == [(first, end)]


def test_a_scrub_of_a_whole_one_finds_nothing(partition: Path) -> None:
    compress(partition, Codec("lz4", 1))
    scrub = SegmentScrub(partition, SegmentExtent(0, len(SEALED.log), COUNT), COUNT, 0, [])
    while not scrub.finished:
        assert scrub.step() > 0
    scrub.close()
    assert not scrub.contradicts


@pytest.mark.parametrize("lost", ["manifest", "head", "manifest and head", "section"])
def test_what_is_lost_beside_the_blocks_costs_no_message(partition: Path, lost: str) -> None:
    compress(partition)
    manifest = layout.segment_manifest(partition, 0)
    if "head" in lost:
        flip(blocks_of(partition), 20)
    if "manifest" in lost:
        manifest.unlink()
    if lost == "section":
        flip(manifest, 200)
    recovered = open_partition(partition, INCARNATION)
    assert recovered.segments == ROWS and not recovered.damaged and plain(partition) == SEALED.log
    for start in recovered.unsealed:
        seal_segment(partition, start, INCARNATION, Throttle())
    usual = _native.recover_partition(os.fspath(partition), INCARNATION, boot_id())
    assert (usual is not None and usual.segments == ROWS) or lost == "head"


def test_nothing_is_appended_to_it_when_all_behind_it_is_gone(partition: Path) -> None:
    compress(partition)
    for suffix in ("log", "index", "manifest"):
        layout.segment_file(partition, COUNT, suffix).unlink()
    recovered = open_partition(partition, INCARNATION)
    assert recovered.segments == [ROWS[0], SegmentInfo((COUNT, 0, 0, 1009, 1009, 0, 0, 0))] and not recovered.damaged
    assert plain(partition) == SEALED.log


def test_a_backup_has_the_plain_log_and_shares_it_with_one_made_before(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    directory, incarnation = data.partition(0), data.incarnation(0)
    content = layout.segment_log(directory, 0).read_bytes()
    assert seal_segment(directory, 0, incarnation, Throttle()) == (len(content), None)
    back_up(data)
    assert prepare(directory, 0, incarnation, ZSTD, Throttle()).outcome is Outcome.READY
    assert put_in_place(directory, 0)
    finish(directory, 0)
    second = back_up(data)
    alone = back_up(data, Options(full=True))
    for made, kept in ((second, "shared"), (alone, "copied")):
        assert made.backup.partitions[0].segments[0].kept == kept
        assert kept_log(made, 0).read_bytes() == content
        assert verify_backup(made.path).damage == []
    restored = tmp_path / "restored"
    restore_backup(alone.path, restored)
    assert layout.segment_log(layout.partition_directory(restored, 0, 0, 0), 0).read_bytes() == content
