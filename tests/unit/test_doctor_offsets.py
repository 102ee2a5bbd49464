"""`shardd doctor log` tells what is damaged in stored offsets, and drops it on request."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from shardd.cli.main import app
from shardd.log import layout
from shardd.log.offsets_table import ENTRY_BYTES, HEAD_BYTES, OFFSET_CONSUMER, StoredOffset
from shardd.log.stored_offsets import read_table, write_table
from tests.unit.log_files import INCARNATION, segment, tree, write

STORED = [StoredOffset(OFFSET_CONSUMER, number, 2) for number in range(5)]


def partition(data: Path) -> Path:
    path = layout.partition_directory(data, 0, 0, 0)
    write(path, segment(0, [3]))
    return path


def doctor(data: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", "log", str(data), *options])
    return result.exit_code, result.output


def test_damaged_offsets_are_told_and_dropped_on_request(tmp_path: Path) -> None:
    directory = partition(tmp_path)
    write_table(directory, INCARNATION, STORED)
    assert doctor(tmp_path)[0] == 0
    table = directory / layout.CONSUMER_OFFSETS
    content = bytearray(table.read_bytes())
    content[HEAD_BYTES + ENTRY_BYTES + 9] ^= 4
    content[30] ^= 4
    table.write_bytes(content)
    before = tree(tmp_path)
    status, output = doctor(tmp_path)
    assert status == 1 and "1 entries are damaged, their stored offsets are lost: 1" in output
    assert "its head is damaged" in output
    assert tree(tmp_path) == before
    status, output = doctor(tmp_path, "--repair", "--yes")
    assert status == 0 and f"written anew: {table}" in output
    found = read_table(directory, INCARNATION)
    assert found is not None and found.is_whole
    assert found.offsets == [each for each in STORED if each.id != 1]
    assert doctor(tmp_path)[0] == 0


def test_files_of_version_1_that_are_no_offsets_are_noted(tmp_path: Path) -> None:
    holder = partition(tmp_path) / layout.OFFSETS / layout.CONSUMERS
    holder.mkdir(parents=True)
    (holder / "7").write_bytes(b"cut")
    status, output = doctor(tmp_path)
    assert status == 0 and "note: " in output and "3 bytes instead of 8" in output


def test_a_link_in_the_place_of_the_table_is_not_followed(tmp_path: Path) -> None:
    directory = partition(tmp_path)
    (directory / layout.CONSUMER_OFFSETS).symlink_to("/dev/zero")
    before = sorted(directory.iterdir())
    status, output = doctor(tmp_path, "--repair", "--yes")
    assert status == 1 and "cannot be read" in output and "symbolic link" in output
    assert sorted(directory.iterdir()) == before


def test_segments_beside_a_marker_of_a_later_version_are_listed(tmp_path: Path) -> None:
    (partition(tmp_path) / layout.INCARNATION).write_bytes(b"SHRDINC2" + bytes(8))
    status, output = doctor(tmp_path)
    assert status == 1 and "0/0/0  0 to 3" in output and output.count("has format version 2") == 1, output
