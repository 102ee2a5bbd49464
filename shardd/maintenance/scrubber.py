"""Job `scrubber`: reads the sealed segments of this shard again and again, slowly, so that damage is found while a
backup still has what it hit. Lives on the loop thread; a helper thread of the lowest priority reads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Final

from shardd.config.schema import ScrubberSettings
from shardd.engine import Engine, SegmentInfo
from shardd.log import layout
from shardd.log.imported import end_of_import
from shardd.log.layout import PartitionIds
from shardd.log.segment_scrub import SegmentScrub
from shardd.log.verified_slices import SegmentExtent
from shardd.maintenance.damage_surveys import DamageSurveys, Owned
from shardd.maintenance.job import Job, JobThread, Turn
from shardd.maintenance.scheduler import JobScheduler
from shardd.protocol.namespaces import namespace, partition_text
from shardd.runtime.throttle import Throttle

_log = logging.getLogger(__name__)

_STEPS_PER_LOOK = 64  # partitions without sealed segments between two looks at the rest of the loop
_THREAD: Final = JobThread("scrub", nice=19)


class Scrubber:
    """What it finds is surveyed and withheld like what a reader finds."""

    def __init__(
        self,
        engine: Engine,
        data: Path,
        owned: Owned,
        surveys: DamageSurveys,
        settings: ScrubberSettings,
        jobs: JobScheduler,
    ) -> None:
        self._engine, self._data, self._owned, self._surveys = engine, data, owned, surveys
        self._counters = {"rounds": 0, "segments": 0, "bytes": 0, "contradictions": 0, "errors": 0}
        self._last_round_s = 0
        self._partitions_left = 0
        if settings.enabled:
            pause_s, rate = settings.pause_ms / 1000, settings.rate_bytes
            jobs.add(
                Job(
                    "scrubber",
                    self._round,
                    pause_s,
                    thread=_THREAD,
                    per_second=rate,
                    unit="bytes",
                    gives_way=lambda: True,
                    left=lambda: self._partitions_left,
                )
            )

    def counters(self) -> dict[str, int]:
        return dict(self._counters)

    def gauges(self) -> dict[str, int]:
        return {"last_round_s": self._last_round_s}

    async def _round(self, turn: Turn) -> None:
        began_s = time.monotonic()
        partitions = self._owned.open_partitions()
        for number, ids in enumerate(partitions):
            self._partitions_left = len(partitions) - number
            if number % _STEPS_PER_LOOK == 0:
                await asyncio.sleep(0)
            await self._scrub_partition(turn, ids)
        self._partitions_left = 0
        self._counters["rounds"] += 1
        self._last_round_s = round(time.monotonic() - began_s)

    async def _scrub_partition(self, turn: Turn, ids: PartitionIds) -> None:
        ns, incarnation = namespace(*ids), self._owned.incarnation_of(ids)
        minimum = 0
        for segment in self._sealed(ns, ids):
            if self._owned.incarnation_of(ids) != incarnation:
                return  # deleted or purged meanwhile
            if segment.records:
                try:
                    await self._scrub_segment(turn, ids, segment, minimum)
                except (FileNotFoundError, KeyError):  # deleted, or closed, while a thread was at work
                    _log.debug("segment %d of %s is gone", segment.start_offset, ids)
                except (OSError, ValueError) as error:
                    self._counters["errors"] += 1
                    _log.error(
                        "partition %s: segment %d cannot be read: %s", partition_text(ns), segment.start_offset, error
                    )
            minimum = segment.last_timestamp if segment.records else minimum

    def _sealed(self, ns: int, ids: PartitionIds) -> list[SegmentInfo]:
        return self._engine.partition_segments(ns)[:-1] if self._owned.incarnation_of(ids) is not None else []

    async def _scrub_segment(self, turn: Turn, ids: PartitionIds, segment: SegmentInfo, minimum: int) -> None:
        ns, directory = namespace(*ids), layout.partition_directory(self._data, *ids)
        damaged = [(each.start, each.end) for each in self._engine.partition_damage(ns)]
        contradicts = await turn.beside(self._read, directory, segment, minimum, damaged, turn.throttle)
        self._counters["segments"] += 1
        if contradicts and self._owned.incarnation_of(ids) is not None:
            self._counters["contradictions"] += 1
            await self._surveys.ask(ns, segment.start_offset)

    def _read(
        self, directory: Path, segment: SegmentInfo, minimum: int, damaged: list[tuple[int, int]], throttle: Throttle
    ) -> bool:
        """On the helper thread: whether log and index contradict each other. OSError, StoppedError."""
        start, imported_end = segment.start_offset, end_of_import(directory)
        end = start + segment.records + segment.absent
        extent = SegmentExtent(start, segment.log_bytes, end, imported_end, end if segment.absent else 0)
        scrub = SegmentScrub(directory, extent, segment.records, 0 if start < imported_end else minimum, damaged)
        try:
            while not scrub.finished:
                size_bytes = scrub.step()
                self._counters["bytes"] += size_bytes
                throttle.spend(size_bytes)
        finally:
            scrub.close()
        return scrub.contradicts
