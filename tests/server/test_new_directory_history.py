"""A new data directory is a history of its own: two that one script sets up have no incarnation in common."""

from __future__ import annotations

from pathlib import Path

from shardd.metadata.births import begin_directory, born, is_newborn
from shardd.metadata.load import load_state
from shardd.metadata.log_file import FILE_NAME
from shardd.metadata.offline import OfflineMetadata
from shardd.metadata.snapshot import SNAPSHOT_NAME
from shardd.metadata.wal import MetadataLog
from tests.server.test_restored_history import bounds, payloads, send
from tests.support import data_fixture, wire
from tests.support.server import ONE_SHARD, Server

FIRST_DRAWN = 1 << 32


def set_up(server: Server) -> int:
    """One script: a topic with messages; the incarnation of its partition."""
    with wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("s"), "t", 1)
    send(server, "row", 3)
    return bounds(server)[0].incarnation


def test_two_servers_that_one_script_sets_up_have_other_incarnations(tmp_path: Path) -> None:
    found = set()
    for name in ("first", "second"):
        server = Server(tmp_path / name, ONE_SHARD)
        with server:
            made = set_up(server)
        with server:  # it stays over a restart, and the messages with it
            assert bounds(server)[0].incarnation == made >= FIRST_DRAWN
            assert payloads(server) == ["row 0", "row 1", "row 2"]
        found.add(made)
    assert len(found) == 2


def test_a_directory_that_is_made_anew_by_fresh_has_other_incarnations(tmp_path: Path) -> None:
    with Server(tmp_path / "data", ONE_SHARD) as server:
        before = set_up(server)
    with Server(tmp_path / "data", ONE_SHARD, ["--with-default-root-credentials", "--fresh"]) as server:
        after = set_up(server)
    assert before != after >= FIRST_DRAWN


def test_two_imports_of_one_directory_have_other_incarnations(tmp_path: Path) -> None:
    found = set()
    for name in ("first", "second"):
        data = data_fixture.unpack(tmp_path / name)
        with Server(data, ONE_SHARD):
            state = load_state(data / FILE_NAME)
        for stream in state.streams.values():
            for topic in stream.topics.values():
                found.add((name, min(partition.incarnation for partition in topic.partitions)))
    numbers = {number for _, number in found}
    assert len(numbers) == len(found) > 1 and min(numbers) >= FIRST_DRAWN


def test_a_directory_that_exists_keeps_its_numbers(tmp_path: Path) -> None:
    """Of a program that began at 1: its log has no base."""
    log, _ = MetadataLog.open(tmp_path / FILE_NAME)
    log.close()
    (tmp_path / FILE_NAME).write_bytes(b"SHRDMETA" + (1).to_bytes(4, "little") + bytes(4))
    content = (tmp_path / FILE_NAME).read_bytes()
    begin_directory(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == content and not (tmp_path / SNAPSHOT_NAME).exists()


def test_a_begin_that_was_interrupted_is_made_anew(tmp_path: Path) -> None:
    """Killed between the two files: the snapshot alone is there."""
    begin_directory(tmp_path)
    (tmp_path / FILE_NAME).unlink()
    begin_directory(tmp_path)
    assert is_newborn(tmp_path)
    with OfflineMetadata(tmp_path) as metadata:
        assert metadata.state == born(metadata.state.index) and metadata.state.index >= FIRST_DRAWN


def test_streams_without_their_metadata_get_no_new_numbers(tmp_path: Path) -> None:
    """Newer numbers would make what is there a leftover of earlier creations."""
    with Server(tmp_path / "data", ONE_SHARD) as server:
        set_up(server)
    (server.data_dir / FILE_NAME).unlink()
    (server.data_dir / SNAPSHOT_NAME).unlink(missing_ok=True)
    log = next(server.data_dir.rglob("*.log")).read_bytes()
    with server:
        pass
    assert load_state(server.data_dir / FILE_NAME).index < FIRST_DRAWN
    assert next(server.data_dir.rglob("*.log")).read_bytes() == log
