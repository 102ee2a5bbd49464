"""Timestamps that fall in what Apache Iggy wrote: accepted there, damage in what this server appended behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardd.log import layout
from shardd.log.imported import OPEN_END, read_imported, write_imported
from shardd.log.recovered import Recovered
from shardd.log.recovery import open_partition
from tests.unit.log_files import INCARNATION, Stored, batch, write


def falling(start: int, timestamps: list[int]) -> Stored:
    """A segment with one message at each of these times."""
    log, index = b"", b""
    borders = [0]
    for number, timestamp in enumerate(timestamps):
        records, entries = batch(start + number, [bytes([number]) * 30], timestamp, start, len(log))
        log, index = log + records, index + entries
        borders.append(len(log))
    return Stored(start, log, index, borders)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "streams/0/topics/0/partitions/0"


def counts(recovered: Recovered) -> list[int]:
    return [each[2] for each in recovered.segments]


def test_falling_timestamps_of_an_import_are_whole(directory: Path) -> None:
    sealed, active = falling(0, [50, 40, 60]), falling(3, [30, 20, 10, 70, 5])
    write(directory, sealed, active)
    write_imported(directory, OPEN_END)
    for _ in range(2):
        recovered = open_partition(directory, INCARNATION)
        assert (recovered.state, recovered.notes, counts(recovered)) == (0, [], [3, 5])
        assert read_imported(directory) == 8
    assert layout.segment_log(directory, 3).read_bytes() == active.log


@pytest.mark.parametrize("index", [b"", b"x" * 24, "half"])
def test_its_indexes_are_written_again(directory: Path, index: bytes | str) -> None:
    stored = [falling(0, [50, 40, 60]), falling(3, [30, 20, 10, 70, 5])]
    write(directory, *stored)
    write_imported(directory, OPEN_END)
    for each in stored:
        path = layout.segment_index(directory, each.start)
        path.write_bytes(each.index[:24] if isinstance(index, str) else index)
    recovered = open_partition(directory, INCARNATION)
    assert (recovered.state, counts(recovered)) == (0, [3, 5])
    for each in stored:
        assert layout.segment_index(directory, each.start).read_bytes() == each.index


def test_a_torn_tail_behind_a_fall_is_cut(directory: Path) -> None:
    active = falling(0, [30, 20, 10])
    write(directory, active)
    write_imported(directory, OPEN_END)
    layout.segment_log(directory, 0).write_bytes(active.log[:-5])
    recovered = open_partition(directory, INCARNATION)
    assert (recovered.state, counts(recovered), read_imported(directory)) == (0, [2], 2)


def test_damage_before_a_fall_is_not_taken_for_a_torn_tail(directory: Path) -> None:
    """Without an import the older timestamps would be those of recycled space."""
    active = falling(0, [90, 80, 10, 5])
    write(directory, active)
    write_imported(directory, OPEN_END)
    damaged = bytearray(active.log)
    damaged[active.borders[1] + 70] ^= 1
    layout.segment_log(directory, 0).write_bytes(damaged)
    recovered = open_partition(directory, INCARNATION)
    assert (recovered.state, counts(recovered)) == (0, [4])
    assert recovered.damaged == [(1, 2, False)]
    assert layout.segment_log(directory, 0).read_bytes() == damaged
    assert read_imported(directory) == 4, "what is appended from now on may not fall"


def test_what_is_appended_behind_it_must_not_fall(directory: Path) -> None:
    active = falling(0, [50, 40, 60, 30])
    write(directory, active)
    write_imported(directory, 3)
    assert counts(open_partition(directory, INCARNATION)) == [3]


def test_a_partition_without_the_marker_keeps_the_rule(directory: Path) -> None:
    write(directory, falling(0, [50, 40]))
    assert counts(open_partition(directory, INCARNATION)) == [1]


@pytest.mark.parametrize("content", [b"SHRDIMP1", b"", bytes(16), bytes((16 << 20) + 1)])
def test_a_damaged_marker_leaves_the_log_readable(directory: Path, content: bytes) -> None:
    """Without it whole messages would look damaged: so timestamps may fall, and nothing is cut."""
    write(directory, falling(0, [50, 40, 60, 30]))
    (directory / layout.IMPORTED).write_bytes(content)
    for _ in range(2):
        recovered = open_partition(directory, INCARNATION)
        assert counts(recovered) == [4]
        assert any("timestamps may fall everywhere" in note for note in recovered.notes)
        assert (directory / layout.IMPORTED).read_bytes() == content
