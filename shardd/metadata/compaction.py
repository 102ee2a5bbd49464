"""When the log has grown, shard 0 writes a snapshot of the state and cuts the log (adr/0008).

Both happen in helper threads: the state is an immutable value, so changes go on while it is written. Only the cut, a
file with the few records that came meanwhile, keeps them waiting. What fails is tried again some records later; the
log goes on growing until then.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

import msgspec

from shardd.metadata.errors import LogError
from shardd.metadata.reserve import RESERVE_BYTES
from shardd.metadata.snapshot import Snapshot, Submission, snapshot_path, write_snapshot
from shardd.metadata.state import State
from shardd.metadata.wal import MetadataLog
from shardd.runtime.disk import Disk
from shardd.runtime.threads import Threads

RECORDS_MAX: Final = 2_000  # behind the snapshot
BYTES_MAX: Final = 4 << 20  # behind it, and at least as many as the snapshot has
RECORDS_KEPT: Final = 64  # before its end: a shard 0 that died may have stored one that replicas do not have yet
RETRY_RECORDS: Final = 200  # after one that failed

_log = logging.getLogger(__name__)


class Limits(msgspec.Struct, frozen=True):
    """When to write a snapshot, how many of the records that it covers stay in the log, size of the reserve."""

    records_max: int = RECORDS_MAX
    records_kept: int = RECORDS_KEPT
    reserve_bytes: int = RESERVE_BYTES


class Compaction:
    """Loop thread of shard 0. `appending` is held by whoever appends to the log."""

    def __init__(
        self, path: Path, threads: Threads, disk: Disk | None, appending: asyncio.Lock, limits: Limits
    ) -> None:
        self._path = snapshot_path(path)
        self._threads = threads
        self._disk = disk
        self._appending = appending
        self.limits = limits
        self._covered = 0
        self._size_bytes = 0
        self._not_before = 0

    def started(self, snapshot: Snapshot) -> None:
        """What the start has read."""
        self._covered, self._size_bytes = snapshot.index, snapshot.size_bytes

    def due(self, log: MetadataLog) -> bool:
        behind = log.index - self._covered
        if log.index < self._not_before or behind <= 0:
            return False
        start = max(self._covered, log.base)
        return behind >= self.limits.records_max or log.bytes_after(start) >= max(BYTES_MAX, self._size_bytes)

    async def run(self, log: MetadataLog, state: State, submissions: list[Submission]) -> None:
        """Snapshot of `state`, then the cut. What fails is logged."""
        self._not_before = log.index + RETRY_RECORDS
        try:
            self._size_bytes = await self._threads.run(write_snapshot, self._path, state, submissions, self._disk)
            self._covered = state.index
            async with self._appending:
                await self._cut(log, state.index - self.limits.records_kept)
        except (OSError, LogError) as error:
            _log.warning("the metadata log is not shortened, tried again later: %s", error)
            return
        self._not_before = 0
        _log.info("metadata snapshot up to record %d, %d bytes", state.index, self._size_bytes)

    async def _cut(self, log: MetadataLog, index: int) -> None:
        if index > log.base:
            log.adopt(await self._threads.run(log.prepare_cut, index))
