"""Who may read the files of a server and of a backup: tried by another user of this host."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardd.backup.create import create_backup
from shardd.backup.format import BackupError
from shardd.backup.restore import restore_backup
from shardd.log.file_modes import Corrected, correct_modes, group_id, made_like
from shardd.protocol.codes import Code
from tests.support import wire
from tests.support.other_user import MEMBERS, as_other_user, names_below, needs_root, public_directory, readable_below
from tests.support.server import ONE_SHARD, Server
from tests.support.wire import Wire

SECRETS = {
    ".lock", "producers.boot", "runtime", "runtime/current_config.toml", "state.messages", "state.reserve",
    "state.snapshot",
}  # fmt: skip


@pytest.fixture
def public() -> Iterator[Path]:
    before = os.umask(0o022)  # what most hosts have: the server must not rely on another one
    try:
        with public_directory() as directory:
            yield directory
    finally:
        os.umask(before)


def fill(server: Server, name: str) -> None:
    """Messages in several segments, their offsets, and something in the trash."""
    with Wire(server.address) as root:
        root.login()
        for topic in ("kept", "gone"):
            if topic == "kept":
                root.create_stream(name)
            root.create_topic(name, topic, 2)
            for number in range(20):
                root.send(name, topic, wire.to_partition(number % 2), [wire.message(b"x" * 100)])
            offset = wire.consumer(1) + wire.identifier(name) + wire.identifier(topic)
            root.request(Code.STORE_CONSUMER_OFFSET, offset + b"\1" + bytes(4) + bytes(8))
        root.request(Code.DELETE_TOPIC, wire.identifier(name) + wire.identifier("gone"))


def mode_of(path: Path) -> int:
    """0 of what has gone meanwhile: the server empties its trash."""
    with contextlib.suppress(FileNotFoundError):
        return stat.S_IMODE(path.lstat().st_mode)
    return 0


@needs_root
def test_another_user_reads_nothing_of_the_server(public: Path) -> None:
    with Server(public / "data", env=ONE_SHARD | {"SHARDD_SYSTEM_SEGMENT_SIZE": "512 B"}) as server:
        fill(server, "st")
        assert any(name.endswith(".log") for name in names_below(public / "data"))
        assert readable_below(public / "data") == set()
        wrong = {
            name: oct(mode)
            for name in names_below(public / "data")
            if (mode := mode_of(public / "data" / name)) & 0o077
        }
        assert wrong == {}, "also behind a directory that nobody can enter"


@needs_root
@pytest.mark.io_engine
def test_a_member_of_the_group_reads_messages_and_no_secret(public: Path) -> None:
    data, env = public / "data", ONE_SHARD | {"SHARDD_SYSTEM_SEGMENT_SIZE": "512 B"}
    with Server(data, env=env) as server:
        fill(server, "before")
    with Server(data, env=env | {"SHARDD_SYSTEM_GROUP": str(MEMBERS)}) as server:
        fill(server, "after")
        before = names_below(data)
        read = readable_below(data, MEMBERS)
        everything = before & names_below(data)  # not what is there for a moment, while a file is replaced
        assert readable_below(data) == set()
        assert {name for name in everything if name.startswith(("streams", "info.json"))} <= read
        assert {name for name in everything if name not in read and not name.startswith("trash/")} <= SECRETS
        assert not read & SECRETS
        logs = [name for name in read if name.endswith(".log") and name.startswith("streams/1/")]
        assert len(logs) > 2, "made by the server with the group"
        with pytest.raises(BackupError, match="may not be used by this user: a backup is made as the server's user"):
            as_other_user(lambda: create_backup(data, public / "backups"), MEMBERS)
        assert f"are now read by its user and messages by group {MEMBERS} only" in server.log()


@needs_root
def test_a_group_that_is_not_there_stops_the_start_with_a_sentence(public: Path) -> None:
    server = Server(public / "data", env={"SHARDD_SYSTEM_GROUP": "no-such-group-here"})
    with pytest.raises(RuntimeError, match=r"system\.group: there is no group 'no-such-group-here' on this host"):
        server.start()
    assert group_id("root") == 0
    assert group_id("64998") == MEMBERS
    assert group_id("") is None


@needs_root
def test_backups_and_what_is_restored_are_for_nobody_else(public: Path) -> None:
    def shardd(*arguments: str | Path) -> str:
        command = [sys.executable, "-m", "shardd", *map(str, arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    def made(directory: Path) -> Path:
        return next(path for path in directory.iterdir() if path.is_dir())

    with Server(public / "data", ONE_SHARD) as server:
        fill(server, "st")
    shardd("backup", "create", public / "backups", "--data", public / "data", "--full-speed")
    assert readable_below(public / "backups") == set()
    shardd("backup", "restore", made(public / "backups"), public / "restored")
    assert readable_below(public / "restored") == set()
    for prepared in ("group-backups", "group-restored"):  # by whoever wants a group to read them
        (public / prepared).mkdir()
        os.chown(public / prepared, -1, MEMBERS)
        (public / prepared).chmod(0o2750)
    with made_like(public / "group-backups"):
        create_backup(public / "data", public / "group-backups")
    with made_like(public / "group-restored"):
        restore_backup(made(public / "group-backups"), public / "group-restored")
    for prepared in ("group-backups", "group-restored"):
        read = readable_below(public / prepared, MEMBERS)
        assert [name for name in read if name.endswith(".log")]
        assert not [name for name in read if "state." in name]
        assert readable_below(public / prepared) == set()
    with pytest.raises(BackupError, match="may not be used by this user"):
        as_other_user(lambda: create_backup(public / "data", public / "mine"))


def test_what_an_earlier_version_left_open_is_corrected_once(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(0o755)
    (outside / "file").touch(0o644)
    data, partition = tmp_path / "data", tmp_path / "data/streams/0/topics/0/partitions/0"
    (partition / "offsets/consumers").mkdir(parents=True)
    for name in ("state.messages", "info.json", "streams/0/topics/0/partitions/0/0.log", "runtime.toml"):
        (data / name).touch()
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (data / "streams/link").symlink_to(outside)
    (partition / "link.log").symlink_to(outside / "file")
    os.mkfifo(partition / "pipe")
    assert correct_modes(data, None) == Corrected(changed=13)
    assert stat.S_IMODE(data.stat().st_mode) == stat.S_IMODE(partition.stat().st_mode) == 0o700
    assert stat.S_IMODE((partition / "0.log").stat().st_mode) == 0o600
    assert stat.S_IMODE(outside.stat().st_mode) == 0o755
    assert stat.S_IMODE((outside / "file").stat().st_mode) == 0o644
    assert correct_modes(data, None) == Corrected()
    group = os.getgroups()[0] if os.getgroups() else os.getgid()
    assert correct_modes(data, group).failed == 0
    assert stat.S_IMODE(data.stat().st_mode) == stat.S_IMODE(partition.stat().st_mode) == 0o2750
    assert stat.S_IMODE((partition / "0.log").stat().st_mode) == 0o640
    assert stat.S_IMODE((data / "state.messages").stat().st_mode) == 0o600
    assert correct_modes(data, group) == Corrected()
    assert correct_modes(data, None).failed == 0
    assert stat.S_IMODE(partition.stat().st_mode) == 0o700


@needs_root
def test_files_of_others_are_told_and_stop_nothing(public: Path) -> None:
    data = public / "data"
    data.mkdir(0o777)
    data.chmod(0o777)
    (data / "streams").mkdir(0o755)
    corrected = as_other_user(lambda: correct_modes(data, None))
    assert (corrected.changed, corrected.failed) == (0, 2)
    assert "streams: Operation not permitted" in corrected.reason
    with pytest.raises(ValueError, match="cannot be given to it"):
        as_other_user(lambda: correct_modes(data, MEMBERS))


def test_the_umask_is_as_before_behind_a_command(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with made_like(tmp_path / "missing"):
            (tmp_path / "one").touch()
        (tmp_path / "two").touch()
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("one", "two")] == [0o600, 0o644]
