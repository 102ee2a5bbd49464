"""Whatever lies in a payload, also whole logs with the offsets and timestamps that come next: after a torn tail or a
flipped byte no byte of it is served as a record, and one flipped byte costs its record only."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardd.engine import _native
from shardd.log import layout
from shardd.log.damage_survey import survey_segment
from shardd.log.manifest import Checkpoint, Manifest, write_manifest
from shardd.log.recovered import Recovered
from shardd.log.recovery import open_partition
from tests.support.generated import examples
from tests.unit.log_files import INCARNATION, Stored, batch, segment, store, write

FAR_US = 2**62
TIMESTAMP_US = 1000


def forged_log(first_offset: int, count: int, timestamp_us: int, payload: bytes = b"forged") -> bytes:
    """What a log from that offset on would hold."""
    return b"".join(batch(first_offset + i, [payload], timestamp_us, first_offset, 0)[0] for i in range(count))


@st.composite
def hostile_segments(draw: st.DrawFn) -> Stored:
    """Honest records, and some whose payloads hold logs that go on at their own offset or behind it."""
    start = draw(st.sampled_from([0, 7, 2**40]))
    payloads: list[list[bytes]] = []
    for offset in range(start, start + draw(st.integers(2, 7))):
        payload = b"honest %d" % offset
        if draw(st.booleans()):
            later = draw(st.integers(0, 2))
            timestamp = draw(st.sampled_from([TIMESTAMP_US, TIMESTAMP_US + 3, FAR_US]))
            hidden = forged_log(offset + later, draw(st.integers(1, 5)), timestamp)
            payload = b"x" * draw(st.sampled_from([0, 1, 64, 192, 200])) + hidden + b"y" * draw(st.integers(0, 2))
        payloads.append([payload])
    return store(start, payloads, TIMESTAMP_US)


@contextmanager
def partition(stored: Stored, log: bytes, index: bytes, checkpoint: int = 0) -> Iterator[tuple[Path, Recovered]]:
    """The partition opened; `checkpoint`: so many records were once whole."""
    with tempfile.TemporaryDirectory() as root:
        directory = layout.partition_directory(Path(root), 0, 0, 0)
        write(directory, stored)
        layout.segment_log(directory, stored.start).write_bytes(log)
        layout.segment_index(directory, stored.start).write_bytes(index)
        if checkpoint:
            known = Checkpoint(stored.borders[checkpoint], checkpoint, TIMESTAMP_US, TIMESTAMP_US + checkpoint - 1)
            write_manifest(directory, Manifest(INCARNATION, stored.start, checkpoint=known))
        yield directory, open_partition(directory, INCARNATION)


def served(directory: Path, recovered: Recovered) -> dict[int, bytes]:
    """Records by offset, as the engine serves them: found by the index, checked, and where one fails a survey of the
    open segment decides."""
    found: dict[int, bytes] = {}
    lost = {offset for first, end, _ in recovered.damaged for offset in range(first, min(end, first + 10_000))}
    for start, log_bytes, count, *_ in recovered.segments:
        if any(
            not is_valid(offset, record)
            for offset, record in records(directory, start, count).items()
            if offset not in lost
        ):
            survey = survey_segment(directory, start, 0, end_offset=start + count, live_bytes=log_bytes)
            lost |= {offset for each in survey.damaged for offset in range(each.start, each.end)}
        found |= records(directory, start, count)
    found = {offset: record for offset, record in found.items() if offset not in lost}
    assert all(is_valid(offset, record) for offset, record in found.items())
    return found


def records(directory: Path, start: int, count: int) -> dict[int, bytes]:
    log = layout.segment_log(directory, start).read_bytes()
    entries = layout.segment_index(directory, start).read_bytes()
    ends = [0, *(int.from_bytes(entries[at + 4 : at + 8], "little") for at in range(0, 16 * count, 16))]
    return {start + i: log[ends[i] : ends[i + 1]] for i in range(count)}


def is_valid(offset: int, record: bytes) -> bool:
    return _native.scan_buffer(record, offset, 0, offset, 0)[:2] == (len(record), 1)


def truth(stored: Stored, log: bytes) -> dict[int, bytes]:
    """The records that are as they were written."""
    records = [stored.log[a:b] for a, b in itertools.pairwise(stored.borders)]
    places = zip(range(stored.start, 2**63), stored.borders, records, strict=False)
    return {offset: record for offset, begin, record in places if log[begin : begin + len(record)] == record}


def last_timestamp(recovered: Recovered) -> int:
    return max((each[4] for each in recovered.segments), default=0)


@settings(max_examples=examples(15))
@given(hostile_segments(), st.data())
def test_bytes_of_a_payload_are_never_records_after_a_torn_tail(stored: Stored, data: st.DataObject) -> None:
    """Cut at any byte of the last two records, with whatever the index still has, with zeros behind or not: the whole
    records are served, the torn one is cut, and no time of a forged record stays."""
    begin = stored.borders[-3]
    for length in sorted({data.draw(st.integers(begin, len(stored.log))) for _ in range(4)} | {len(stored.log) - 1}):
        zeros = data.draw(st.sampled_from([0, 0, 4096]))
        whole = max(number for number, border in enumerate(stored.borders) if border <= length)
        index = stored.index[: 16 * data.draw(st.integers(0, stored.count))]
        log = stored.log[:length] + bytes(zeros)
        with partition(stored, log, index) as (directory, recovered):
            assert served(directory, recovered) == {
                stored.start + i: stored.log[stored.borders[i] : stored.borders[i + 1]] for i in range(whole)
            }
            assert last_timestamp(recovered) == (TIMESTAMP_US + whole - 1 if whole else 0)
            if length - stored.borders[whole] >= 64:  # its header tells: nothing is withheld
                assert (recovered.damaged, recovered.state, len(recovered.segments)) == ([], 0, 1)
            again = open_partition(directory, INCARNATION)
            assert (again.segments, again.damaged) == (recovered.segments, recovered.damaged)


@settings(max_examples=examples(10))
@given(hostile_segments(), st.booleans(), st.data())
def test_one_flipped_byte_costs_its_record_only_whatever_payloads_hold(
    stored: Stored, sealed: bool, data: st.DataObject
) -> None:
    """A byte of every field of a header; the last record of the active segment may be gone."""
    victim = data.draw(st.integers(0, stored.count - 1))
    behind = [segment(stored.start + stored.count, [1], timestamp=TIMESTAMP_US + 100)] if sealed else []
    fields = (0, 8, 24, 32, 40, 48, 52, 56, 64)
    for begin, end in itertools.pairwise(fields):
        at = data.draw(st.integers(begin, end - 1))
        log = flipped(stored.log, stored.borders[victim] + at, data.draw(st.sampled_from([1, 0x80, 0xFF])))
        with tempfile.TemporaryDirectory() as root:
            directory = layout.partition_directory(Path(root), 0, 0, 0)
            write(directory, stored, *behind)
            layout.segment_log(directory, stored.start).write_bytes(log)
            write_manifest(directory, Manifest(INCARNATION, stored.start))
            recovered = open_partition(directory, INCARNATION)
            found = served(directory, recovered)
            if sealed:
                assert found.pop(stored.start + stored.count) == behind[0].log
            assert found == truth(stored, log), f"byte {at} of record {victim}"
            assert last_timestamp(recovered) <= TIMESTAMP_US + 100


@settings(max_examples=examples(30))
@given(hostile_segments(), st.data())
def test_without_an_index_nothing_forged_is_served(stored: Stored, data: st.DataObject) -> None:
    """Any damage, and an index that is missing, short, of zeros or of random bytes: what is served was sent."""
    log = bytearray(stored.log)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(log) - 1))
        patch = data.draw(st.sampled_from([bytes(70), bytes(4), b"\xff", data.draw(st.binary(min_size=1, max_size=9))]))
        log[at : at + len(patch)] = patch
    log = log[: len(stored.log)]
    index = data.draw(
        st.sampled_from([b"", bytes(len(stored.index)), stored.index[:32], data.draw(st.binary(max_size=200))])
    )
    checkpoint = data.draw(st.integers(0, stored.count))
    with partition(stored, bytes(log), index, checkpoint) as (directory, recovered):
        assert served(directory, recovered).items() <= truth(stored, bytes(log)).items()
        assert last_timestamp(recovered) <= TIMESTAMP_US + 100
        before = layout.segment_log(directory, stored.start).read_bytes()
        torn = layout.segment_torn(directory, stored.start, 0)
        kept = before + (torn.read_bytes() if torn.exists() else b"")
        assert kept == bytes(log[: len(kept)]) and not any(log[len(kept) :]), "no byte is lost"


@pytest.mark.parametrize("index", ["whole", "missing"])
def test_a_flipped_length_behind_the_last_checkpoint_costs_its_record_only(index: str) -> None:
    """Every byte of both lengths, every value that has one more or less bit, with a whole log in the payload."""
    hostile = bytes(17) + forged_log(4, 6, FAR_US)
    stored = store(0, [[b"a"], [b"b" * 300], [b"c"], [hostile], [b"d"], [b"e" * 100], [b"f"]], TIMESTAMP_US)
    for victim in (1, 3, 5):
        for at in range(48, 56):
            for bit in range(8):
                log = flipped(stored.log, stored.borders[victim] + at, 1 << bit)
                entries = stored.index if index == "whole" else b""
                with partition(stored, log, entries) as (directory, recovered):
                    assert served(directory, recovered) == truth(stored, log)
                    assert len(recovered.segments) == 1


def flipped(content: bytes, position: int, mask: int) -> bytes:
    return content[:position] + bytes([content[position] ^ mask]) + content[position + 1 :]
