"""Stored offsets of a partition: the files of format version 1 are taken over whatever stops it, tables are written
anew when that is worth it, damage is told."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from shardd.log import layout
from shardd.log.incarnation import write_incarnation
from shardd.log.offsets_table import (
    ENTRY_BYTES,
    HALF_BYTES,
    HEAD_BYTES,
    OFFSET_CONSUMER,
    OFFSET_GROUP,
    VERSION,
    Half,
    StoredOffset,
    encode_half,
    encode_head,
    encode_table,
)
from shardd.log.recovered import Recovered
from shardd.log.recovery import open_partition
from shardd.log.stored_offsets import read_offsets, read_table, repair_table, write_table
from tests.support.first_offsets import first_table
from tests.unit.log_files import INCARNATION, segment, tree, write, write_offset_files

SECTOR_BYTES = 512
OFFSET = StoredOffset(OFFSET_CONSUMER, 7, 11)
STORED = [
    StoredOffset(OFFSET_CONSUMER, 7, 2),
    StoredOffset(OFFSET_CONSUMER, 2**32 - 1, 1),
    StoredOffset(OFFSET_GROUP, 0, 0),
]
Change = Callable[[Path], None]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = layout.partition_directory(tmp_path / "data", 0, 0, 0)
    write(path, segment(0, [3]))
    return path


def stored(directory: Path) -> list[StoredOffset]:
    """What an opening has left in the table: each entry has a time, which is none of the test's."""
    table = read_table(directory, INCARNATION)
    found = [] if table is None else sorted(table.offsets)
    assert all(each.used_us for each in found)
    return [each._replace(used_us=0) for each in found]


def test_the_files_of_version_1_are_taken_over(directory: Path) -> None:
    write_offset_files(directory, STORED)
    (directory / layout.OFFSETS / layout.GROUPS / "3.tmp").write_bytes(b"")  # a birth that was cut short
    recovered = open_partition(directory, INCARNATION)
    assert (recovered.notes, recovered.groups) == ([], [0])
    assert stored(directory) == sorted(STORED)
    assert not (directory / layout.OFFSETS).exists()
    assert sum(path.name.endswith("-offsets") for path in layout.trash_of_partition(directory).iterdir()) == 1
    before = tree(directory)
    assert open_partition(directory, INCARNATION) == recovered
    assert tree(directory) == before


def test_what_cannot_be_taken_over_is_told_once_and_kept(directory: Path) -> None:
    write_offset_files(directory, STORED)
    consumers = directory / layout.OFFSETS / layout.CONSUMERS
    (consumers / "8").write_bytes(b"short")
    (consumers / "9").write_bytes(bytes(9))
    for name in ("x", "07", "4294967296"):
        (consumers / name).write_bytes(bytes(8))
    (consumers / "10").mkdir()
    recovered = open_partition(directory, INCARNATION)
    assert len(recovered.notes) == 7 and "is kept as offsets.imported" in recovered.notes[-1]
    assert stored(directory) == sorted(STORED)
    assert (directory / layout.OFFSETS_KEPT / layout.CONSUMERS / "8").read_bytes() == b"short"
    assert open_partition(directory, INCARNATION).notes == []


def test_what_the_import_of_an_iggy_directory_has_kept_stays(directory: Path) -> None:
    write_offset_files(directory, STORED)
    (directory / layout.OFFSETS / "groups.imported").mkdir()
    open_partition(directory, INCARNATION)
    assert (directory / layout.OFFSETS_KEPT / "groups.imported").is_dir() and stored(directory) == sorted(STORED)


def test_the_table_counts_while_both_are_there(directory: Path) -> None:
    write_offset_files(directory, [StoredOffset(OFFSET_CONSUMER, 7, 0), StoredOffset(OFFSET_CONSUMER, 8, 0)])
    write_table(directory, INCARNATION, STORED)
    assert open_partition(directory, INCARNATION).notes == []
    assert stored(directory) == sorted(STORED) and not (directory / layout.OFFSETS).exists()


def test_the_files_of_another_incarnation_are_not_taken_over(directory: Path) -> None:
    write_offset_files(directory, STORED)
    write_incarnation(directory, INCARNATION - 1)
    assert "earlier incarnation" in open_partition(directory, INCARNATION).notes[0]
    assert not directory.exists()


@pytest.mark.parametrize("marker", [None, b"SHRDINC1"])
def test_offsets_beside_a_marker_that_is_lost_are_taken_over(directory: Path, marker: bytes | None) -> None:
    """A manifest tells the incarnation, or nothing does and the partition is read only."""
    open_partition(directory, INCARNATION)  # makes the manifest
    write_offset_files(directory, STORED)
    (directory / layout.INCARNATION).unlink()
    if marker is not None:
        (directory / layout.INCARNATION).write_bytes(marker)
    open_partition(directory, INCARNATION)
    assert stored(directory) == sorted(STORED)


class _StoppedError(Exception):
    """Here the process died."""


CHANGES = ("os.open", "os.fsync", "os.replace", "os.rename", "os.mkdir")


def _stop_at(monkeypatch: pytest.MonkeyPatch, step: int) -> list[str]:
    """Lets so many changes of the directory happen; the list of those that did."""
    done: list[str] = []

    def counted(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def change(*arguments: object, **named: object) -> object:
            if len(done) == step:
                raise _StoppedError
            done.append(name)
            return call(*arguments, **named)

        return change

    for name in CHANGES:
        module, _, function = name.partition(".")
        assert module == "os"
        monkeypatch.setattr(os, function, counted(name, getattr(os, function)))
    return done


def test_an_import_that_is_stopped_at_any_step_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the next start finds: everything is stored, in the one place or in the other."""
    steps = 0
    for step in range(200):
        directory = layout.partition_directory(tmp_path / str(step), 0, 0, 0)
        write(directory, segment(0, [3]))
        open_partition(directory, INCARNATION)
        write_offset_files(directory, STORED)
        with monkeypatch.context() as patched:
            done = _stop_at(patched, step)
            try:
                open_partition(directory, INCARNATION)
                whole = True
            except _StoppedError:
                whole = False
        offsets, notes = read_offsets(directory, INCARNATION)
        assert (sorted(each[:3] for each in offsets), notes) == (sorted(each[:3] for each in STORED), []), done
        assert open_partition(directory, INCARNATION).notes == []
        assert stored(directory) == sorted(STORED) and not (directory / layout.OFFSETS).exists()
        if whole:
            steps = step
            break
        shutil.rmtree(tmp_path / str(step))
    assert steps >= 6 and {"os.fsync", "os.rename"} <= set(done)


def test_an_import_without_room_keeps_the_partition_closed_and_the_files(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_offset_files(directory, STORED)
    before = tree(directory)

    def full(_path: Path, _content: bytes, _bytes_max: int = 0) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(layout, "write_durably", full)
        with pytest.raises(OSError, match="No space"):
            open_partition(directory, INCARNATION)
    assert tree(directory / layout.OFFSETS) == {k[8:]: v for k, v in before.items() if k.startswith("offsets/")}
    open_partition(directory, INCARNATION)
    assert stored(directory) == sorted(STORED)


# ---- tables ----


def test_a_table_that_is_mostly_free_is_written_anew(directory: Path) -> None:
    sequence = iter(range(1, 1000))
    entries = [
        encode_half(Half(next(sequence), OFFSET_GROUP, number, 2, 1)) + bytes(HALF_BYTES) for number in range(30)
    ]
    entries += [encode_half(Half(next(sequence), 0, 0, 0)) + bytes(HALF_BYTES)] * 91
    path = directory / layout.CONSUMER_OFFSETS
    path.write_bytes(encode_head(INCARNATION) + b"".join(entries))
    open_partition(directory, INCARNATION)
    assert path.stat().st_size == HEAD_BYTES + 30 * ENTRY_BYTES
    assert [each.id for each in stored(directory)] == list(range(30))
    path.write_bytes(encode_head(INCARNATION) + b"".join(entries[:-2]))  # a quarter is in use
    before = path.read_bytes()
    open_partition(directory, INCARNATION)
    assert path.read_bytes() == before


def test_a_table_of_version_1_is_taken_over_with_the_time_of_its_opening(directory: Path) -> None:
    path = directory / layout.CONSUMER_OFFSETS
    path.write_bytes(first_table(INCARNATION, STORED))
    assert read_offsets(directory, INCARNATION) == (STORED, [])
    before_us = time.time_ns() // 1000
    assert open_partition(directory, INCARNATION).notes == []
    table = read_table(directory, INCARNATION)
    assert table is not None and table.version == VERSION
    assert all(each.used_us >= before_us and not each.owner and not each.name for each in table.offsets)
    assert stored(directory) == sorted(STORED)
    content = path.read_bytes()
    open_partition(directory, INCARNATION)
    assert path.read_bytes() == content  # a later start is no use of them


def test_a_damaged_table_of_version_1_keeps_what_counts(directory: Path) -> None:
    content = bytearray(first_table(INCARNATION, STORED))
    content[20] ^= 1  # its head
    (directory / layout.CONSUMER_OFFSETS).write_bytes(content)
    recovered = open_partition(directory, INCARNATION)
    assert len(recovered.notes) == 1 and "its head is damaged" in recovered.notes[0]
    assert recovered.groups == [0]
    repair_table(directory, INCARNATION)
    table = read_table(directory, INCARNATION)
    assert table is not None and table.version == VERSION and table.is_whole
    assert sorted(each[:3] for each in table.offsets) == sorted(each[:3] for each in STORED)


def test_a_table_that_cannot_be_written_anew_is_used_as_it_is(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without room must not close a partition for the sake of its size."""
    open_partition(directory, INCARNATION)
    halves = [Half(number + 1, OFFSET_GROUP * (number < 3), number, 2) for number in range(99)]
    entries = [encode_half(half) + bytes(HALF_BYTES) for half in halves]
    (directory / layout.CONSUMER_OFFSETS).write_bytes(encode_head(INCARNATION) + b"".join(entries))
    before = tree(directory)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        recovered = open_partition(directory, INCARNATION)
    assert (recovered.notes, recovered.groups, recovered.state) == ([], [0, 1, 2], 0)
    assert tree(directory) == before
    open_partition(directory, INCARNATION)
    assert (directory / layout.CONSUMER_OFFSETS).stat().st_size == HEAD_BYTES + 3 * ENTRY_BYTES


def damaged(at: int) -> Change:
    def change(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        path.write_bytes(content)

    return change


def replaced(content: bytes) -> Change:
    def change(path: Path) -> None:
        path.write_bytes(content)

    return change


FAULTS: dict[str, tuple[Change, str, list[StoredOffset]]] = {
    "a flip in the head": (damaged(24), "its head is damaged, the stored offsets", STORED),
    "a flip in an entry": (damaged(HEAD_BYTES + 8), "1 entries are damaged, their stored offsets are lost", STORED[1:]),
    "a flip in a half": (damaged(HEAD_BYTES + ENTRY_BYTES - 1), "half of 1 entries is damaged", STORED),
    "another incarnation": (replaced(encode_table(9, STORED)), "of another incarnation, not read", []),
}  # fmt: skip


@pytest.mark.parametrize("about", FAULTS)
def test_damage_is_told_and_left_as_it_is(directory: Path, about: str) -> None:
    change, sentence, left = FAULTS[about]
    write_table(directory, INCARNATION, STORED)
    change(directory / layout.CONSUMER_OFFSETS)
    before = tree(directory)
    for _ in range(2):
        recovered = open_partition(directory, INCARNATION)
        assert len(recovered.notes) == 1 and sentence in recovered.notes[0]
        assert recovered.groups == [each.id for each in left if each.kind == OFFSET_GROUP]
    content = tree(directory)
    assert content[layout.CONSUMER_OFFSETS] == before[layout.CONSUMER_OFFSETS]


@pytest.mark.parametrize("content", [b"", b"SHRDOFFS", bytes(HEAD_BYTES), bytes(HEAD_BYTES + 3 * ENTRY_BYTES)])
def test_a_birth_that_never_came_to_the_device_is_no_damage(directory: Path, content: bytes) -> None:
    (directory / layout.CONSUMER_OFFSETS).write_bytes(content)
    assert open_partition(directory, INCARNATION).notes == []
    write_offset_files(directory, STORED)  # and it does not count against the files
    open_partition(directory, INCARNATION)
    assert stored(directory) == sorted(STORED)


def test_table_of_a_later_version_is_left_as_it_is_and_closes_no_partition(directory: Path) -> None:
    head = bytearray(encode_head(INCARNATION))
    head[8] = 3
    head[56:] = xxhash.xxh3_64_intdigest(bytes(head[:56])).to_bytes(8, "little")
    path = directory / layout.CONSUMER_OFFSETS
    path.write_bytes(head)
    write_offset_files(directory, STORED)
    before = tree(directory)
    notes = open_partition(directory, INCARNATION).notes
    assert any("has a format version that this program does not know" in note for note in notes), notes
    assert {name: each for name, each in tree(directory).items() if "offsets" in name} == {
        name: each for name, each in before.items() if "offsets" in name
    }


def test_a_partition_without_stored_offsets_needs_no_file(directory: Path) -> None:
    (directory / layout.OFFSETS / layout.CONSUMERS).mkdir(parents=True)
    assert isinstance(open_partition(directory, INCARNATION), Recovered)
    assert not (directory / layout.CONSUMER_OFFSETS).exists() and not (directory / layout.OFFSETS).exists()


def test_no_half_of_an_entry_crosses_a_sector() -> None:
    """Else a torn write could cost both."""
    assert 2 * HALF_BYTES == ENTRY_BYTES == len(encode_table(INCARNATION, [OFFSET])) - HEAD_BYTES
    for begin in range(HEAD_BYTES, HEAD_BYTES + 64 * ENTRY_BYTES, HALF_BYTES):
        assert begin // SECTOR_BYTES == (begin + HALF_BYTES - 1) // SECTOR_BYTES, begin
