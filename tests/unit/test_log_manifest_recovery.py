"""Recovery with manifests: what they say is trusted only as far as the files bear it out, what is behind the checkpoint
is verified, no record counts that is older than its segment, and a damaged manifest loses nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import xxhash
from msgspec.structs import replace

from shardd.engine import SegmentInfo, _native
from shardd.log import layout
from shardd.log.manifest import (
    Checkpoint,
    Manifest,
    Sealed,
    UnknownManifestError,
    encode_manifest,
    read_manifest,
    write_manifest,
)
from shardd.log.offsets_table import OFFSET_CONSUMER, OFFSET_GROUP, StoredOffset
from shardd.log.recovered import Recovered
from shardd.log.recovery import open_partition
from shardd.log.sealing import seal_segment
from shardd.log.stored_offsets import write_table
from shardd.runtime.boot import boot_id
from shardd.runtime.throttle import StoppedError, Throttle
from tests.unit.log_files import INCARNATION, Stored, segment, tree, write

SEALED = segment(0, [2, 1], timestamp=1000, payload_bytes=5)
ACTIVE = segment(3, [2, 2], timestamp=2000, payload_bytes=5)
SEGMENTS = [
    SegmentInfo((0, len(SEALED.log), 3, 1000, 1001, 0, 0, 0)),
    SegmentInfo((3, len(ACTIVE.log), 4, 2000, 2001, 0, 0, 0)),
]
READ_ONLY = 4027


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return layout.partition_directory(tmp_path, 3, 2, 1)


def checkpoint(stored: Stored, records: int) -> Checkpoint:
    entry = stored.index[16 * (records - 1) : 16 * records]
    first, last = (int.from_bytes(each[8:16], "little") for each in (stored.index[:16], entry))
    return Checkpoint(stored.borders[records], records, first, last)


def manifest_of(stored: Stored, records: int = 0, born_at: int = 1) -> Manifest:
    return Manifest(INCARNATION, stored.start, born_at, 0, checkpoint(stored, records) if records else None)


def write_whole(directory: Path) -> None:
    """A sealed and an active segment with its checkpoint in the middle, as a running server leaves them."""
    write(directory, SEALED, ACTIVE)
    write_manifest(directory, manifest_of(SEALED, 3))
    assert seal_segment(directory, 0, INCARNATION, Throttle()) == (len(SEALED.log), None)
    write_manifest(directory, manifest_of(ACTIVE, 2))


def usual(directory: Path) -> bool:
    return _native.recover_partition(str(directory), INCARNATION, boot_id()) is not None


def test_a_healthy_partition_is_opened_in_one_call(directory: Path) -> None:
    write_whole(directory)
    before = tree(directory)
    assert usual(directory)
    recovered = open_partition(directory, INCARNATION)
    assert recovered == Recovered(segments=SEGMENTS)
    assert recovered.scanned_bytes == ACTIVE.borders[4] - ACTIVE.borders[2]
    assert tree(directory) == before


def test_both_ways_find_the_same(directory: Path) -> None:
    """A foreign file makes the careful way do it: canary that the two are really different."""
    write_whole(directory)
    write_table(directory, INCARNATION, [StoredOffset(OFFSET_GROUP, 7, 2, 1), StoredOffset(OFFSET_CONSUMER, 7, 2, 1)])
    for index in (ACTIVE.index, ACTIVE.index[:-32], ACTIVE.index + bytes(16), ACTIVE.index[:-16] + bytes(16)):
        layout.segment_index(directory, 3).write_bytes(index)
        found = []
        for foreign in (False, True):
            if foreign:
                (directory / "foreign").touch()
            layout.segment_index(directory, 3).write_bytes(index)
            assert usual(directory) is not foreign
            layout.segment_index(directory, 3).write_bytes(index)
            recovered = open_partition(directory, INCARNATION)
            assert layout.segment_index(directory, 3).read_bytes() == ACTIVE.index
            found.append((recovered.segments, recovered.groups, recovered.scanned_bytes, recovered.state))
        assert found[0] == found[1] and found[0][1] == [7]
        (directory / "foreign").unlink()


def test_the_last_checkpoint_of_the_engine_is_the_durable_end(directory: Path) -> None:
    """Sealing syncs its own segment only: its checkpoint says nothing about those before it."""
    write_whole(directory)
    for foreign in (False, True):
        if foreign:
            (directory / "foreign").touch()
        for records in (0, 2):
            write_manifest(directory, manifest_of(ACTIVE, records))
            assert usual(directory) is not foreign
            assert open_partition(directory, INCARNATION).durable_end == (3 + records if records else 0)


def test_what_is_before_the_checkpoint_is_not_read(directory: Path) -> None:
    """Reads verify it; here the flip shows that the recovery did not."""
    write_whole(directory)
    path = layout.segment_log(directory, 3)
    content = bytearray(ACTIVE.log)
    content[10] ^= 1
    path.write_bytes(content)
    assert open_partition(directory, INCARNATION).segments == SEGMENTS
    content[ACTIVE.borders[2] + 10] ^= 1
    path.write_bytes(content)
    assert open_partition(directory, INCARNATION) != Recovered(segments=SEGMENTS)


def test_torn_at_every_byte_behind_the_checkpoint(directory: Path) -> None:
    write_whole(directory)
    for length in range(ACTIVE.borders[2], len(ACTIVE.log)):
        layout.segment_log(directory, 3).write_bytes(ACTIVE.log[:length])
        layout.segment_index(directory, 3).write_bytes(ACTIVE.index)
        recovered = open_partition(directory, INCARNATION)
        whole = max(number for number, border in enumerate(ACTIVE.borders) if border <= length)
        assert recovered.segments[1][:3] == (3, ACTIVE.borders[whole], whole)
        assert (recovered.state, recovered.damaged) == (0, [])
        assert layout.segment_log(directory, 3).read_bytes() == ACTIVE.log[: ACTIVE.borders[whole]]
        assert layout.segment_index(directory, 3).read_bytes() == ACTIVE.index[: 16 * whole]
        torn = layout.segment_torn(directory, 3, 0)
        if length > ACTIVE.borders[whole]:
            assert torn.read_bytes() == ACTIVE.log[ACTIVE.borders[whole] : length]
            torn.unlink()
        assert usual(directory)


@pytest.mark.parametrize("sparse", [True, False])
def test_space_allocated_ahead_is_cut_by_both_ways(directory: Path, sparse: bool) -> None:
    write_whole(directory)
    path, zeros = layout.segment_log(directory, 3), 70_000
    for behind, is_usual in ((b"", True), (b"x", False)):
        path.write_bytes(ACTIVE.log + (b"" if sparse else bytes(zeros)))
        os.truncate(path, len(ACTIVE.log) + zeros)
        with path.open("ab") as log:
            log.write(behind)
        assert usual(directory) is is_usual
        assert open_partition(directory, INCARNATION).segments == SEGMENTS
        assert path.read_bytes() == ACTIVE.log
        assert layout.segment_torn(directory, 3, 0).exists() is not is_usual
    write_whole(directory)
    layout.segment_log(directory, 0).write_bytes(SEALED.log + bytes(zeros))
    assert not usual(directory)  # of a sealed segment it is none


def test_a_log_shorter_than_its_checkpoint_is_damage_never_less(directory: Path) -> None:
    """The offsets that were acknowledged and are gone are withheld; none of them is used again."""
    write_whole(directory)
    for length in range(ACTIVE.borders[2]):
        layout.segment_log(directory, 3).write_bytes(ACTIVE.log[:length])
        layout.segment_index(directory, 3).write_bytes(ACTIVE.index)
        recovered = open_partition(directory, INCARNATION)
        left = max(number for number, border in enumerate(ACTIVE.borders) if border <= length)
        assert (recovered.damaged, recovered.state) == ([(3 + left, 5, False)], 0)
        assert [row[:3] for row in recovered.segments[1:]] == [(3, ACTIVE.borders[left], left), (5, 0, 0)]
        assert not layout.segment_torn(directory, 3, 0).exists()
        assert layout.segment_log(directory, 3).read_bytes() == ACTIVE.log[:length]
        again = open_partition(directory, INCARNATION)
        assert (again.segments[-1], again.damaged) == (recovered.segments[-1], recovered.damaged)
        for suffix in ("log", "index", "manifest"):
            (directory / f"{5:020}.{suffix}").unlink()


@pytest.mark.parametrize("length", [0, 10, len(SEALED.log) - 1])
def test_a_sealed_log_shorter_than_its_manifest_is_damage(directory: Path, length: int) -> None:
    write_whole(directory)
    layout.segment_log(directory, 0).write_bytes(SEALED.log[:length])
    recovered = open_partition(directory, INCARNATION)
    assert recovered.damaged and recovered.damaged[-1][1] == 3
    assert recovered.segments[-1] == SEGMENTS[-1]


@pytest.mark.parametrize("with_manifest", [True, False])
def test_a_stale_record_with_the_very_next_offset_is_not_taken(directory: Path, with_manifest: bool) -> None:
    """What the space of a file held before: in later segments, and behind records of the first one."""
    stale = segment(7, [2], timestamp=1500)
    write(directory, SEALED, ACTIVE)
    if with_manifest:
        write_whole(directory)
    layout.segment_log(directory, 3).write_bytes(ACTIVE.log + stale.log)
    recovered = open_partition(directory, INCARNATION)
    assert (recovered.segments, recovered.state, recovered.damaged) == (SEGMENTS, 0, [])
    assert layout.segment_torn(directory, 3, 0).read_bytes() == stale.log
    assert layout.segment_log(directory, 3).read_bytes() == ACTIVE.log


@pytest.mark.parametrize("start", [0, 3])
def test_a_stale_record_in_a_new_segment_is_older_than_its_birth(directory: Path, start: int) -> None:
    """Nothing but born_at tells: the offset is right and no record is before it (or an older one, for start 3)."""
    stale = segment(start, [2], timestamp=1500)
    before = [SEALED] if start else []
    write(directory, *before, stale)
    for stored in before:
        write_manifest(directory, manifest_of(stored, 3))
    write_manifest(directory, manifest_of(stale, born_at=2000))
    assert not usual(directory)
    recovered = open_partition(directory, INCARNATION)
    assert recovered.segments[-1] == (start, 0, 0, 2000, 2000, 0, 0, 0)  # and the next record will not be older
    assert layout.segment_torn(directory, start, 0).read_bytes() == stale.log
    # canary: born a little earlier they are records
    layout.segment_log(directory, start).write_bytes(stale.log)
    write_manifest(directory, manifest_of(stale, born_at=1500))
    assert open_partition(directory, INCARNATION).segments[-1][2] == 2


@pytest.mark.parametrize("start", [0, 3])
def test_every_flipped_byte_of_a_manifest_loses_nothing(directory: Path, start: int) -> None:
    write_whole(directory)
    path = layout.segment_manifest(directory, start)
    content = path.read_bytes()
    careful = 0
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        careful += not usual(directory)
        recovered = open_partition(directory, INCARNATION)
        assert (recovered.segments, recovered.state, recovered.damaged) == (SEGMENTS, 0, [])
        assert tree(directory)[f"{start:020}.log"] == (SEALED if start == 0 else ACTIVE).log
    assert careful >= 64


@pytest.mark.parametrize("start", [0, 3])
def test_every_shorter_manifest_loses_nothing(directory: Path, start: int) -> None:
    write_whole(directory)
    path = layout.segment_manifest(directory, start)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        recovered = open_partition(directory, INCARNATION)
        assert (recovered.segments, recovered.state, recovered.damaged) == (SEGMENTS, 0, [])


def test_a_lying_checkpoint_loses_nothing(directory: Path) -> None:
    """Whole, but not of this log: the index does not agree, so everything is scanned."""
    for lie in (Checkpoint(100, 1, 1, 1), Checkpoint(ACTIVE.borders[3], 2, 2000, 2000), Checkpoint(1 << 40, 2, 1, 1)):
        write_whole(directory)
        write_manifest(directory, replace(manifest_of(ACTIVE), checkpoint=lie))
        recovered = open_partition(directory, INCARNATION)
        assert (recovered.segments, recovered.state) == (SEGMENTS, 0)


def test_a_manifest_of_another_incarnation_is_none(directory: Path) -> None:
    write_whole(directory)
    write_manifest(directory, replace(manifest_of(ACTIVE, born_at=9000), incarnation=INCARNATION + 1))
    recovered = open_partition(directory, INCARNATION)
    assert recovered.segments == SEGMENTS
    assert "incarnation" in recovered.notes[0]
    assert read_manifest(directory, 3) == Manifest(INCARNATION, 3)


def test_a_later_version_keeps_the_partition_closed_and_unchanged(directory: Path) -> None:
    for start in (0, 3):
        write_whole(directory)
        content = bytearray(layout.segment_manifest(directory, start).read_bytes())
        content[8] = 3
        content[56:64] = xxhash.xxh3_64_digest(content[:56])[::-1]
        layout.segment_manifest(directory, start).write_bytes(content)
        layout.segment_log(directory, 3).write_bytes(ACTIVE.log + b"torn")
        before = tree(directory)
        with pytest.raises(UnknownManifestError, match="its version is 3"):
            open_partition(directory, INCARNATION)
        assert tree(directory) == before


def test_a_directory_without_manifests_gets_them(directory: Path) -> None:
    write(directory, SEALED, ACTIVE)
    recovered = open_partition(directory, INCARNATION)
    assert recovered == Recovered(segments=SEGMENTS, unsealed=[0])
    assert seal_segment(directory, 0, INCARNATION, Throttle()) == (len(SEALED.log), None)
    sealed = read_manifest(directory, 0)
    assert sealed is not None and sealed.sealed is not None
    assert usual(directory)
    assert open_partition(directory, INCARNATION) == Recovered(segments=SEGMENTS)


def test_the_birth_of_a_segment_cut_short(directory: Path) -> None:
    """The manifest comes first: it may lie alone behind the last log, and be empty or torn."""
    write_whole(directory)
    whole = encode_manifest(Manifest(INCARNATION, 7, 5000, 0))
    for content in (b"", whole[:70], whole):
        layout.segment_manifest(directory, 7).write_bytes(content)
        assert usual(directory)
        assert open_partition(directory, INCARNATION) == Recovered(segments=SEGMENTS)
    layout.segment_log(directory, 7).touch()
    recovered = open_partition(directory, INCARNATION)  # and no index yet
    assert recovered.segments == [*SEGMENTS, (7, 0, 0, 5000, 5000, 0, 0, 0)]
    assert recovered.unsealed == [3]


def test_a_segment_before_its_seal_is_scanned_from_its_checkpoint(directory: Path) -> None:
    write_whole(directory)
    write_manifest(directory, manifest_of(SEALED, 2))
    recovered = open_partition(directory, INCARNATION)
    assert (recovered.segments, recovered.unsealed) == (SEGMENTS, [0])
    flipped = bytearray(SEALED.log)
    flipped[SEALED.borders[2] + 70] ^= 1
    layout.segment_log(directory, 0).write_bytes(flipped)
    recovered = open_partition(directory, INCARNATION)
    assert (recovered.damaged, recovered.unsealed) == ([(2, 3, False)], [])


def test_sealing(directory: Path) -> None:
    write(directory, SEALED, ACTIVE)
    write_manifest(directory, replace(manifest_of(SEALED), others=((77, b"kept"),)))
    assert seal_segment(directory, 0, INCARNATION + 1, Throttle()) == (0, None)  # purged meanwhile
    assert seal_segment(directory, 99, INCARNATION, Throttle()) == (0, None)  # deleted meanwhile
    assert seal_segment(directory.parent / "9", 0, INCARNATION, Throttle()) == (0, None)
    assert seal_segment(directory, 0, INCARNATION, Throttle()) == (len(SEALED.log), None)
    manifest = read_manifest(directory, 0)
    digest = xxhash.xxh3_128_digest(SEALED.log)
    assert manifest == replace(
        manifest_of(SEALED, 3), sealed=Sealed(len(SEALED.log), 3, 1000, 1001, digest), others=((77, b"kept"),)
    )
    assert seal_segment(directory, 0, INCARNATION, Throttle()) == (0, None)  # already


def test_a_sealing_that_is_stopped_leaves_no_trace_and_is_done_again(directory: Path) -> None:
    write(directory, SEALED, ACTIVE)
    write_manifest(directory, manifest_of(SEALED, 3))
    before, throttle = tree(directory), Throttle()
    throttle.stop()
    with pytest.raises(StoppedError):
        seal_segment(directory, 0, INCARNATION, throttle)
    assert tree(directory) == before
    assert open_partition(directory, INCARNATION).unsealed == [0], "the next start finds it"
    assert seal_segment(directory, 0, INCARNATION, Throttle()) == (len(SEALED.log), None)


@pytest.mark.parametrize("position", [0, 100, -1])
def test_a_damaged_segment_is_not_sealed(directory: Path, position: int) -> None:
    write(directory, SEALED, ACTIVE)
    write_manifest(directory, manifest_of(SEALED, 3))
    damaged = bytearray(SEALED.log)
    damaged[position] ^= 1
    layout.segment_log(directory, 0).write_bytes(damaged)
    before = tree(directory)
    _, refusal = seal_segment(directory, 0, INCARNATION, Throttle())
    assert refusal is not None and "is not sealed" in refusal
    assert tree(directory) == before


def test_a_crash_at_every_step_of_sealing_loses_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every system call that can leave something behind fails in turn; what is there then opens as before."""
    steps = ("fdatasync", "fsync", "rename", "replace", "open")
    failed = 0
    for name in steps:
        for at in range(12):
            write_whole(directory)
            write_manifest(directory, manifest_of(SEALED, 2))
            original = getattr(os, name)
            calls = 0

            def fail(*arguments: object, **keywords: object) -> object:
                nonlocal calls
                calls += 1
                if calls == at + 1:  # noqa: B023
                    raise OSError(5, "planted")
                return original(*arguments, **keywords)  # noqa: B023

            with monkeypatch.context() as patch:
                patch.setattr(os, name, fail)
                try:
                    seal_segment(directory, 0, INCARNATION, Throttle())
                except OSError:
                    failed += 1
            recovered = open_partition(directory, INCARNATION)
            assert (recovered.segments, recovered.state, recovered.damaged) == (SEGMENTS, 0, [])
            if calls <= at:
                break
    assert failed >= 6


@pytest.mark.parametrize("records", [0, 3])
def test_zeros_behind_the_checkpoint_do_not_set_the_clock_back(records: int, directory: Path) -> None:
    """Level durable allocates ahead. What comes next must not be older than the birth of its segment."""
    write(directory, ACTIVE)
    log, stored = layout.segment_log(directory, ACTIVE.start), manifest_of(ACTIVE, records, born_at=1990)
    write_manifest(directory, stored)
    log.write_bytes(ACTIVE.log[: ACTIVE.borders[records]] + bytes(5000))
    layout.segment_index(directory, ACTIVE.start).write_bytes(ACTIVE.index[: 16 * records])
    expected = 1990 if stored.checkpoint is None else stored.checkpoint.last_timestamp
    for _ in range(2):
        [found] = open_partition(directory, INCARNATION).segments
        assert (found.records, found.last_timestamp) == (records, expected)
    assert log.stat().st_size == ACTIVE.borders[records]
