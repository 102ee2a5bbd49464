"""Data directories that somebody has prepared: a start ends with a sentence, or goes on without what is wrong; nothing
outside is read or changed, nothing waits, and no number makes it allocate without bound."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from shardd.backup.history import encode_metadata
from shardd.log import layout
from shardd.log.directory_info import INFO_NAME, read_info
from shardd.log.foreign import sweep_streams
from shardd.log.offsets_table import OFFSET_CONSUMER, StoredOffset
from shardd.log.recovery import open_partition
from shardd.log.stored_offsets import write_table
from shardd.metadata import commands
from shardd.metadata.apply import ApplyError, apply
from shardd.metadata.errors import LogError
from shardd.metadata.load import load_state
from shardd.metadata.log_file import FILE_NAME
from shardd.metadata.records import FIRST_DIGEST, decode_record, encode_record
from shardd.metadata.snapshot import HEADER, MAGIC, SNAPSHOT_NAME
from shardd.metadata.state import State
from tests.support import wire
from tests.unit.backup_data import DataDirectory
from tests.unit.log_files import INCARNATION, segment, tree, write
from tests.unit.services_harness import Workers

TERABYTE = 1 << 40


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a partition with two segments and a stored offset."""
    path = layout.partition_directory(tmp_path / "data", 0, 0, 0)
    write(path, segment(0, [3]), segment(3, [2], timestamp=2000))
    write_table(path, INCARNATION, [StoredOffset(OFFSET_CONSUMER, 1, 0)])
    open_partition(path, INCARNATION)  # makes the manifests
    return path


def a_link(path: Path, outside: Path) -> None:
    path.rename(outside)
    path.symlink_to(outside)


def a_fifo(path: Path, _outside: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_device(path: Path, _outside: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


NAMES = (f"{0:020}.log", f"{3:020}.log", f"{3:020}.index", f"{3:020}.manifest", "incarnation", "consumer-offsets")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", [a_link, a_fifo, a_device])
def test_what_is_no_regular_file_in_a_partition_is_not_read(
    directory: Path, tmp_path: Path, change: Callable[[Path, Path], None], name: str
) -> None:
    """The partition stays closed, or is opened without it."""
    outside = tmp_path / "outside"
    change(directory / name, outside)
    before = outside.read_bytes() if outside.exists() else None
    try:
        recovered = open_partition(directory, INCARNATION)
    except (OSError, ValueError) as error:
        assert str(directory) in str(error)
        recovered = None
    assert (outside.read_bytes() if outside.exists() else None) == before
    if recovered is not None:
        assert recovered.notes and sum(each[2] for each in recovered.segments) < 5 and name.endswith(".log")


@pytest.mark.parametrize("level", range(6))
def test_no_partition_is_opened_through_a_linked_directory(directory: Path, tmp_path: Path, level: int) -> None:
    linked = (directory, *directory.parents)[level]
    a_link(linked, tmp_path / "outside")
    before = tree(tmp_path / "outside")
    with pytest.raises(ValueError, match=f"^{linked} is a symbolic link"):
        open_partition(directory, INCARNATION)
    assert tree(tmp_path / "outside") == before


def test_a_data_directory_that_is_itself_reached_through_a_link_works(directory: Path, tmp_path: Path) -> None:
    a_link(tmp_path / "data", tmp_path / "elsewhere")
    recovered = open_partition(directory, INCARNATION)
    assert [each[:3:2] for each in recovered.segments] == [(0, 3), (3, 2)] and not recovered.notes


def test_linked_directories_of_stored_offsets_are_refused(directory: Path, tmp_path: Path) -> None:
    (directory / layout.OFFSETS).mkdir()
    a_link(directory / layout.OFFSETS, tmp_path / "outside")
    with pytest.raises(ValueError, match="symbolic link"):
        open_partition(directory, INCARNATION)


def test_a_sweep_moves_nothing_that_is_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write(outside, segment(0, [1]))
    place = layout.partition_directory(tmp_path / "data", 0, 0, 9)
    place.parent.mkdir(parents=True)
    place.symlink_to(outside)
    (place.parent / "..9").mkdir()
    assert all(
        "left alone" in each for each in sweep_streams(tmp_path / "data", {}, 99, lambda _: True, report_foreign=True)
    )
    assert place.is_symlink() and (outside / f"{0:020}.log").exists()


@pytest.mark.parametrize("name", [f"{0:020}.manifest", f"{3:020}.manifest", "incarnation", "consumer-offsets"])
def test_small_files_of_absurd_size_are_not_read_into_memory(directory: Path, name: str) -> None:
    os.truncate(directory / name, TERABYTE) if (directory / name).exists() else (directory / name).touch()
    try:
        assert open_partition(directory, INCARNATION).notes
    except ValueError as error:
        assert "bytes" in str(error)


@pytest.mark.parametrize("name", [INFO_NAME, FILE_NAME, SNAPSHOT_NAME])
@pytest.mark.parametrize("kind", ["terabyte", "fifo", "link", "zero"])
def test_what_describes_the_directory_is_refused_with_a_sentence(tmp_path: Path, name: str, kind: str) -> None:
    data = DataDirectory(tmp_path / "data").path
    if kind == "terabyte":
        os.truncate(data / name, TERABYTE)
    else:
        {"fifo": a_fifo, "link": a_link, "zero": a_device}[kind](data / name, tmp_path / "outside")
    with pytest.raises((ValueError, LogError)) as refusal:
        read_info(data) if name == INFO_NAME else load_state(data / FILE_NAME)
    assert name in str(refusal.value)


@pytest.mark.parametrize(
    "image",
    [
        [[[0, "s", 1, 1, [[0, "t", 1, 1, 1, 1, 1, 1, [[2**40, 1, 1, 0]], [], [], {}]], []]], [], [], [], [], 1, []],
        [[[0, "s", 1, 1, [[0, "t", 1, 1, 1, 1, 1, 1, [[1, 1, 1, 2**40]], [], [], {}]], []]], [], [], [], [], 1, []],
        [[[0, "s", 1, 1, [[0, "t", 1, 1, 1, 1, 1, 1, [[-5, 1, 1, 0]], [], [], {}]], []]], [], [], [], [], 1, []],
        [[[5000, "s", 1, 1, [], []]], [], [], [], [], 1, []],
        [[], [], [], [], [2**50], 1, []],
        [[], [], [], [], [], 2**50, []],
    ],
)
def test_counts_and_ids_of_a_snapshot_beyond_all_are_refused_before_anything_is_made_of_them(
    tmp_path: Path, image: object
) -> None:
    encoded = msgspec.msgpack.encode(image)
    body = HEADER.pack(MAGIC, 1, 0, 7, b"d" * 32, len(encoded)) + encoded
    (tmp_path / SNAPSHOT_NAME).write_bytes(body + hashlib.sha256(body).digest())
    with pytest.raises(LogError, match="state that this version does not know"):
        load_state(tmp_path / FILE_NAME)


def test_a_metadata_record_that_makes_millions_of_partitions_is_refused(tmp_path: Path) -> None:
    data, _ = encode_record(FIRST_DIGEST, 1, 1, 1, 0, commands.CreateStream("s"))
    record, _ = decode_record(memoryview(data), 0, FIRST_DIGEST, 1)
    state = apply(State(), record)
    command = commands.CreateTopic(commands.Ref(0, 1), "t", 2**31, 1, 1, 1, 1)
    data, _ = encode_record(record.digest, 2, 1, 1, 0, command)
    with pytest.raises(ApplyError, match="no place"):
        apply(state, decode_record(memoryview(data), 0, record.digest, 2)[0])


@pytest.mark.io_engine
def test_a_server_on_a_tampered_directory_serves_what_is_whole(tmp_path: Path) -> None:
    """One partition is a link to somebody's directory, one log a FIFO: both are refused, the others go on."""
    data, outside = tmp_path / "data", tmp_path / "outside"
    with Workers(data) as workers:
        connection = workers.connect()
        connection.create_topic(connection.create_stream("s"), "t", 3)
        for partition in range(3):
            connection.send(0, 0, wire.to_partition(partition), [wire.message(b"%d" % partition)])
    a_link(layout.partition_directory(data, 0, 0, 0), outside)
    a_fifo(layout.segment_log(layout.partition_directory(data, 0, 0, 1), 0), outside)
    before = tree(outside)
    with Workers(data) as workers:
        connection = workers.connect()
        with pytest.raises(wire.StatusError):
            connection.send(0, 0, wire.to_partition(0), [wire.message(b"into somebody's directory")])
        with pytest.raises(wire.StatusError):
            connection.poll(0, 0, 0, value=0, count=1)
        connection.send(0, 0, wire.to_partition(2), [wire.message(b"goes on")])
        assert [each.payload for each in connection.read_all(0, 0, 2)] == [b"2", b"goes on"]
    assert tree(outside) == before


def test_the_metadata_of_a_restore_is_read_back(tmp_path: Path) -> None:
    state = DataDirectory(tmp_path / "data").state()
    snapshot, log = encode_metadata(state)
    (tmp_path / SNAPSHOT_NAME).write_bytes(snapshot)
    (tmp_path / FILE_NAME).write_bytes(log)
    assert load_state(tmp_path / FILE_NAME) == state
