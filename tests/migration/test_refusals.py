"""Directories that cannot be taken over: one sentence that names the place, and nothing changed on disk."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from shardd.migration.errors import MigrationError
from shardd.migration.iggy_directory import import_directory
from shardd.server.data_directory import prepare_directory
from shardd.server.errors import StartupError
from tests.migration import iggy_state as iggy
from tests.support import data_fixture
from tests.support.server import ONE_SHARD, Server
from tests.support.wire import identifier, str8
from tests.unit.log_files import tree

EVENTS_0 = "streams/0/topics/0/partitions/0"
FIRST_LOG = "00000000000000000000.log"


def refused(data: Path, match: str) -> None:
    """The sentence fits, and nothing has changed."""
    before = tree(data)
    with pytest.raises(MigrationError, match=match) as caught:
        import_directory(data)
    assert "\n" not in str(caught.value)
    assert str(data) in str(caught.value)
    assert tree(data) == before


def move_away(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}-away"))


def link(path: Path) -> None:
    move_away(path)
    path.symlink_to(path.with_name(f"{path.name}-away"))


def link_group_offsets(data: Path) -> None:
    link(data / EVENTS_0 / "offsets" / "groups")


def replace_log(data: Path) -> None:
    move_away(data / "state" / "log")
    (data / "state" / "log").mkdir()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "stream is missing": (lambda data: move_away(data / "streams" / "1"), r"streams/1 is missing"),
    "topic is missing": (lambda data: move_away(data / "streams/0/topics/3"), r"topics/3 is missing"),
    "partition is missing": (lambda data: move_away(data / EVENTS_0), r"partitions/0 is missing"),
    "no segment": (lambda data: (data / EVENTS_0 / FIRST_LOG).unlink(), r"holds no \.log file"),
    "linked streams": (lambda data: link(data / "streams"), r"streams is a symbolic link"),
    "linked partition": (lambda data: link(data / EVENTS_0), r"partitions/0 is a symbolic link"),
    "linked segment": (lambda data: link(data / EVENTS_0 / FIRST_LOG), r"\.log is a symbolic link"),
    "linked offsets": (link_group_offsets, r"offsets/groups is a symbolic link"),
    "linked log": (lambda data: link(data / "state/log"), r"state/log is a symbolic link"),
    "log is a directory": (replace_log, r"log is no file"),
    "short offset": (lambda d: (d / EVENTS_0 / "offsets/consumers/7").write_bytes(b"1234"), r"7 has 4 bytes"),
    "short group offset": (lambda d: (d / EVENTS_0 / "offsets/groups/0").write_bytes(b""), r"0 has 0 bytes"),
    "foreign offset": (lambda d: (d / EVENTS_0 / "offsets/groups/x").write_bytes(bytes(8)), r"no stored offset"),
    "second log": (lambda data: (data / "state/log.imported").touch(), r"lies beside log\.imported"),
    "torn log": (lambda d: os.truncate(d / "state/log", 4200), r"ends inside entry \d+ at byte \d+"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_directory(tmp_path: Path, damage: str) -> None:
    data = data_fixture.unpack(tmp_path)
    change, match = DAMAGES[damage]
    change(data)
    refused(data, match)


BAD_LOGS: dict[str, tuple[bytes, str]] = {
    "version": (iggy.entry(0, iggy.ROOT, version=7_000), r"entry 0 at byte 0 .* version 0\.7\.0"),
    "gap": (iggy.entry(0, iggy.ROOT) + iggy.entry(2, iggy.stream(0, "a")), r"entry 1 at byte \d+ is numbered 2"),
    "code": (iggy.log([iggy.ROOT, (604, b"")]), r"entry 1 .* command code 604"),
    "no root": (iggy.log([iggy.stream(0, "a")]), r"no root user"),
    "payload": (iggy.log([iggy.ROOT, (202, b"\1")]), r"entry 1 .* cannot be read"),
    "inner length": (iggy.log([iggy.ROOT, (202, struct.pack("<II", 0, 9) + str8("a"))]), r"that says 9"),
    "unknown stream": (iggy.log([iggy.ROOT, (203, identifier(4))]), r"names stream 4"),
    "same name": (iggy.log([iggy.ROOT, iggy.stream(0, "a"), iggy.stream(1, "a")]), r"a second stream"),
    "same id": (iggy.log([iggy.ROOT, iggy.stream(0, "a"), iggy.stream(0, "b")]), r"the id 0"),
    "far id": (iggy.log([iggy.ROOT, iggy.stream(4_000_000_000, "a")]), r"the id 4000000000"),
    "partitions": (
        iggy.log([iggy.ROOT, iggy.stream(0, "a"), iggy.topic(0, 0, "b", 4_000_000_000)]),
        r"4000000000 partitions at once",
    ),
    "compression": (
        iggy.log(
            [iggy.ROOT, iggy.stream(0, "a"), (302, iggy.topic(0, 0, "b")[1].replace(b"\1\0\0\0\1", b"\1\0\0\0\7"))]
        ),
        r"CreateTopic 'b' is refused",
    ),
    "token hash": (iggy.log([iggy.ROOT, iggy.token("ci_token", digest=b"12")]), r"no hash of a token"),
    "root deleted": (iggy.log([iggy.ROOT, (34, identifier(0))]), r"deletes the root user"),
}


@pytest.mark.parametrize("bad", BAD_LOGS)
def test_bad_state_log(tmp_path: Path, bad: str) -> None:
    data = iggy.directory(tmp_path / "data", [])
    content, match = BAD_LOGS[bad]
    (data / "state" / "log").write_bytes(content)
    refused(data, match)


def encrypted(changes: list[iggy.Change]) -> bytes:
    return b"".join(
        iggy.entry(index, change, stored=os.urandom(len(change[1]) + 28)) for index, change in enumerate(changes)
    )


def test_encrypted_entries(tmp_path: Path) -> None:
    data = iggy.directory(tmp_path / "data", [])
    (data / "state" / "log").write_bytes(encrypted([iggy.ROOT, iggy.stream(0, "a")]))
    refused(data, r"state/log is encrypted by Apache Iggy .* copy the messages with a client")


def test_damage_is_not_taken_for_encryption(tmp_path: Path) -> None:
    data = iggy.directory(tmp_path / "data", [])
    damaged = bytearray(iggy.entry(0, iggy.ROOT))
    damaged[-1] ^= 1
    (data / "state" / "log").write_bytes(damaged)
    refused(data, r"the checksum of entry 0 at byte 0 does not match")


def test_streams_without_a_state_log_are_no_new_directory(tmp_path: Path) -> None:
    data = data_fixture.unpack(tmp_path)
    (data / "state" / "log").unlink()
    with pytest.raises(StartupError, match=r"holds streams, but neither state\.messages nor state/log knows them"):
        prepare_directory(data, fresh=False)
    assert not (data / "info.json").exists()


def test_fresh_does_not_remove_a_directory_of_iggy(tmp_path: Path) -> None:
    data = data_fixture.unpack(tmp_path)
    before = tree(data)
    with pytest.raises(StartupError, match="nothing was removed"):
        prepare_directory(data, fresh=True)
    assert tree(data) == before


def test_the_server_says_the_sentence_and_ends(tmp_path: Path) -> None:
    data = data_fixture.unpack(tmp_path)
    (data / "state" / "log").write_bytes(encrypted([iggy.ROOT]))
    server = Server(data, ONE_SHARD)
    process = server.spawn()
    assert process.wait(timeout=30) == 1
    assert "is encrypted by Apache Iggy" in server.log()
    assert "Traceback" not in server.log()
    assert not (data / "state.messages").exists()
