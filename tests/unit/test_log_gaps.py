"""A directory with gaps that its manifests explain: segments that have no record for some of their offsets. Every
reader of files passes over what is explained, tells what is not, and changes nothing that is right."""

from __future__ import annotations

from pathlib import Path

import pytest
import xxhash
from msgspec.structs import replace

from shardd.engine import SegmentInfo, WithheldRange, _native
from shardd.log import layout
from shardd.log.damage_survey import survey_segment
from shardd.log.diagnosis import diagnose_partition, isolate
from shardd.log.manifest import (
    DamagedManifestError,
    UnknownManifestError,
    decode_manifest,
    encode_manifest,
    read_manifest,
    write_manifest,
)
from shardd.log.recovered import Recovered
from shardd.log.recovery import open_partition
from shardd.log.sealing import seal_segment
from shardd.log.segment_scrub import SegmentScrub
from shardd.log.verified_slices import SegmentExtent
from shardd.runtime.boot import boot_id
from shardd.runtime.throttle import StoppedError, Throttle
from tests.unit.log_files import INCARNATION, Stored, manifest_of, segment, thinned, tree, write

FULL = segment(0, [20, 20], timestamp=1000)
KEPT = [0, 3, 4, 17, 25, 26, 30, 38]  # 39, the last one, is gone, too
THIN = thinned(FULL, KEPT)
ACTIVE = segment(40, [2, 3], timestamp=2000)
DENSE = manifest_of(ACTIVE)
END = 40
ROWS = [
    SegmentInfo((0, len(THIN.log), 8, 1000, 1001, END - 8, 0, 0)),
    SegmentInfo((40, len(ACTIVE.log), 5, 2000, 2001, 0, 0, 0)),
]
THROTTLE = Throttle()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a partition whose first segment has gaps."""
    path = layout.partition_directory(tmp_path, 3, 2, 1)
    write(path, THIN, ACTIVE)
    write_manifest(path, manifest_of(THIN, END))
    write_manifest(path, replace(DENSE, sealed=None))
    return path


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_manifest_of_a_sparse_segment_says_so_and_is_of_version_2() -> None:
    manifest = manifest_of(THIN, END)
    content = encode_manifest(manifest)
    assert (content[8], content[12], manifest.absent) == (2, 8, 32)
    assert decode_manifest(content) == manifest
    assert encode_manifest(replace(manifest_of(FULL), end_offset=0))[8] == 1  # nothing else is of that version
    assert decode_manifest(encode_manifest(manifest_of(FULL, END))) == manifest_of(FULL, END)


def _head(content: bytes, at: int, value: bytes) -> bytes:
    head = content[:at] + value + content[at + len(value) : 56]
    return head + xxhash.xxh3_64_digest(head)[::-1] + content[64:]


def _slot(content: bytes) -> bytes:
    slot = content[64:112] + b"\x09" + content[113:120]
    return content[:64] + slot + xxhash.xxh3_64_digest(slot)[::-1] + content[128:]


def test_what_a_manifest_of_version_2_says_and_is_not_known_keeps_the_partition_closed(directory: Path) -> None:
    content = encode_manifest(manifest_of(THIN, END))
    must_know = encode_manifest(replace(manifest_of(THIN, END), others=((3 + 2**31, b"producers"),)))
    unknown = [_head(content, 12, bytes([10])), _head(content, 13, b"\x01"), _slot(content), must_know]
    for each in unknown:
        with pytest.raises(UnknownManifestError):
            decode_manifest(each)
        layout.segment_manifest(directory, 0).write_bytes(each)
        before = tree(directory)
        with pytest.raises(ValueError):
            open_partition(directory, INCARNATION)
        assert tree(directory) == before
    skipped = replace(manifest_of(THIN, END), others=((6, b"archived"),))
    assert decode_manifest(encode_manifest(skipped)) == skipped
    with pytest.raises(DamagedManifestError):  # as many records as offsets, but sparse
        decode_manifest(_head(encode_manifest(manifest_of(FULL, END)), 12, b"\x08"))


def test_a_partition_with_explained_gaps_opens_as_it_is_by_both_ways(directory: Path) -> None:
    before = tree(directory)
    usual = _native.recover_partition(str(directory), INCARNATION, boot_id())
    assert (
        usual is not None and usual.segments == ROWS and usual.unsealed == []
    )  # nothing to be sealed, but the active one
    (directory / "stranger").write_bytes(b"")  # the careful way
    recovered = open_partition(directory, INCARNATION)
    assert (recovered.segments, recovered.damaged, recovered.state) == (ROWS, [], 0)
    (directory / "stranger").unlink()
    assert tree(directory) == before


def test_one_damaged_record_costs_the_offsets_up_to_the_next_one(directory: Path) -> None:
    for number, offset in enumerate(KEPT[1:-1], 1):
        write(directory, THIN)
        flip(layout.segment_log(directory, 0), THIN.borders[number] + 70)
        manifest = manifest_of(THIN, END)
        assert manifest.sealed is not None
        write_manifest(directory, replace(manifest, sealed=replace(manifest.sealed, log_bytes=1)))  # not believed
        recovered = open_partition(directory, INCARNATION)
        assert recovered.segments == ROWS
        assert recovered.damaged == [(KEPT[number - 1] + 1, KEPT[number + 1], False)], offset
        index = layout.segment_index(directory, 0).read_bytes()
        assert len(index) == len(THIN.index)
        assert index[: 16 * number] == THIN.index[: 16 * number]
        assert index[16 * (number + 1) :] == THIN.index[16 * (number + 1) :]


def survey(directory: Path, *, write_index: bool = True) -> object:
    found = survey_segment(
        directory, 0, 0, end_offset=END, sparse_count=8, live_bytes=len(THIN.log), write_index=write_index
    )
    return found.segment.count, found.segment.next_offset, [(each.start, each.end) for each in found.damaged]


def test_the_index_of_a_sparse_segment_is_made_again_exactly(directory: Path) -> None:
    index = layout.segment_index(directory, 0)
    for wrong in (b"", THIN.index[:40], bytes(len(THIN.index)), FULL.index, THIN.index[16:] + THIN.index[:16]):
        index.write_bytes(wrong)
        assert survey(directory) == (8, END, [])
        assert index.read_bytes() == THIN.index


def test_a_survey_of_a_sparse_segment_that_is_stopped_leaves_its_index_right_as_far_as_it_was_written(
    directory: Path,
) -> None:
    index = layout.segment_index(directory, 0)
    index.write_bytes(bytes(len(THIN.index)))
    throttle = Throttle()
    throttle.stop()
    with pytest.raises(StoppedError):
        survey_segment(directory, 0, 0, end_offset=END, sparse_count=8, live_bytes=len(THIN.log), throttle=throttle)
    assert index.read_bytes() == bytes(len(THIN.index))
    assert survey(directory) == (8, END, []) and index.read_bytes() == THIN.index


def test_without_an_index_nothing_proves_what_lies_behind_damage(directory: Path) -> None:
    layout.segment_index(directory, 0).unlink()
    flip(layout.segment_log(directory, 0), THIN.borders[3] + 70)
    assert survey(directory) == (8, END, [(KEPT[2] + 1, END)])


def test_a_record_in_a_payload_is_never_found_behind_damage(directory: Path) -> None:
    """The damaged record holds what looks like a later one of this segment."""
    forged = thinned(FULL, [25]).log
    inner = segment(0, [1], payload_bytes=len(forged))
    payload = inner.log[:64] + forged + inner.log[64 + len(forged) :]
    log = THIN.log[: THIN.borders[1]] + payload + THIN.log[THIN.borders[2] :]
    layout.segment_log(directory, 0).write_bytes(log)
    grown = len(log) - len(THIN.log)
    entries = [THIN.index[i : i + 16] for i in range(0, len(THIN.index), 16)]
    moved = [e[:4] + (int.from_bytes(e[4:8], "little") + grown).to_bytes(4, "little") + e[8:] for e in entries[1:]]
    layout.segment_index(directory, 0).write_bytes(b"".join([entries[0], *moved]))
    found = survey_segment(directory, 0, 0, end_offset=END, sparse_count=8)
    assert [(each.start, each.end) for each in found.damaged] == [(1, 4)]
    layout.segment_index(directory, 0).unlink()
    found = survey_segment(directory, 0, 0, end_offset=END, sparse_count=8)
    assert [(each.start, each.end) for each in found.damaged] == [(1, END)]


def test_a_lost_manifest_costs_a_scan_because_the_index_explains_the_gaps(directory: Path) -> None:
    layout.segment_manifest(directory, 0).unlink()
    before = tree(directory)
    recovered = open_partition(directory, INCARNATION)
    assert recovered.segments == [(*ROWS[0][:5], 39 - 8, 0, 0), ROWS[1]]
    assert (recovered.damaged, recovered.unsealed) == ([(39, 40, False)], [])  # the end is explained by nothing
    assert "without a manifest" in recovered.notes[0]
    assert tree(directory) == before


def test_a_gap_that_nothing_explains_is_damage(directory: Path) -> None:
    """The same log with the index and the manifest of all records: they are missing, not removed."""
    layout.segment_manifest(directory, 0).unlink()
    layout.segment_index(directory, 0).write_bytes(FULL.index)
    recovered = open_partition(directory, INCARNATION)
    assert recovered.damaged and not recovered.damaged[0][2]


def test_a_sparse_segment_that_is_the_last_one_takes_no_records(directory: Path) -> None:
    for path in (layout.segment_log, layout.segment_index, layout.segment_manifest):
        path(directory, 40).unlink()
    for _ in range(2):
        recovered = open_partition(directory, INCARNATION)
        assert recovered.segments == [ROWS[0], (END, 0, 0, 1001, 1001, 0, 0, 0)]
        assert (recovered.damaged, recovered.state) == ([], 0)
    kept = read_manifest(directory, 0)
    assert kept is not None and kept == manifest_of(THIN, END)
    assert layout.segment_log(directory, 0).read_bytes() == THIN.log


def scrub(directory: Path, damaged: list[tuple[int, int]]) -> bool:
    bounds = SegmentExtent(0, len(THIN.log), END, 0, END)
    each = SegmentScrub(directory, bounds, 8, 0, damaged)
    for _ in range(1000):
        if each.finished:
            break
        each.step()
    each.close()
    assert each.finished
    return each.contradicts


def test_the_scrubber_reads_a_sparse_segment(directory: Path) -> None:
    known: list[list[tuple[int, int]]] = [
        [],
        [(0, 5)],
        [(1, 3)],
        [(18, 39)],
        [(5, 17), (26, 40)],
        [(0, 40)],
        [(39, 40)],
    ]
    for damaged in known:
        assert not scrub(directory, damaged), damaged
    for number in range(8):
        write(directory, THIN)
        flip(layout.segment_log(directory, 0), THIN.borders[number] + 70)
        assert scrub(directory, []), number
        low = KEPT[number - 1] + 1 if number else 0
        assert not scrub(directory, [(low, KEPT[number] + 1)]), number
    write(directory, THIN)
    flip(layout.segment_index(directory, 0), 16 * 3)
    assert scrub(directory, [])


def test_sealing_leaves_a_sparse_segment_alone(directory: Path) -> None:
    before = tree(directory)
    assert seal_segment(directory, 0, INCARNATION, THROTTLE) == (0, None)
    assert tree(directory) == before


def test_doctor_tells_a_sparse_segment_from_a_damaged_one(directory: Path) -> None:
    view, _ = diagnose_partition(directory)
    assert (view.start_offset, view.end_offset, view.damaged, view.notes) == (0, END, [], [])
    assert view.manifest == "sealed, 32 offsets without a message"
    flip(layout.segment_log(directory, 0), THIN.borders[2] + 70)
    view, _ = diagnose_partition(directory)
    assert [(each.start, each.end) for each in view.damaged] == [(4, 17)]
    isolate(directory, view.damaged)
    assert open_partition(directory, INCARNATION) == Recovered(segments=ROWS, damaged=[WithheldRange((4, 17, True))])
    view, _ = diagnose_partition(directory)
    assert (view.open_damage(), view.isolated) == ([], ((4, 17),))


def test_doctor_sees_that_a_removed_record_is_not_explained(directory: Path) -> None:
    """A record less than the manifest knows, with an index to match: the digest and the number of records tell."""
    fewer: Stored = thinned(FULL, [each for each in KEPT if each != 17])
    write(directory, fewer)
    view, _ = diagnose_partition(directory)
    assert view.damaged or view.notes
