"""Job `sealing`: seals the segments of a shard, one after the other, in the order in which they were rolled."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections import deque
from pathlib import Path
from typing import Final

from shardd.engine import Engine
from shardd.log import layout
from shardd.log.layout import PartitionIds
from shardd.log.sealing import seal_segment
from shardd.maintenance.job import Job, JobThread, Turn
from shardd.maintenance.scheduler import JobScheduler
from shardd.protocol.namespaces import namespace

_log = logging.getLogger(__name__)

BYTES_PER_S: Final = 256 << 20  # read from logs at most, in short steps: sends wait for the one that runs
_THREAD: Final = JobThread("sealing", nice=19)


class Sealer:
    """Lives on the loop thread. A segment that waits is one entry; those that wait at a stop, and the one at work, are
    found at the next start."""

    def __init__(self, engine: Engine, data: Path, jobs: JobScheduler) -> None:
        self._engine, self._data = engine, data
        self._waiting: deque[tuple[PartitionIds, int, int]] = deque()
        self._figures = {"segments": 0, "bytes": 0, "refused": 0}
        left = self._waiting.__len__
        job = Job("sealing", self._work, first_s=None, thread=_THREAD, per_second=BYTES_PER_S, unit="bytes", left=left)
        self._wake = jobs.add(job)

    def add(self, ids: PartitionIds, incarnation: int, start_offset: int) -> None:
        """A segment of that partition that will not change any more, or one that does not tell yet that its times are
        ahead of the clock."""
        self._waiting.append((ids, incarnation, start_offset))
        self._wake()

    def gauges(self) -> dict[str, int]:
        """Segments that wait."""
        return {"waiting": len(self._waiting)}

    def counters(self) -> dict[str, int]:
        """Segments sealed and their bytes; segments that could not be sealed."""
        return dict(self._figures)

    async def _work(self, turn: Turn) -> None:
        while self._waiting:
            await self._seal(turn, *self._waiting.popleft())

    async def _seal(self, turn: Turn, ids: PartitionIds, incarnation: int, start_offset: int) -> None:
        directory = layout.partition_directory(self._data, *ids)
        try:
            clock = self._engine.expiry_clock()
            size_bytes, refusal = await turn.beside(
                seal_segment, directory, start_offset, incarnation, turn.throttle, clock
            )
        except (OSError, ValueError) as error:
            size_bytes, refusal = 0, f"{directory}: the segment at {start_offset} cannot be sealed: {error}"
            if isinstance(error, layout.SyncFailedError):  # never retried: later syncs would claim what no device has
                with contextlib.suppress(KeyError):  # closed meanwhile
                    self._engine.partition_sync_lost(namespace(*ids), incarnation, error.errno or errno.EIO)
        if refusal is not None:
            _log.warning("%s", refusal)
            self._figures["refused"] += 1
        elif size_bytes:
            self._figures["segments"] += 1
            self._figures["bytes"] += size_bytes
