"""Backups of data directories without a server: what is in them, what a check finds, what a restore gives."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from shardd.backup.create import Made, create_backup
from shardd.backup.format import BACKUP_NAME, BackupError, encode_backup, read_backup
from shardd.backup.restore import restore_backup
from shardd.backup.verify import verify_backup
from shardd.log import layout
from shardd.log.directory_info import read_info
from shardd.log.imported import encode_imported
from shardd.log.manifest import Checkpoint, Manifest, write_manifest
from shardd.log.recovery import open_partition
from shardd.log.segment_reader import opened
from shardd.log.single_pass import LogPass
from shardd.log.stored_offsets import read_offsets, write_table
from shardd.metadata import commands
from shardd.metadata.log_file import FILE_NAME
from shardd.runtime.throttle import Throttle
from shardd.server.data_directory import prepare_directory
from tests.support.history import incarnation_in, without_history
from tests.unit import backup_data, log_files
from tests.unit.backup_data import OFFSETS, SEGMENT_COUNT, DataDirectory, back_up, kept_log

SEALED = layout.segment_log(Path(), 0).name
TAIL = layout.segment_log(Path(), 2 * SEGMENT_COUNT).name


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    backup_data.quick(monkeypatch)


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    return DataDirectory(tmp_path / "data")


def test_a_restored_directory_is_that_of_the_backup_byte_for_byte(data: DataDirectory) -> None:
    made = back_up(data)
    before = without_history(data.path)
    assert verify_backup(made.path).damage == []
    restored = data.path.with_name("restored")
    restore_backup(made.path, restored)
    assert without_history(restored) == before
    prepare_directory(restored, fresh=False)
    for number in range(3):
        recovered = open_partition(layout.partition_directory(restored, 0, 0, number), incarnation_in(restored))
        assert recovered == open_partition(data.partition(number), data.incarnation(number))
        assert not recovered.notes


def test_a_backup_holds_nothing_of_the_running_server_and_no_leftovers(data: DataDirectory) -> None:
    for name in (".lock", "state.reserve", "state.messages.torn", "state.messages.tmp", "info.json.tmp"):
        (data.path / name).write_bytes(b"x")
    for path in (data.path / "trash" / "1-2-3-0", data.path / "runtime", data.partition(0)):
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{SEALED}.tmp").write_bytes(b"x")
        (path / f"{SEALED.removesuffix('.log')}.torn").write_bytes(b"x")
    foreign = layout.partition_directory(data.path, 3, 0, 0)
    log_files.write(foreign, log_files.segment(0, [3]))
    made = back_up(data)
    logs = {str(path.relative_to(made.path)) for path in made.path.rglob("*.log")}
    assert {path for path in log_files.tree(made.path) if not path.endswith(".log")} == {
        BACKUP_NAME, "state.messages", "state.snapshot",
    }  # fmt: skip
    assert logs == {
        str(path.relative_to(data.path)) for path in data.path.rglob("*.log") if foreign not in path.parents
    }


def test_an_offset_that_was_stored_before_the_first_message_is_kept(data: DataDirectory) -> None:
    """Such a partition has no marker yet."""
    holder = data.partition(2) / layout.OFFSETS / layout.CONSUMERS
    holder.mkdir(parents=True)
    (holder / "9").write_bytes(bytes(8))
    made = back_up(data)
    restore_backup(made.path, data.path.with_name("restored"))
    directory = layout.partition_directory(data.path.with_name("restored"), 0, 0, 2)
    assert read_offsets(directory, incarnation_in(data.path.with_name("restored"))) == ([(1, 9, 0, 0, 0, 0)], [])


def test_the_use_of_stored_offsets_is_in_the_backup(data: DataDirectory, tmp_path: Path) -> None:
    used = [OFFSETS[0]._replace(used_us=5, owner=17, name=2**64 - 1), OFFSETS[1]]
    source = layout.partition_directory(data.path, 0, 0, 0)
    write_table(source, incarnation_in(data.path), used)
    made = back_up(data)
    assert made.backup.format_version == 3
    verify_backup(made.path)
    restore_backup(made.path, tmp_path / "restored")
    directory = layout.partition_directory(tmp_path / "restored", 0, 0, 0)
    assert read_offsets(directory, incarnation_in(tmp_path / "restored")) == (used, [])


@pytest.mark.parametrize("version", [1, 2])
def test_a_restore_makes_a_directory_of_the_version_that_was_backed_up(tmp_path: Path, version: int) -> None:
    made = back_up(DataDirectory(tmp_path / "data", version=version))
    assert (made.backup.format_version, made.backup.data_format_version) == (version, version)
    restored = tmp_path / "restored"
    restore_backup(made.path, restored)
    info = read_info(restored)
    assert info is not None and info.format_version == version
    directory = layout.partition_directory(restored, 0, 0, 0)
    assert (directory / layout.CONSUMER_OFFSETS).exists() is (version == 2)
    assert (directory / layout.OFFSETS).exists() is (version == 1)
    assert read_offsets(directory, incarnation_in(restored)) == (OFFSETS, [])
    open_partition(directory, incarnation_in(restored))  # as the next server does
    offsets, notes = read_offsets(directory, incarnation_in(restored))
    assert ([each._replace(used_us=0) for each in offsets], notes) == (OFFSETS, [])
    assert all(each.used_us for each in offsets)  # what has no time counts as used at that start
    assert not (directory / layout.OFFSETS).exists()


def test_sealed_segments_are_linked_and_the_newest_is_copied(data: DataDirectory) -> None:
    made = back_up(data)
    assert kept_log(made, 0).samefile(data.log(0, 0))
    assert not kept_log(made, 2 * SEGMENT_COUNT).samefile(data.log(0, 2 * SEGMENT_COUNT))
    kept = [segment.kept for segment in made.backup.partitions[0].segments]
    assert kept == ["linked", "linked", "copied"]
    with data.log(0, 2 * SEGMENT_COUNT).open("ab") as log:  # the server goes on
        log.write(log_files.segment(3 * SEGMENT_COUNT, [3], 5000).log)
    assert verify_backup(made.path).damage == []


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EXDEV, "another file system")


@pytest.mark.parametrize("may_link", [True, False])
def test_backup_reads_each_log_once(data: DataDirectory, monkeypatch: pytest.MonkeyPatch, may_link: bool) -> None:
    """The proof before its end needs no second pass over all data."""
    read, plain = Counter[str](), os.preadv

    def count(descriptor: int, buffers: list[memoryview], *arguments: int) -> int:
        filled = plain(descriptor, buffers, *arguments)
        read[str(Path(f"/proc/self/fd/{descriptor}").readlink())] += filled
        return filled

    monkeypatch.setattr(os, "preadv", count)
    if not may_link:
        monkeypatch.setattr(os, "link", refuse)
    made = back_up(data)
    assert not made.backup.left_out
    logs = [data.log(0, start) for start in (0, SEGMENT_COUNT, 2 * SEGMENT_COUNT)] + [data.log(1, 0)]
    assert read == {str(path): path.stat().st_size for path in logs}


def test_without_links_everything_is_copied(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    linked = back_up(data)
    monkeypatch.setattr(os, "link", refuse)
    copied = back_up(data)
    assert {segment.kept for entry in copied.backup.partitions for segment in entry.segments} == {"copied"}
    assert log_files.tree(copied.path).items() >= {
        (name, content) for name, content in log_files.tree(linked.path).items() if name != BACKUP_NAME
    }
    assert verify_backup(copied.path).damage == []


# ---- tails and damage ----


def tail_of(made: Made) -> bytes:
    return kept_log(made, 2 * SEGMENT_COUNT).read_bytes()


@pytest.mark.parametrize("tail", [bytes(5000), b"\1" * 40, b"torn" * 100], ids=["zeros", "half a header", "garbage"])
def test_only_whole_records_of_the_newest_segment_are_kept(data: DataDirectory, tail: bytes) -> None:
    whole = data.log(0, 2 * SEGMENT_COUNT).read_bytes()
    with data.log(0, 2 * SEGMENT_COUNT).open("ab") as log:
        log.write(tail)
    made = back_up(data)
    assert tail_of(made) == whole
    assert made.backup.partitions[0].end_offset == 3 * SEGMENT_COUNT
    assert not made.backup.warnings


@pytest.mark.parametrize("length", [1, 31, 60])
def test_a_metadata_record_that_is_being_written_is_not_kept(data: DataDirectory, length: int) -> None:
    path = data.path / FILE_NAME
    whole, state = path.read_bytes(), data.state()
    data.change(commands.CreateStream("later"))
    unfinished = path.read_bytes()[: len(whole) + length]
    path.write_bytes(unfinished)
    made = back_up(data)
    assert (made.path / FILE_NAME).read_bytes() == whole
    assert made.backup.metadata.index == state.index
    assert verify_backup(made.path).damage == []
    assert path.read_bytes() == unfinished, "a backup changes nothing"


def test_a_server_without_anything_can_be_backed_up(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    prepare_directory(tmp_path / "data", fresh=False)
    made = create_backup(tmp_path / "data", tmp_path / "backups")
    assert verify_backup(made.path).damage == []
    restore_backup(made.path, tmp_path / "restored")
    prepare_directory(tmp_path / "restored", fresh=False)


def test_every_length_of_a_torn_tail_gives_the_records_before_it(tmp_path: Path) -> None:
    segment = log_files.segment(0, [4])
    path = tmp_path / "log"
    for length in range(len(segment.log)):
        path.write_bytes(segment.log[:length])
        kept = bytearray()
        with opened(path, os.O_RDONLY) as log:
            content = LogPass(log, 0, 0, Throttle(), copy=kept.extend).tail()
        count = sum(border <= length for border in segment.borders) - 1
        assert (content.count, content.damage) == (count, "")
        assert kept == segment.log[: segment.borders[count]]


@pytest.mark.parametrize("start", [0, 2 * SEGMENT_COUNT], ids=["sealed", "newest"])
def test_damage_in_history_is_told_and_taken_as_it_is(data: DataDirectory, start: int) -> None:
    content = bytearray(data.log(0, start).read_bytes())
    content[len(content) // 2] ^= 1
    data.log(0, start).write_bytes(content)
    made = back_up(data)
    (warning,) = made.backup.warnings
    assert str(data.log(0, start)) in warning
    assert kept_log(made, start).read_bytes() == content
    assert verify_backup(made.path).damage == [], "the backup is what the server had"
    restored = data.path.with_name("restored")
    restore_backup(made.path, restored)
    assert layout.segment_log(layout.partition_directory(restored, 0, 0, 0), start).read_bytes() == content


def test_a_newest_segment_that_is_shorter_than_its_manifest_says_is_damaged(data: DataDirectory) -> None:
    start = 2 * SEGMENT_COUNT
    log = data.log(0, start).read_bytes()
    point = Checkpoint(len(log), SEGMENT_COUNT, 1000 + start, 1001 + start)
    write_manifest(data.partition(0), Manifest(data.incarnation(0), start, checkpoint=point), durable=False)
    assert not back_up(data).backup.warnings
    data.log(0, start).write_bytes(log[:-10])
    made = back_up(data)
    assert "its manifest tells" in made.backup.warnings[0]
    assert kept_log(made, start).read_bytes() == log[:-10], "as it was found"


def test_timestamps_of_an_import_may_fall(data: DataDirectory) -> None:
    first, second = log_files.segment(0, [5], 9000), log_files.segment(5, [5], 100)
    data.log(1, 0).write_bytes(first.log + second.log)
    assert back_up(data).backup.partitions[1].end_offset == 5, "a clock that goes back is damage elsewhere"
    (data.partition(1) / layout.IMPORTED).write_bytes(encode_imported(10))
    made = back_up(data)
    assert (made.backup.partitions[1].end_offset, made.backup.partitions[1].imported_end) == (10, 10)
    assert verify_backup(made.path).damage == []


# ---- flips ----


def flips(path: Path, step: int) -> Iterator[int]:
    """Flips a byte, gives its position, and flips it back; the first and the last one, too. The inode stays."""
    size = path.stat().st_size
    with path.open("r+b", buffering=0) as file:
        for position in sorted({*range(0, size, step), size - 1}):
            byte = os.pread(file.fileno(), 1, position)
            os.pwrite(file.fileno(), bytes([byte[0] ^ 0x10]), position)
            yield position
            os.pwrite(file.fileno(), byte, position)


@pytest.mark.parametrize(
    ("name", "step"),
    [(BACKUP_NAME, 1), ("state.messages", 23), ("state.snapshot", 23), (SEALED, 97), (TAIL, 97), ("manifest", 1)],
)
def test_a_flip_in_any_file_is_found(data: DataDirectory, name: str, step: int) -> None:
    data.log(0, 0).with_suffix(".manifest").write_bytes(b"SHRDMANI of a sealed segment")
    made = back_up(data)
    if name == "manifest":
        path = kept_log(made, 0).with_suffix(".manifest")
    else:
        path = made.path / name if name in (BACKUP_NAME, "state.messages", "state.snapshot") else kept_log(made, 0)
        path = path.with_name(name)
    restored = data.path.with_name("restored")
    found = 0
    for position in flips(path, step):
        found += 1
        try:
            assert verify_backup(made.path).damage, f"{path}: byte {position}"
        except BackupError:
            assert name == BACKUP_NAME
        if found % 4 == 1:
            with pytest.raises(BackupError):
                restore_backup(made.path, restored)
            assert not restored.exists()
    assert found >= 10
    assert verify_backup(made.path).damage == []


@pytest.mark.parametrize("harm", ["shorter", "longer", "missing", "foreign", "exchanged"])
def test_files_that_are_not_as_they_were_are_found(data: DataDirectory, harm: str) -> None:
    made = back_up(data)
    path = kept_log(made, 2 * SEGMENT_COUNT)
    content = path.read_bytes()
    match harm:
        case "shorter":
            path.write_bytes(content[: log_files.segment(0, [15, 5]).borders[3]])
        case "longer":
            path.write_bytes(content + log_files.segment(3 * SEGMENT_COUNT, [1], 9000).log)
        case "missing":
            path.unlink()
        case "foreign":
            path.with_name("x").touch()
        case _:
            path.write_bytes(kept_log(made, 0).read_bytes())
    assert verify_backup(made.path).damage


def test_partitions_that_the_metadata_knows_must_be_there(data: DataDirectory) -> None:
    made = back_up(data)
    without = [entry for entry in made.backup.partitions if entry.partition != 1]
    shutil.rmtree(layout.partition_directory(made.path, 0, 0, 1))
    changed = _with(made, partitions=without)
    assert any("missing" in sentence for sentence in changed)


def _with(made: Made, **changes: object) -> list[str]:
    backup = msgspec.structs.replace(made.backup, **changes)
    (made.path / BACKUP_NAME).write_bytes(encode_backup(backup))
    return verify_backup(made.path).damage


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (b'"format_version":2', b'"format_version":4', "format version 4"),
        (b"shardd-backup", b"shardd-backuq", "no backup"),
        (b'"partitions"', b'"partition_"', "damaged"),
        (b"}\n", b"} \n", "damaged"),
    ],
)
def test_an_unknown_description_is_refused(data: DataDirectory, old: bytes, new: bytes, sentence: str) -> None:
    made = back_up(data)
    path = made.path / BACKUP_NAME
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    for use in (read_backup, verify_backup, lambda at: restore_backup(at, data.path.with_name("restored"))):
        with pytest.raises(BackupError, match=sentence):
            use(made.path)
