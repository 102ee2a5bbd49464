"""The metadata of a backup: every verified prefix of snapshot and log is the state at one moment."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import xxhash

from shardd.backup.format import BackupError, FileEntry, MetadataEntry, file_digest
from shardd.backup.writing import Writer
from shardd.log.layout import PartitionIds
from shardd.metadata.apply import ApplyError, replay
from shardd.metadata.errors import LogError
from shardd.metadata.load import records_behind
from shardd.metadata.log_file import FILE_NAME, check_tail, read_log
from shardd.metadata.snapshot import SNAPSHOT_NAME, read_snapshot
from shardd.metadata.state import State
from shardd.runtime.disk import FILE_BYTES_MAX
from shardd.runtime.regular_files import read_regular

_ATTEMPTS: Final = 20  # shard 0 may write a snapshot and cut the log between the two reads
_PAUSE_S: Final = 0.05
_MODE: Final = 0o600  # they hold password hashes


def take_metadata(data: Path, target: Path) -> tuple[State, MetadataEntry]:
    """Copies snapshot and log, only whole records, over what `target` has of them; the state that the copy holds.
    BackupError when the metadata is damaged, OSError."""
    for attempt in range(_ATTEMPTS):
        for name in (SNAPSHOT_NAME, FILE_NAME):  # in this order: a log that is cut later is seen to be
            (target / name).unlink(missing_ok=True)
            try:
                content = read_regular(data / name, FILE_BYTES_MAX)
            except FileNotFoundError:
                continue
            except ValueError as error:
                raise BackupError(str(error)) from error
            with Writer(target / name, _MODE) as writer:
                writer.write(content)
        try:
            return _whole_records(target)
        except (LogError, ApplyError) as error:
            if attempt + 1 == _ATTEMPTS:
                # the sentences name the copy, which goes away
                raise BackupError(f"the metadata: {str(error).replace(str(target), str(data))}") from error
        time.sleep(_PAUSE_S)
    raise AssertionError("unreachable")


def _whole_records(target: Path) -> tuple[State, MetadataEntry]:
    log = target / FILE_NAME
    content = read_log(log)
    check_tail(log, content)
    if content.tail:
        os.truncate(log, content.ends[-1])
    state = read_metadata(target)
    return state, MetadataEntry(state.index, file_entry(log), file_entry(target / SNAPSHOT_NAME))


def read_metadata(directory: Path) -> State:
    """The state that snapshot and log in a directory give, which nobody changes. LogError, ApplyError."""
    log = directory / FILE_NAME
    snapshot = read_snapshot(directory / SNAPSHOT_NAME)
    return replay(records_behind(log, snapshot, read_log(log)), snapshot.state)


def file_entry(path: Path) -> FileEntry | None:
    """None for a file that there is not. OSError."""
    try:
        data = read_regular(path, FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    return FileEntry(len(data), file_digest(xxhash.xxh3_128_digest(data)))


def incarnations(state: State) -> dict[PartitionIds, int]:
    """Every partition of the metadata."""
    return {
        (stream.id, topic.id, partition.id): partition.incarnation
        for stream in state.streams.values()
        for topic in stream.topics.values()
        for partition in topic.partitions
    }
