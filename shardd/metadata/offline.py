"""Changes of the metadata of a directory that no server uses: made and stored as shard 0 does it, one record each.

The caller holds the lock of the directory.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Final, Self

from shardd.metadata.apply import ApplyError, apply, created_id, replay
from shardd.metadata.commands import Command
from shardd.metadata.errors import LogError
from shardd.metadata.load import records_behind
from shardd.metadata.log_file import FILE_NAME
from shardd.metadata.records import RecordError, encode_record
from shardd.metadata.snapshot import read_snapshot, snapshot_path
from shardd.metadata.validate import validate
from shardd.metadata.wal import AppendError, MetadataLog
from shardd.protocol.errors import Status

_ROOT: Final = 0  # who makes these changes


class OfflineError(Exception):
    """A change that is refused or cannot be stored; the text is a sentence."""


class OfflineMetadata:
    """The metadata of a data directory, to be changed. `state`: after the last change."""

    def __init__(self, data: Path) -> None:
        """LogError, ApplyError (both with a sentence)."""
        path = data / FILE_NAME
        snapshot = read_snapshot(snapshot_path(path))
        self._log, content = MetadataLog.open(path)
        try:
            self.state = replay(records_behind(path, snapshot, content), snapshot.state)
        except (LogError, ApplyError):
            self._log.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    def submit(self, command: Command) -> int:
        """Makes the change, on the device when this returns; the id of what it has made, else 0. OfflineError."""
        kind = type(command).__name__
        status = validate(self.state, command)
        if status != Status.OK:
            name = getattr(command, "name", "")
            raise OfflineError(f"{kind} {name!r} is refused with {Status(status).name}")
        made = created_id(self.state, command)
        index, now_us = self.state.index + 1, time.time_ns() // 1_000
        try:
            data, record = encode_record(self.state.digest, index, now_us, secrets.randbits(63), _ROOT, command)
            self._log.append(data)
        except (RecordError, AppendError) as error:
            raise OfflineError(f"{kind}: {error}") from error
        self.state = apply(self.state, record)
        return made
