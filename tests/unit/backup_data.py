"""Data directories for the tests of backups, made from files alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from shardd.backup.create import Made, Options, create_backup
from shardd.log import layout
from shardd.log.directory_info import FORMAT_VERSION, MAGIC, DirectoryInfo, write_info
from shardd.log.offsets_table import OFFSET_CONSUMER, OFFSET_GROUP, StoredOffset
from shardd.log.stored_offsets import write_table
from shardd.metadata import State, commands
from shardd.metadata.commands import Ref
from shardd.metadata.load import load_state
from shardd.metadata.log_file import FILE_NAME
from shardd.metadata.records import FIRST_DIGEST, encode_record
from shardd.metadata.snapshot import snapshot_path, write_snapshot
from shardd.metadata.wal import MetadataLog
from tests.unit import log_files

BACKUPS = "backups"  # beside the data
STREAM, TOPIC = Ref(0, 2), Ref(0, 3)
SEGMENT_COUNT = 20
OFFSETS = [StoredOffset(OFFSET_CONSUMER, 7, 11), StoredOffset(OFFSET_GROUP, 4, 55)]  # of partition 0


@dataclass
class DataDirectory:
    """One stream with one topic of three partitions: 0 with three segments, 1 with one, 2 without a directory."""

    path: Path
    version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        self.path.mkdir()
        write_info(self.path, DirectoryInfo(MAGIC, self.version, "2026-11-21T09:00:00Z"))
        self.change(
            commands.CreateUser("iggy", "$argon2id$x", True, None),
            commands.CreateStream("s"),
            commands.CreateTopic(STREAM, "t", 3, 1, 2**64 - 1, 2**64 - 1, 1),
            commands.CreateConsumerGroup(STREAM, TOPIC, "g"),
        )
        state = self.state()
        write_snapshot(snapshot_path(self.path / FILE_NAME), state, [])
        self.change(commands.UpdateStream(STREAM, "renamed"))
        starts = (0, SEGMENT_COUNT, 2 * SEGMENT_COUNT)
        self.fill(0, *(log_files.segment(start, [15, 5], 1000 + start) for start in starts))
        self.fill(1, log_files.segment(0, [4]))
        if self.version > 1:
            write_table(self.partition(0), self.incarnation(0), OFFSETS)
        else:
            log_files.write_offset_files(self.partition(0), OFFSETS)

    def change(self, *changes: commands.Command) -> None:
        """Appends records, as shard 0 does."""
        log, content = MetadataLog.open(self.path / FILE_NAME)
        digest, index = content.digest if content.index else FIRST_DIGEST, content.index
        for command in changes:
            index += 1
            data, record = encode_record(digest, index, 1000 + index, index, 0, command)
            log.append(data)
            digest = record.digest
        log.close()

    def state(self) -> State:
        return load_state(self.path / FILE_NAME)

    def incarnation(self, partition: int) -> int:
        return self.state().streams[0].topics[0].partitions[partition].incarnation

    def partition(self, number: int) -> Path:
        return layout.partition_directory(self.path, 0, 0, number)

    def log(self, number: int, start: int) -> Path:
        return layout.segment_log(self.partition(number), start)

    def fill(self, number: int, *segments: log_files.Stored) -> None:
        log_files.write(self.partition(number), *segments, incarnation=self.incarnation(number))

    def append(self, number: int, segment: log_files.Stored) -> None:
        """One more segment; the newest one before is sealed by that."""
        layout.segment_log(self.partition(number), segment.start).write_bytes(segment.log)
        layout.segment_index(self.partition(number), segment.start).write_bytes(segment.index)


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power fails and nobody else writes: content is tested. The order of the syncs has a test of its own."""
    syncs = (
        "os.fsync", "os.fdatasync",
        "shardd.backup.backups_directory.sync_file_system", "shardd.backup.restore.sync_file_system",
    )  # fmt: skip
    for name in syncs:
        monkeypatch.setattr(name, lambda _descriptor: None)
    for name in ("log.single_pass.TAIL_PAUSE_S", "backup.metadata._PAUSE_S", "backup.create._PAUSE_S"):
        monkeypatch.setattr(f"shardd.{name}", 0.0)


def back_up(data: DataDirectory, options: Options | None = None) -> Made:
    return create_backup(data.path, data.path.with_name(BACKUPS), options)


def kept_log(made: Made, start: int, partition: int = 0, topic: int = 0) -> Path:
    return layout.segment_log(layout.partition_directory(made.path, 0, topic, partition), start)
