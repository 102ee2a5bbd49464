"""Backups that somebody has prepared: whatever lies in them and whatever backup.json says, `verify` and `restore` end
with a sentence, read nothing from outside, and `restore` has written nothing."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardd.backup.create import Made
from shardd.backup.format import BACKUP_NAME, Backup, BackupError, PartitionEntry, encode_backup, read_backup
from shardd.backup.restore import restore_backup
from shardd.backup.verify import verify_backup
from shardd.metadata.log_file import FILE_NAME
from shardd.metadata.snapshot import SNAPSHOT_NAME
from tests.unit import backup_data
from tests.unit.backup_data import DataDirectory, back_up, kept_log

TIMEOUT_S = 120.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    backup_data.quick(monkeypatch)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return back_up(DataDirectory(tmp_path / "data"))


def damage(path: Path) -> str:
    """What `verify` says, all of it."""
    try:
        return "\n".join(verify_backup(path).damage)
    except BackupError as error:
        return str(error)


def assert_refused(made: Made, sentence: str, monkeypatch: pytest.MonkeyPatch, target: Path) -> None:
    assert sentence in damage(made.path)
    with monkeypatch.context() as patch:
        patch.setattr("shardd.backup.restore._restore", lambda *_: pytest.fail("it was checked before"))
        with pytest.raises(BackupError) as refusal:
            restore_backup(made.path, target)
    assert sentence in str(refusal.value) and "\n" not in str(refusal.value)
    assert not target.exists()


def a_link(path: Path) -> None:
    outside = path.parents[8] / "outside"
    path.rename(outside)
    path.symlink_to(outside)


def a_linked_directory(path: Path) -> None:
    a_link(path.parent)


def a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(path.parent)  # names of sockets are short
        try:
            listening.bind(path.name)
        finally:
            os.chdir(here)


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def nothing(path: Path) -> None:
    path.unlink()


def a_terabyte(path: Path) -> None:
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (a_link, "symbolic link"),
        (a_linked_directory, "symbolic link"),
        (a_fifo, "a FIFO and no regular file"),
        (a_socket, "no regular file"),
        (a_directory, "s a directory"),
        (nothing, "is missing"),
        (a_terabyte, "bytes instead of"),
    ],
)
@pytest.mark.parametrize("name", ["log", SNAPSHOT_NAME, FILE_NAME])
def test_only_regular_files_inside_a_backup_are_read(
    made: Made,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
    sentence: str,
    name: str,
) -> None:
    if change is a_linked_directory and name != "log":
        return
    path = kept_log(made, 0, partition=1) if name == "log" else made.path / name
    if change is a_link and name != "log":
        outside = tmp_path / "outside"
        path.rename(outside)
        path.symlink_to(outside)
    else:
        change(path)
    assert_refused(made, sentence, monkeypatch, tmp_path / "target")


def test_what_is_no_file_ends_no_command_by_waiting(made: Made, tmp_path: Path) -> None:
    """As a person runs them: a FIFO in the place of a file."""
    for path, arguments in (
        (kept_log(made, 0), ("verify", made.path, "--full-speed")),
        (made.path / BACKUP_NAME, ("restore", made.path, tmp_path / "target")),
    ):
        a_fifo(path)
        ended = subprocess.run(
            [sys.executable, "-m", "shardd", "backup", *map(str, arguments)],
            capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert ended.returncode == 1 and "FIFO" in ended.stdout + ended.stderr
        assert "Traceback" not in ended.stderr
        assert not (tmp_path / "target").exists()


def rewritten(made: Made, change: Callable[[Any], None]) -> None:
    """backup.json with other contents and the digest of these."""
    content = msgspec.json.decode((made.path / BACKUP_NAME).read_bytes())
    change(content)
    try:
        data = encode_backup(msgspec.convert(content, Backup))
    except msgspec.ValidationError:
        content["digest"] = ""
        content["digest"] = "sha256:" + hashlib.sha256(msgspec.json.encode(content)).hexdigest()
        data = msgspec.json.encode(content) + b"\n"
    (made.path / BACKUP_NAME).write_bytes(data)


def _set(*path: Any) -> Callable[[Any], None]:
    *way, last, value = path

    def change(content: Any) -> None:
        for step in way:
            content = content[step]
        content[last] = value

    return change


def _segments(content: Any) -> list[Any]:
    found: list[Any] = content["partitions"][0]["segments"]
    return found


SEGMENT = ("partitions", 0, "segments", 1)
LIES = {
    "a partition twice": lambda content: content["partitions"].append(content["partitions"][0]),
    "a segment twice": lambda content: _segments(content).append(_segments(content)[0]),
    "segments that go backwards": lambda content: _segments(content).reverse(),
    "a negative stream": _set("partitions", 0, "stream", -1),
    "a stream beyond all": _set("partitions", 0, "stream", 4096),
    "a partition beyond all": _set("partitions", 0, "partition", 1 << 20),
    "a negative start": _set("partitions", 1, "start_offset", -5),
    "a huge end": _set("partitions", 1, "end_offset", 2**63),
    "more than 64 bits": _set("partitions", 1, "end_offset", 2**70),
    "another partition's end": _set("partitions", 1, "end_offset", 3),
    "no incarnation": _set("partitions", 0, "incarnation", 0),
    "a negative incarnation": _set("partitions", 0, "incarnation", -3),
    "another incarnation": _set("partitions", 0, "incarnation", 4),
    "a negative end of the import": _set("partitions", 0, "imported_end", -1),
    "a kind of offset": _set("partitions", 0, "offsets", [[3, 1, 1]]),
    "a path for an id": _set("partitions", 0, "offsets", [[1, "../../x", 1]]),
    "a negative id": _set("partitions", 0, "offsets", [[1, -1, 1]]),
    "a negative stored offset": _set("partitions", 0, "offsets", [[1, 1, -1]]),
    "a stored offset twice": _set("partitions", 0, "offsets", [[1, 1, 1], [1, 1, 2]]),
    "a segment's negative start": _set(*SEGMENT, "start_offset", -20),
    "a segment's far end": _set(*SEGMENT, "end_offset", 2**40),
    "negative bytes": _set(*SEGMENT, "bytes", -1),
    "too many bytes": _set(*SEGMENT, "bytes", 1 << 50),
    "too few bytes": _set(*SEGMENT, "bytes", 64),
    "another way to keep": _set(*SEGMENT, "kept", "elsewhere"),
    "a manifest of a terabyte": _set(*SEGMENT, "manifest", {"bytes": 1 << 40, "digest": ""}),
    "a manifest that is not there": _set(*SEGMENT, "manifest", {"bytes": 10, "digest": ""}),
    "negative metadata": _set("metadata", "index", -1),
    "metadata that goes on": _set("metadata", "index", 99),
    "no metadata": _set("metadata", "log", None),
    "metadata of a terabyte": _set("metadata", "log", {"bytes": 1 << 40, "digest": ""}),
    "negative metadata bytes": _set("metadata", "snapshot", {"bytes": -1, "digest": ""}),
    "left out what is there": _set("left_out", ["all is well"]),
    "a list for a number": _set("metadata", "index", []),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_whatever_backup_json_says_nothing_is_written_and_a_sentence_tells(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    rewritten(made, LIES[lie])
    assert_refused(made, "", monkeypatch, tmp_path / "target")
    assert damage(made.path)


def test_a_partition_that_is_there_twice_is_named(made: Made) -> None:
    rewritten(made, LIES["a partition twice"])
    assert damage(made.path).endswith("partition 0/0/0 is there twice")


def test_a_backup_that_is_reached_through_a_link_is_a_backup(made: Made, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(made.path.parent)
    assert damage(tmp_path / "link" / made.path.name) == ""
    restore_backup(tmp_path / "link" / made.path.name, tmp_path / "target")


def test_the_honest_backup_of_these_tests_is_whole(made: Made) -> None:
    rewritten(made, lambda content: None)
    assert damage(made.path) == "" and isinstance(read_backup(made.path).partitions[0], PartitionEntry)
