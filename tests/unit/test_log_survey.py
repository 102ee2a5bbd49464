"""What a survey finds in a damaged log, and the index that it writes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shardd.log import damage_survey, layout, verified_slices
from shardd.log.damage import DamageSurvey
from shardd.log.damage_survey import survey_segment
from shardd.log.segment_scrub import SegmentScrub
from shardd.log.verified_slices import SegmentExtent
from shardd.runtime.throttle import StoppedError, Throttle
from tests.unit.log_files import Stored, batch, segment, write


def survey_of(
    directory: Path, stored: Stored, damaged: bytes, *, sealed: bool = True, index: bytes | None = None
) -> DamageSurvey:
    write(directory, stored)
    layout.segment_log(directory, stored.start).write_bytes(damaged)
    layout.segment_index(directory, stored.start).write_bytes(stored.index if index is None else index)
    end = stored.start + stored.count if sealed else None
    found = survey_segment(directory, stored.start, 0, end_offset=end)
    assert layout.segment_log(directory, stored.start).read_bytes() == damaged
    entries = layout.segment_index(directory, stored.start).read_bytes()
    assert len(entries) == 16 * found.segment.count
    ends = [int.from_bytes(entries[at + 4 : at + 8], "little") for at in range(0, len(entries), 16)]
    assert ends == sorted(ends)
    assert [int.from_bytes(entries[at : at + 4], "little") for at in range(0, len(entries), 16)] == list(
        range(len(ends))
    )
    lost = lost_of(found)
    for number in range(found.segment.count):
        if stored.start + number not in lost:
            begin = ends[number - 1] if number else 0
            whole = stored.log[stored.borders[number] : stored.borders[number + 1]]
            assert damaged[begin : ends[number]] == whole, f"record {number}"
    return found


def lost_of(found: DamageSurvey) -> set[int]:
    return {offset for each in found.damaged for offset in range(each.start, each.end)}


def flipped(content: bytes, *positions: int) -> bytes:
    changed = bytearray(content)
    for position in positions:
        changed[position] ^= 0x20
    return bytes(changed)


@pytest.mark.parametrize("sealed", [True, False])
def test_several_flips_cost_their_records_only(tmp_path: Path, sealed: bool) -> None:
    stored = segment(5, [1] * 40)
    rng = random.Random(6)
    for _ in range(60):
        victims = sorted(rng.sample(range(39), 5))
        places = [rng.randrange(stored.borders[each], stored.borders[each + 1]) for each in victims]
        for index in (stored.index, bytes(len(stored.index)), b""):
            found = survey_of(tmp_path, stored, flipped(stored.log, *places), sealed=sealed, index=index)
            if sealed or index == stored.index:
                assert lost_of(found) == {5 + each for each in victims}
                assert (found.segment.count, found.segment.log_bytes) == (40, len(stored.log))
            else:  # nothing proves where records begin: it ends where that is not clear
                lost = {each - 5 for each in lost_of(found)}
                assert lost == {each for each in victims if each < found.segment.count}
                assert found.segment.count == 40 or found.segment.count in victims


def test_a_zeroed_block_costs_what_it_touches(tmp_path: Path) -> None:
    stored = segment(0, [1] * 60, payload_bytes=300)
    for begin in range(0, len(stored.log) - 5000, 997):
        content = stored.log[:begin] + bytes(4096) + stored.log[begin + 4096 :]
        touched = {
            number
            for number in range(60)
            if stored.borders[number + 1] > begin and stored.borders[number] < begin + 4096
        }
        assert lost_of(survey_of(tmp_path, stored, content)) == touched


def test_missing_bytes_in_the_middle_cost_their_records(tmp_path: Path) -> None:
    stored = segment(0, [1] * 30)
    for first, last in ((3, 4), (3, 20), (0, 1), (0, 15)):
        content = stored.log[: stored.borders[first]] + stored.log[stored.borders[last] :]
        found = survey_of(tmp_path, stored, content)
        assert lost_of(found) == set(range(first, last))
        assert found.segment.count == 30
        unsealed = survey_of(tmp_path, stored, content, sealed=False)  # where it would end is not known
        assert (lost_of(unsealed), unsealed.segment.count) == (set(), first)


def test_a_damaged_end_of_a_sealed_segment_keeps_its_bytes(tmp_path: Path) -> None:
    stored = segment(0, [1] * 10)
    found = survey_of(tmp_path, stored, flipped(stored.log, stored.borders[8] + 3, stored.borders[9] + 3))
    assert [(each.start, each.end) for each in found.damaged] == [(8, 10)]
    assert found.segment.count == 10
    cut = survey_of(tmp_path, stored, stored.log[: stored.borders[8] + 3])  # no bytes for two records: a gap
    assert [(each.start, each.end) for each in cut.damaged] == [(8, 10)]
    assert cut.segment.count == 8


@pytest.mark.parametrize("offsets", [(4,), (5,), (4, 5), (4, 5, 6), (9,), (4, 9)])
@pytest.mark.parametrize("where", [0, 50, 55])
def test_a_forged_record_in_a_payload_is_never_taken(tmp_path: Path, offsets: tuple[int, ...], where: int) -> None:
    """The checksum is not keyed: whoever sends may send what looks like a record with a later offset."""
    forged = b"".join(batch(offset, [b"forged"], 1005, 0, 0)[0] for offset in offsets)
    log, index, borders = b"", b"", [0]
    for number in range(12):
        payload = b"x" * 37 + forged + b"y" * 21 if number == 3 else b"honest %d" % number
        records, entries = batch(number, [payload], 1000 + number, 0, len(log))
        log, index, borders = log + records, index + entries, [*borders, len(log) + len(records)]
    stored = Stored(0, log, index, borders)
    for entries in (index, b"", bytes(len(index))):
        for sealed in (True, False):
            found = survey_of(tmp_path, stored, flipped(log, borders[3] + where), sealed=sealed, index=entries)
            if sealed or entries == index or where:
                assert (lost_of(found), found.segment.count) == ({3}, 12)
            else:  # nothing proves where record 4 begins
                assert (lost_of(found), found.segment.count) == (set(), 3)


def test_more_ranges_than_the_table_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage_survey, "RANGES_MAX", 3)
    stored = segment(0, [1] * 30)
    found = survey_of(tmp_path, stored, flipped(stored.log, *(stored.borders[each] + 5 for each in (2, 5, 8, 11, 14))))
    assert [(each.start, each.end) for each in found.damaged] == [(2, 3), (5, 6), (8, 9), (11, 30)]
    assert found.gave_up


def test_records_over_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified_slices, "SLICE_BYTES", 500)
    stored = segment(0, [3, 1, 4, 1, 5, 9], payload_bytes=430)
    for victim in range(0, 22, 5):
        found = survey_of(tmp_path, stored, flipped(stored.log, stored.borders[victim] + 300))
        assert lost_of(found) == {victim}


def test_looking_changes_nothing(tmp_path: Path) -> None:
    stored = segment(0, [5])
    write(tmp_path, stored)
    index = layout.segment_index(tmp_path, 0)
    index.write_bytes(b"wrong")
    found = survey_segment(tmp_path, 0, 0, end_offset=5, write_index=False)
    assert found.index_changed and index.read_bytes() == b"wrong"
    index.unlink()
    assert survey_segment(tmp_path, 0, 0, end_offset=5, write_index=False).segment.count == 5
    assert not index.exists()


def test_an_open_segment_is_surveyed_up_to_what_was_acknowledged(tmp_path: Path) -> None:
    stored = segment(0, [5, 3])
    write(tmp_path, stored)
    index = layout.segment_index(tmp_path, 0)
    index.write_bytes(bytes(16 * 5) + stored.index[16 * 5 :])
    found = survey_segment(tmp_path, 0, 0, end_offset=5, live_bytes=stored.borders[5])
    assert (found.segment.count, found.damaged, found.index_changed) == (5, [], True)
    assert index.read_bytes() == stored.index, "what the engine has written behind it stays"


def scrubbed(directory: Path, stored: Stored, damaged: list[tuple[int, int]]) -> bool:
    bounds = SegmentExtent(stored.start, len(stored.log), stored.start + stored.count)
    scrub = SegmentScrub(directory, bounds, stored.count, 0, damaged)
    for _ in range(100):
        if scrub.finished:
            break
        scrub.step()
    scrub.close()
    assert scrub.finished
    return scrub.contradicts


def test_a_survey_that_is_stopped_leaves_an_index_that_is_right_as_far_as_it_was_written(tmp_path: Path) -> None:
    stored = segment(0, [5, 3])
    write(tmp_path, stored)
    index = layout.segment_index(tmp_path, 0)
    index.write_bytes(bytes(len(stored.index)))
    throttle = Throttle()
    throttle.stop()
    with pytest.raises(StoppedError):
        survey_segment(tmp_path, 0, 0, end_offset=8, live_bytes=len(stored.log), throttle=throttle)
    assert len(index.read_bytes()) == len(stored.index)
    found = survey_segment(tmp_path, 0, 0, end_offset=8, live_bytes=len(stored.log), throttle=Throttle())
    assert (found.segment.count, found.damaged, index.read_bytes()) == (8, [], stored.index)


def test_a_scrub_sees_every_flip_and_passes_over_what_is_known(tmp_path: Path) -> None:
    stored = segment(7, [1] * 12)
    write(tmp_path, stored)
    assert not scrubbed(tmp_path, stored, [])
    log, index = layout.segment_log(tmp_path, 7), layout.segment_index(tmp_path, 7)
    for position in range(0, len(stored.log), 5):
        log.write_bytes(flipped(stored.log, position))
        assert scrubbed(tmp_path, stored, [])
        found = survey_segment(tmp_path, 7, 0, end_offset=19)
        assert not scrubbed(tmp_path, stored, [(each.start, each.end) for each in found.damaged])
        index.write_bytes(stored.index)
    log.write_bytes(stored.log)
    for position in range(len(stored.index)):
        index.write_bytes(flipped(stored.index, position))
        assert scrubbed(tmp_path, stored, [])
    index.unlink()
    assert scrubbed(tmp_path, stored, [])
