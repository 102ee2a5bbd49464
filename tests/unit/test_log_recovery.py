"""Recovery of partitions: what is served afterwards is a prefix of what was written, byte for byte, and nothing valid
is ever cut away."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from shardd.engine import SegmentInfo, _native
from shardd.log import layout
from shardd.log.incarnation import NewerIncarnationError, read_incarnation
from shardd.log.recovered import Recovered
from shardd.log.recovery import open_partition
from shardd.log.sealing import seal_segment
from shardd.runtime.throttle import Throttle
from tests.unit.log_files import INCARNATION, Stored, segment, tree, write

READ_ONLY = 4027


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return layout.partition_directory(tmp_path, 3, 2, 1)


def log_of(directory: Path, stored: Stored) -> Path:
    return layout.segment_log(directory, stored.start)


def index_of(directory: Path, stored: Stored) -> Path:
    return layout.segment_index(directory, stored.start)


def row(stored: Stored, first: int, last: int) -> SegmentInfo:
    return SegmentInfo((stored.start, len(stored.log), stored.count, first, last, 0, 0, 0))


def assert_prefix(directory: Path, stored: Stored, recovered: Recovered, records: int) -> None:
    """The single segment opens with exactly its first records, and its index is exactly theirs."""
    ((start, log_bytes, count, *_),) = recovered.segments
    assert (start, log_bytes, count) == (stored.start, stored.borders[records], records)
    assert log_of(directory, stored).read_bytes()[:log_bytes] == stored.log[:log_bytes]
    assert index_of(directory, stored).read_bytes() == stored.index[: 16 * records]


def test_missing_directory_is_an_empty_partition(directory: Path) -> None:
    assert open_partition(directory, INCARNATION) == Recovered()
    assert not directory.exists()


def test_whole_partition_is_left_as_it_is(directory: Path) -> None:
    sealed, active = segment(0, [3, 1, 2]), segment(6, [1, 4], timestamp=2000)
    write(directory, sealed, active)
    before = tree(directory)
    recovered = open_partition(directory, INCARNATION)
    assert recovered == Recovered(segments=[row(sealed, 1000, 1002), row(active, 2000, 2001)], unsealed=[0])
    after = tree(directory)
    assert after.pop(layout.segment_manifest(directory, 6).name)
    assert after == before
    assert open_partition(directory, INCARNATION) == recovered


def test_torn_tail_at_every_byte_of_the_last_batch(directory: Path) -> None:
    stored = segment(0, [2, 3])
    write(directory, stored)
    for length in range(stored.borders[2], len(stored.log)):
        log_of(directory, stored).write_bytes(stored.log[:length])
        index_of(directory, stored).write_bytes(stored.index)
        recovered = open_partition(directory, INCARNATION)
        whole = max(number for number, border in enumerate(stored.borders) if border <= length)
        assert recovered.state == 0
        assert_prefix(directory, stored, recovered, whole)
        assert log_of(directory, stored).read_bytes() == stored.log[: stored.borders[whole]]
        torn = layout.segment_torn(directory, 0, 0)
        if length == stored.borders[whole]:
            assert not torn.exists()
        else:
            assert torn.read_bytes() == stored.log[stored.borders[whole] : length]
            torn.unlink()
        assert open_partition(directory, INCARNATION).notes == []


def test_bit_flip_in_every_byte_of_the_active_segment(directory: Path) -> None:
    stored = segment(10, [2, 2])
    write(directory, stored)
    for position in range(len(stored.log)):
        damaged = bytearray(stored.log)
        damaged[position] ^= 1 << (position % 8)
        log_of(directory, stored).write_bytes(damaged)
        index_of(directory, stored).write_bytes(stored.index)
        recovered = open_partition(directory, INCARNATION)
        record = max(number for number, border in enumerate(stored.borders) if border <= position)
        assert recovered.state == 0
        if record == stored.count - 1:  # nothing behind it: the same as a torn tail
            assert_prefix(directory, stored, recovered, record)
            assert recovered.damaged == []
            torn = layout.segment_torn(directory, 10, 0)
            assert torn.read_bytes() == damaged[stored.borders[record] :]
            torn.unlink()
        else:
            assert recovered.damaged == [(10 + record, 11 + record, False)]
            assert recovered.segments[0][:3] == (10, len(stored.log), stored.count)
            assert log_of(directory, stored).read_bytes() == damaged
            index = index_of(directory, stored).read_bytes()
            assert [index[i + 4 : i + 8] for i in range(0, len(index), 16)] == [
                stored.index[i + 4 : i + 8] for i in range(0, len(index), 16)
            ]


@pytest.mark.parametrize("zeros", [1, 56, 64, 4096, 3 << 20])
def test_zeros_at_the_end_are_no_records(directory: Path, zeros: int) -> None:
    for stored in (segment(0, [2]), segment(0, [])):
        write(directory, stored)
        log_of(directory, stored).write_bytes(stored.log + bytes(zeros))
        recovered = open_partition(directory, INCARNATION)
        assert recovered.state == 0
        assert_prefix(directory, stored, recovered, stored.count)
        assert log_of(directory, stored).read_bytes() == stored.log
        assert recovered.notes == []  # the usual end of a killed server at level durable
        assert not layout.segment_torn(directory, 0, 0).exists()


def test_a_cut_record_in_space_that_was_allocated_ahead(directory: Path) -> None:
    stored, cut = segment(0, [2]), segment(2, [1], timestamp=9000)
    for length in range(1, len(cut.log)):
        write(directory, stored)
        log_of(directory, stored).write_bytes(stored.log + cut.log[:length] + bytes(1 << 16))
        recovered = open_partition(directory, INCARNATION)
        assert recovered.state == 0
        assert_prefix(directory, stored, recovered, 2)
        assert log_of(directory, stored).read_bytes() == stored.log


def test_stale_record_with_the_very_next_offset_is_cut(directory: Path) -> None:
    stored, stale = segment(0, [2, 2], timestamp=5000), segment(4, [2], timestamp=4000)
    write(directory, stored)
    log_of(directory, stored).write_bytes(stored.log + stale.log)
    recovered = open_partition(directory, INCARNATION)
    assert recovered.state == 0
    assert_prefix(directory, stored, recovered, 4)
    assert layout.segment_torn(directory, 0, 0).read_bytes() == stale.log


def test_valid_record_behind_damage_is_never_cut(directory: Path) -> None:
    stored, later = segment(0, [2]), segment(3, [1], timestamp=9000)  # offset 2 is missing
    write(directory, stored)
    content = stored.log + bytes(500) + later.log
    log_of(directory, stored).write_bytes(content)
    recovered = open_partition(directory, INCARNATION)
    assert recovered.state == 0
    behind = 2 + (len(content) - len(stored.log)) // 64 + 1  # more than there can be records
    assert recovered.segments == [(0, len(stored.log), 2, 1000, 1000, 0, 0, 0), (behind, 0, 0, 1000, 1000, 0, 0, 0)]
    assert recovered.damaged == [(2, behind, False)]
    assert log_of(directory, stored).read_bytes() == content
    assert "withheld" in recovered.notes[0]
    again = open_partition(directory, INCARNATION)
    assert (again.segments, again.damaged, again.state) == (recovered.segments, recovered.damaged, 0)
    assert log_of(directory, stored).read_bytes() == content


def test_torn_files_are_numbered(directory: Path) -> None:
    stored = segment(0, [1])
    write(directory, stored)
    for number, garbage in enumerate((b"one", b"two", b"three")):
        log_of(directory, stored).write_bytes(stored.log + garbage)
        open_partition(directory, INCARNATION)
        assert layout.segment_torn(directory, 0, number).read_bytes() == garbage


GARBAGE = b"\x13\x37" * 40


@pytest.mark.parametrize("active", [True, False])
@pytest.mark.parametrize("index", [None, b"", b"short", GARBAGE, "cut", "surplus", "swapped"])
def test_index_is_rebuilt_byte_exact(directory: Path, active: bool, index: bytes | str | None) -> None:
    stored = segment(0, [2, 1, 2])
    others = [] if active else [segment(5, [1], timestamp=2000)]
    write(directory, stored, *others)
    variants = {"cut": stored.index[:-16], "surplus": stored.index + bytes(16)}
    variants["swapped"] = stored.index[:-32] + stored.index[-16:] + stored.index[-32:-16]
    path = index_of(directory, stored)
    path.unlink()
    if index is not None:
        path.write_bytes(variants[index] if isinstance(index, str) else index)
    recovered = open_partition(directory, INCARNATION)
    assert recovered.state == 0
    assert recovered.segments[0] == row(stored, 1000, 1002)
    assert path.read_bytes() == stored.index


@pytest.mark.parametrize("record", [0, 1, 2])
@pytest.mark.parametrize("position", [0, 30, 53, -1])
def test_damage_in_a_sealed_segment_withholds_its_record_only(directory: Path, record: int, position: int) -> None:
    """The index is missing, so that the whole sealed segment is read."""
    sealed, active = segment(0, [1, 1, 1]), segment(3, [2], timestamp=2000)
    write(directory, sealed, active)
    damaged = bytearray(sealed.log)
    damaged[sealed.borders[record] + position if position >= 0 else sealed.borders[record + 1] - 1] ^= 1
    log_of(directory, sealed).write_bytes(damaged)
    index_of(directory, sealed).unlink()
    before = tree(directory)
    recovered = open_partition(directory, INCARNATION)
    assert recovered.state == 0
    assert recovered.damaged == [(record, record + 1, False)]
    assert [item[:3] for item in recovered.segments] == [(0, len(sealed.log), 3), (3, len(active.log), 2)]
    after = tree(directory)
    index = after.pop(index_of(directory, sealed).name)
    ends = [index[i : i + 8] for i in range(0, 48, 16)]
    assert ends == [sealed.index[i : i + 8] for i in range(0, 48, 16)], "damaged bytes belong to the damaged offset"
    after.pop(layout.segment_manifest(directory, 3).name)
    assert after == before


def test_flip_in_the_last_record_of_a_sealed_segment_is_noticed(directory: Path) -> None:
    sealed, active = segment(0, [1, 2]), segment(3, [1], timestamp=2000)
    write(directory, sealed, active)
    log_of(directory, sealed).write_bytes(sealed.log[:-1] + b"\xff")
    recovered = open_partition(directory, INCARNATION)
    assert recovered.state == 0
    assert recovered.damaged == [(2, 3, False)]
    assert [item[:3] for item in recovered.segments] == [(0, len(sealed.log), 3), (3, len(active.log), 1)]


def test_records_that_the_next_segment_has_too_are_left_out(directory: Path) -> None:
    sealed, active = segment(0, [4]), segment(3, [1], timestamp=2000)
    write(directory, sealed, active)
    recovered = open_partition(directory, INCARNATION)
    assert [item[:3] for item in recovered.segments] == [(0, sealed.borders[3], 3), (3, len(active.log), 1)]
    assert recovered.damaged == []
    (saved,) = directory.glob("*.torn*")
    assert saved.read_bytes() == sealed.log[sealed.borders[3] :]


def test_surplus_bytes_in_a_sealed_segment_lose_nothing(directory: Path) -> None:
    sealed, active = segment(0, [3]), segment(3, [1], timestamp=2000)
    write(directory, sealed, active)
    log_of(directory, sealed).write_bytes(sealed.log + bytes(100))
    recovered = open_partition(directory, INCARNATION)
    assert recovered.state == 0
    assert recovered.segments == [row(sealed, 1000, 1000), row(active, 2000, 2000)]


def test_a_sealed_segment_with_surplus_bytes_can_be_sealed_after_a_start(directory: Path) -> None:
    """Of an append that was taken back, when the power went before that was on the device."""
    sealed, active = segment(0, [3]), segment(3, [1], timestamp=2000)
    write(directory, sealed, active)
    taken_back = segment(7, [1], timestamp=3000).log
    log_of(directory, sealed).write_bytes(sealed.log + taken_back)
    assert seal_segment(directory, 0, INCARNATION, Throttle())[1] is not None
    recovered = open_partition(directory, INCARNATION)
    assert log_of(directory, sealed).read_bytes() == sealed.log
    assert [path.read_bytes() for path in directory.glob("*.torn*")] == [taken_back]
    assert any("cut off, kept in" in note for note in recovered.notes)
    assert seal_segment(directory, 0, INCARNATION, Throttle()) == (len(sealed.log), None)


def test_missing_segment_makes_a_gap(directory: Path) -> None:
    write(directory, segment(0, [3]), segment(5, [1], timestamp=2000))
    recovered = open_partition(directory, INCARNATION)
    assert recovered.state == 0
    assert [item[0] for item in recovered.segments] == [0, 5]
    assert recovered.damaged == [(3, 5, False)]
    assert "next segment starts at 5" in recovered.notes[-1]


def test_first_segment_need_not_start_at_zero(directory: Path) -> None:
    stored = segment(1000, [2])
    write(directory, stored)
    assert open_partition(directory, INCARNATION) == Recovered(segments=[row(stored, 1000, 1000)])


def test_fresh_segment_after_a_roll_is_the_active_one(directory: Path) -> None:
    sealed, active = segment(0, [3]), segment(3, [])
    write(directory, sealed, active)
    assert open_partition(directory, INCARNATION) == Recovered(
        segments=[row(sealed, 1000, 1000), SegmentInfo((3, 0, 0, 1000, 1000, 0, 0, 0))], unsealed=[0]
    )


def test_timestamps_may_not_fall_over_a_segment_border(directory: Path) -> None:
    sealed, stale = segment(0, [3], timestamp=5000), segment(3, [2], timestamp=4000)
    write(directory, sealed, stale)
    recovered = open_partition(directory, INCARNATION)
    assert recovered.segments == [row(sealed, 5000, 5000), (3, 0, 0, 5000, 5000, 0, 0, 0)]
    assert layout.segment_torn(directory, 3, 0).read_bytes() == stale.log


def test_no_room_for_the_torn_tail_cuts_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = segment(0, [2])
    write(directory, stored)
    log_of(directory, stored).write_bytes(stored.log + b"torn")

    def full(_descriptor: int, _data: bytes, _position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        recovered = open_partition(directory, INCARNATION)
    assert recovered.state == 10006
    assert log_of(directory, stored).read_bytes() == stored.log + b"torn"
    assert not layout.segment_torn(directory, 0, 0).exists()
    assert open_partition(directory, INCARNATION).state == 0


def test_foreign_names_are_reported_and_kept(directory: Path) -> None:
    stored = segment(0, [2])
    write(directory, stored)
    for name in ("notes.txt", "1.log", "00000000000000000001.index", "99999999999999999999.log", "0" * 20 + ".log.1"):
        (directory / name).write_bytes(b"foreign")
    (directory / f"{1:020d}.log").mkdir()
    (directory / "lost+found").mkdir()
    before = tree(directory)
    recovered = open_partition(directory, INCARNATION)
    assert (recovered.segments, recovered.state) == ([row(stored, 1000, 1000)], 0)
    assert len(recovered.notes) == 7
    after = tree(directory)
    assert after.pop(layout.segment_manifest(directory, 0).name)
    assert after == before
    assert (directory / "lost+found").is_dir()


def test_earlier_incarnation_goes_to_the_trash(directory: Path, tmp_path: Path) -> None:
    write(directory, segment(0, [2]), incarnation=INCARNATION - 1)
    recovered = open_partition(directory, INCARNATION)
    assert (recovered.segments, recovered.state) == ([], 0)
    assert not directory.exists()
    (moved,) = (tmp_path / "trash").iterdir()
    assert read_incarnation(moved) == INCARNATION - 1


def test_later_incarnation_is_refused_and_kept(directory: Path) -> None:
    write(directory, segment(0, [2]), incarnation=INCARNATION + 1)
    before = tree(directory)
    with pytest.raises(NewerIncarnationError):
        open_partition(directory, INCARNATION)
    assert tree(directory) == before


def test_scans_of_the_fixture_are_not_empty() -> None:
    """Guards the tests above: the builder really makes valid records."""
    stored = segment(5, [2, 3])
    assert _native.scan_buffer(stored.log, 5, 0, 5, 0) == (len(stored.log), 5, 10, 1000, 1001, 0, stored.index)
