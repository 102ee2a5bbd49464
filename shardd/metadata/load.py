"""The state from the disk: snapshot, then the records of the log behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from shardd.metadata.apply import replay
from shardd.metadata.errors import LogError
from shardd.metadata.log_file import LogContent, read_log
from shardd.metadata.records import Record
from shardd.metadata.snapshot import Snapshot, read_snapshot, snapshot_path
from shardd.metadata.state import State
from shardd.runtime.disk import Disk

_ATTEMPTS: Final = 20  # the log may be cut between the two reads; then a newer snapshot stands there already


class Stored(msgspec.Struct, frozen=True):
    """What lies on the disk. `records`: those of the log that the snapshot does not cover."""

    snapshot: Snapshot
    content: LogContent
    records: list[Record]


def read_stored(path: Path, disk: Disk | None = None) -> Stored:
    """Snapshot and log as shard 0 leaves them at this moment; changes nothing. Raises LogError."""
    for _ in range(_ATTEMPTS):
        snapshot = read_snapshot(snapshot_path(path), disk)
        content = read_log(path, disk)
        if content.base <= snapshot.index:
            break
    return Stored(snapshot, content, records_behind(path, snapshot, content))


def load_state(path: Path, disk: Disk | None = None) -> State:
    """Raises LogError, ApplyError."""
    stored = read_stored(path, disk)
    return replay(stored.records, stored.snapshot.state)


def load_snapshot(path: Path, disk: Disk | None = None) -> State:
    """The state without the records of the log: shard 0 has acknowledged all of it. Raises LogError."""
    return read_snapshot(snapshot_path(path), disk).state


def records_behind(path: Path, snapshot: Snapshot, content: LogContent) -> list[Record]:
    """The records that the snapshot does not cover. Raises LogError when the two do not belong together."""
    index = snapshot.index
    if content.base > index:
        what = f"covers records up to {index}" if index else "is missing"
        raise LogError(f"{path} begins behind record {content.base}, but {snapshot_path(path)} {what}")
    if content.index < index:
        raise LogError(
            f"{path} ends with record {content.index}, but {snapshot_path(path)} covers records up to {index}"
        )
    if content.digest_at(index) != snapshot.state.digest:
        raise LogError(f"{snapshot_path(path)} does not belong to {path}: record {index} has another digest")
    return content.records[index - content.base :]
