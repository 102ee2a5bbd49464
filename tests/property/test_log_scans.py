"""Properties of scans and recovery over random logs and random damage."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from shardd.engine import _native
from shardd.log import layout
from shardd.log.recovery import open_partition
from tests.support.generated import examples
from tests.unit.log_files import INCARNATION, Stored, segment, write

BATCHES = st.lists(st.integers(1, 6), min_size=1, max_size=6)


@st.composite
def stored_segments(draw: st.DrawFn) -> Stored:
    start = draw(st.integers(0, 2**63))
    return segment(start, draw(BATCHES), timestamp=draw(st.integers(1, 2**62)), payload_bytes=draw(st.integers(0, 200)))


def scan(stored: Stored, log: bytes) -> tuple[int, int, bytes]:
    found = _native.scan_buffer(log, stored.start, 0, stored.start, 0)
    assert found.next_offset == stored.start + found.records
    return found.valid_bytes, found.records, found.entries


@given(stored_segments())
def test_scan_of_what_was_assigned_gives_its_index(stored: Stored) -> None:
    assert scan(stored, stored.log) == (len(stored.log), stored.count, stored.index)


@given(stored_segments(), st.data())
def test_scan_of_a_cut_log_is_its_longest_whole_prefix(stored: Stored, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(stored.log)))
    count = max(number for number, border in enumerate(stored.borders) if border <= length)
    assert scan(stored, stored.log[:length]) == (stored.borders[count], count, stored.index[: 16 * count])


@given(stored_segments(), st.data())
def test_scan_stops_at_the_first_changed_record(stored: Stored, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(stored.log) - 1))
    change = data.draw(st.binary(min_size=1, max_size=40))
    damaged = (stored.log[:position] + change + stored.log[position + len(change) :])[: len(stored.log)]
    first = next((i for i in range(len(damaged)) if damaged[i] != stored.log[i]), None)
    good = stored.count
    if first is not None:
        good = max(number for number, border in enumerate(stored.borders) if border <= first)
    assert scan(stored, damaged) == (stored.borders[good], good, stored.index[: 16 * good])


@settings(max_examples=examples(40))
@given(stored_segments(), st.data())
def test_recovery_serves_what_is_whole_and_is_stable(stored: Stored, data: st.DataObject) -> None:
    """After any overwriting, cut and surplus: exactly the records that are whole at their place; a second start finds
    the same; what is cut off is kept in a .torn file."""
    position = data.draw(st.integers(0, len(stored.log)))
    kind = data.draw(st.sampled_from(["overwrite", "cut", "append"]))
    garbage = data.draw(st.binary(max_size=200))
    damaged = {
        "overwrite": stored.log[:position] + garbage + stored.log[position + len(garbage) :],
        "cut": stored.log[:position],
        "append": stored.log + garbage,
    }[kind]
    places = list(itertools.pairwise(stored.borders))
    whole = [number for number, (a, b) in enumerate(places) if damaged[a:b] == stored.log[a:b]]
    count = whole[-1] + 1 if whole else 0
    with tempfile.TemporaryDirectory() as root:
        directory = layout.partition_directory(Path(root), 0, 0, 0)
        write(directory, stored)
        log = layout.segment_log(directory, stored.start)
        log.write_bytes(damaged)
        first = open_partition(directory, INCARNATION)
        assert [item[:3] for item in first.segments] == [(stored.start, stored.borders[count], count)]
        lost = {offset - stored.start for start, end, _ in first.damaged for offset in range(start, end)}
        assert [number for number in range(count) if number not in lost] == whole
        index = layout.segment_index(directory, stored.start).read_bytes()
        ends = [int.from_bytes(index[at + 4 : at + 8], "little") for at in range(0, len(index), 16)]
        assert len(ends) == count
        assert all((ends[k - 1] if k else 0, ends[k]) == places[k] for k in whole)
        second = open_partition(directory, INCARNATION)
        assert (second.segments, second.damaged, second.state) == (first.segments, first.damaged, 0)
        if any(damaged[stored.borders[count] :]):  # zeros are cut off without a copy
            assert log.read_bytes() + layout.segment_torn(directory, stored.start, 0).read_bytes() == damaged
