"""The scrubber: reads the sealed segments of this shard again and again, slowly, so that damage is found while a backup
still has what it hit. Lives on the loop thread; a helper thread of the lowest priority reads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from shardd.config.schema import ScrubberSettings
from shardd.engine import Engine, namespace
from shardd.log import layout
from shardd.log.imported import read_imported
from shardd.log.layout import PartitionIds, partition_text
from shardd.log.segment_scrub import SegmentScrub
from shardd.log.verified_slices import SegmentExtent
from shardd.maintenance.damage_surveys import DamageSurveys, Owned
from shardd.runtime.threads import Threads

_log = logging.getLogger(__name__)

_CALL_S = 0.1  # the thread keeps the pace itself: a call for each slice would cost the loop more than the slice. An
# orderly stop waits for the call.
_STEPS_PER_LOOK = 64  # partitions without sealed segments between two looks at the rest of the loop


class Scrubber:
    """`run` is a task for the life of the worker. What it finds is surveyed and withheld like what a reader finds."""

    def __init__(
        self,
        engine: Engine,
        data: Path,
        owned: Owned,
        surveys: DamageSurveys,
        threads: Threads,
        settings: ScrubberSettings,
    ) -> None:
        self._engine, self._data, self._owned, self._surveys = engine, data, owned, surveys
        self._threads, self._settings = threads, settings
        self._counters = {"rounds": 0, "segments": 0, "bytes": 0, "contradictions": 0, "errors": 0}
        self._last_round_s = 0

    def counters(self) -> dict[str, int]:
        return dict(self._counters)

    def gauges(self) -> dict[str, int]:
        return {"last_round_s": self._last_round_s}

    async def run(self) -> None:
        while True:
            began_s = time.monotonic()
            for number, ids in enumerate(self._owned.open_partitions()):
                if number % _STEPS_PER_LOOK == 0:
                    await asyncio.sleep(0)
                await self._scrub_partition(ids)
            self._counters["rounds"] += 1
            self._last_round_s = round(time.monotonic() - began_s)
            await asyncio.sleep(self._settings.pause_ms / 1000)

    async def _scrub_partition(self, ids: PartitionIds) -> None:
        ns, incarnation = namespace(*ids), self._owned.incarnation_of(ids)
        minimum = 0
        for start, log_bytes, count, _, last_timestamp, absent in self._sealed(ns, ids):
            if self._owned.incarnation_of(ids) != incarnation:
                return  # deleted or purged meanwhile
            if count:
                try:
                    await self._scrub_segment(ns, ids, start, log_bytes, (count, absent), minimum)
                except (FileNotFoundError, KeyError):  # deleted, or closed, while a thread was at work
                    _log.debug("segment %d of %s is gone", start, ids)
                except (OSError, ValueError) as error:
                    self._counters["errors"] += 1
                    _log.error("partition %s: segment %d cannot be read: %s", partition_text(ns), start, error)
            minimum = last_timestamp if count else minimum

    def _sealed(self, ns: int, ids: PartitionIds) -> list[tuple[int, int, int, int, int, int]]:
        return self._engine.partition_segments(ns)[:-1] if self._owned.incarnation_of(ids) is not None else []

    async def _scrub_segment(
        self, ns: int, ids: PartitionIds, start: int, log_bytes: int, records: tuple[int, int], minimum: int
    ) -> None:
        directory = layout.partition_directory(self._data, *ids)
        imported_end = await self._threads.run(read_imported, directory)
        damaged = [(first, end) for first, end, _ in self._engine.partition_damage(ns)]
        count, absent = records
        end = start + count + absent
        bounds = SegmentExtent(start, log_bytes, end, imported_end, end if absent else 0)
        scrub = await self._threads.run(
            SegmentScrub, directory, bounds, count, 0 if start < imported_end else minimum, damaged
        )
        try:
            while not scrub.finished:
                size, rest_s = await self._threads.run(scrub.step_for, _CALL_S, self._settings.rate_bytes)
                self._counters["bytes"] += size
                await asyncio.sleep(rest_s)
        except Exception:
            scrub.close()
            raise
        scrub.close()
        self._counters["segments"] += 1
        if scrub.contradicts and self._owned.incarnation_of(ids) is not None:
            self._counters["contradictions"] += 1
            await self._surveys.ask(ns, start)
