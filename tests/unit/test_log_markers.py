"""The incarnation marker of a partition directory that is missing, damaged or of another version (recovery.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardd.log import layout
from shardd.log.incarnation import read_incarnation
from shardd.log.marker import UnknownMarkerError
from shardd.log.recovery import open_partition
from shardd.protocol.errors import Status
from tests.unit.log_files import INCARNATION, segment, tree, write

READ_ONLY = Status.INVALID_MESSAGE_CHECKSUM


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return layout.partition_directory(tmp_path, 3, 2, 1)


NEVER_SYNCED = (None, b"", b"SHRDINC1", bytes(16))
DAMAGED_MARKERS = (b"SHRDING1" + bytes(8), b"SHRDINC1" + bytes(9))


def put_marker(directory: Path, marker: bytes | None) -> None:
    (directory / layout.INCARNATION).unlink()
    if marker is not None:
        (directory / layout.INCARNATION).write_bytes(marker)


@pytest.mark.parametrize("marker", [*NEVER_SYNCED, *DAMAGED_MARKERS])
def test_missing_or_damaged_marker_without_messages_is_made_again(directory: Path, marker: bytes | None) -> None:
    write(directory, segment(0, []))
    put_marker(directory, marker)
    recovered = open_partition(directory, INCARNATION)
    assert (recovered.state, recovered.segments[0][2]) == (0, 0)
    assert read_incarnation(directory) == INCARNATION


@pytest.mark.parametrize("marker", NEVER_SYNCED)
def test_messages_whose_marker_never_came_to_the_device_are_kept_aside(directory: Path, marker: bytes | None) -> None:
    for suffix in (".unmarked", ".unmarked.1"):
        write(directory, segment(0, [2]))
        put_marker(directory, marker)
        before = tree(directory)
        recovered = open_partition(directory, INCARNATION)
        assert (recovered.state, recovered.segments, len(recovered.notes)) == (0, [], 1)
        assert not directory.exists()
        assert tree(directory.with_name(directory.name + suffix)) == before


@pytest.mark.parametrize("marker", DAMAGED_MARKERS)
def test_messages_with_a_damaged_marker_are_read_only(directory: Path, marker: bytes) -> None:
    write(directory, segment(0, [2]))
    put_marker(directory, marker)
    recovered = open_partition(directory, INCARNATION)
    assert (recovered.state, recovered.segments[0][2]) == (READ_ONLY, 2)
    assert (directory / layout.INCARNATION).read_bytes() == marker


@pytest.mark.parametrize("marker", [*NEVER_SYNCED, *DAMAGED_MARKERS])
def test_a_manifest_tells_the_incarnation_when_the_marker_does_not(directory: Path, marker: bytes | None) -> None:
    write(directory, segment(0, [2]))
    open_partition(directory, INCARNATION)  # makes the manifest
    put_marker(directory, marker)
    recovered = open_partition(directory, INCARNATION)
    assert (recovered.state, recovered.segments[0][2]) == (0, 2)
    assert read_incarnation(directory) == INCARNATION
    put_marker(directory, marker)
    assert open_partition(directory, INCARNATION + 1).segments == []
    assert not directory.exists()  # of an earlier incarnation: in the trash


def test_a_marker_of_a_later_version_is_never_written_over(directory: Path) -> None:
    for stored in (segment(0, []), segment(0, [2])):
        write(directory, stored)
        (directory / layout.INCARNATION).write_bytes(b"SHRDINC2" + bytes(20))
        before = tree(directory)
        with pytest.raises(UnknownMarkerError, match="format version 2, which this program does not know; it knows 1"):
            open_partition(directory, INCARNATION)
        assert tree(directory) == before
