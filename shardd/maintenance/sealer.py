"""Seals the segments of a shard in the background, one after the other, in the order in which they were rolled."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections import deque
from pathlib import Path
from typing import Final

from shardd.engine import Engine, namespace
from shardd.log import layout
from shardd.log.layout import PartitionIds
from shardd.log.sealing import seal_segment
from shardd.log.single_pass import Throttle
from shardd.runtime.helper_threads import HelperThreads

_log = logging.getLogger(__name__)

BYTES_PER_S: Final = 256 << 20  # read from logs at most, in short steps: sends wait for the one that runs
_NICE: Final = 19  # the thread computes on the CPU of the loop


class Sealer:
    """Lives on the loop thread. A segment that waits is one entry; those that wait at a stop are found at the next
    start."""

    def __init__(self, engine: Engine, data: Path) -> None:
        self._engine, self._data = engine, data
        self._waiting: deque[tuple[PartitionIds, int, int]] = deque()
        self._arrived = asyncio.Event()
        self._threads = HelperThreads(1, "sealing", nice=_NICE)
        self._throttle = Throttle(BYTES_PER_S)
        self._figures = {"segments": 0, "bytes": 0, "refused": 0}

    def add(self, ids: PartitionIds, incarnation: int, start_offset: int) -> None:
        """A segment of that partition that will not change any more."""
        self._waiting.append((ids, incarnation, start_offset))
        self._arrived.set()

    def gauges(self) -> dict[str, int]:
        """Segments that wait."""
        return {"waiting": len(self._waiting)}

    def counters(self) -> dict[str, int]:
        """Segments sealed and their bytes; segments that could not be sealed."""
        return dict(self._figures)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            ids, incarnation, start_offset = self._waiting.popleft()
            await self._seal(ids, incarnation, start_offset)

    async def _seal(self, ids: PartitionIds, incarnation: int, start_offset: int) -> None:
        directory = layout.partition_directory(self._data, *ids)
        try:
            size_bytes, refusal = await self._threads.run(
                seal_segment, directory, start_offset, incarnation, self._throttle
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

    async def close(self) -> None:
        """Waits for the segment at work, which is in a hurry now."""
        self._throttle.lift()
        await self._threads.close()
