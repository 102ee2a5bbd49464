"""Cold reads by another user of the machine, and backups that are made between deletions. No Spark needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardd.backup.create import create_backup
from shardd.backup.restore import restore_backup
from shardd.log import layout
from shardd.log.incarnation import read_incarnation
from shardd.spark import cold
from shardd.spark.decode import Decoder
from tests.spark.support import DELETE_SEGMENTS
from tests.support import wire
from tests.support.other_user import MEMBERS, STRANGER, as_other_user, needs_root, public_directory
from tests.support.server import Server

MESSAGES = 40
SMALL_SEGMENTS = {"SHARDD_SYSTEM_SEGMENT_SIZE": "512 B"}


def fill(server: Server) -> None:
    with wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("s"), "t", 1)
        for number in range(MESSAGES):
            connection.send(0, 0, wire.to_partition(0), [wire.message(str(number).encode())])


def cold_offsets(data: Path) -> list[int]:
    """Offsets of the first, sealed segment, as a task reads it."""
    directory = layout.partition_directory(data, 0, 0, 0)
    starts = sorted(int(path.stem) for path in directory.glob("*.log"))
    decoder = Decoder(("offset",), stream="s", topic="t", partition=0)
    incarnation = read_incarnation(directory)
    assert incarnation is not None and len(starts) > 1
    found = cold.read(
        decoder,
        layout.segment_log(directory, starts[0]),
        segment_start=starts[0],
        incarnation=incarnation,
        start=starts[0],
        end=starts[1],
        label="it",
    )
    return [offset for batch in found for offset in batch.column("offset").to_pylist()]


@needs_root
def test_an_executor_of_the_group_reads_segments_and_a_stranger_does_not() -> None:
    before = os.umask(0o022)
    try:
        with public_directory() as public:
            data = public / "data"
            with Server(data, env=SMALL_SEGMENTS | {"SHARDD_SYSTEM_GROUP": str(MEMBERS)}) as server:
                fill(server)
                expected = cold_offsets(data)
                assert len(expected) > 1
                assert as_other_user(lambda: cold_offsets(data), MEMBERS) == expected
                with pytest.raises(PermissionError):
                    as_other_user(lambda: cold_offsets(data), STRANGER)
    finally:
        os.umask(before)


def test_a_backup_on_the_base_of_one_from_before_a_deletion_has_what_was_kept(tmp_path: Path) -> None:
    with Server(tmp_path / "data", env=SMALL_SEGMENTS) as server:
        fill(server)
        first = create_backup(server.data_dir, tmp_path / "backups")
        with wire.connect(server.address) as connection:
            address = wire.identifier(0) + wire.identifier(0)
            connection.request(DELETE_SEGMENTS, address + bytes(4) + (2).to_bytes(4, "little"))
            kept = connection.read_all(0, 0, 0)
        second = create_backup(server.data_dir, tmp_path / "backups")
    assert second.backup.base == first.path.name
    assert 0 < len(kept) < MESSAGES
    for made, count in ((first, MESSAGES), (second, len(kept))):
        restore_backup(made.path, tmp_path / f"restored {count}")
        with Server(tmp_path / f"restored {count}") as restored, wire.connect(restored.address) as connection:
            read = connection.poll(0, 0, 0, strategy=wire.POLL_FIRST, count=MESSAGES).messages
            assert [message.payload for message in read] == [str(n).encode() for n in range(MESSAGES - count, MESSAGES)]
            assert [message.offset for message in read] == list(range(MESSAGES - count, MESSAGES))
