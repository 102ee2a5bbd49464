"""Job `survey`: finds out what is wrong when a log and its index contradict each other, and tells the engine. Lives on
the loop thread of its worker; a helper thread reads.

One segment at a time. A segment that was surveyed less than SURVEY_INTERVAL_S ago is not read again: whoever asks for
it (a poll that still fails, with a full table of ranges) gets its answer from what is known.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Protocol

from shardd.engine import Engine, WithheldRange
from shardd.log import layout
from shardd.log.damage import DamageSurvey
from shardd.log.damage_survey import survey_segment
from shardd.log.imported import end_of_import
from shardd.log.incarnation import read_incarnation
from shardd.log.layout import PartitionIds
from shardd.log.segment_reader import opened
from shardd.log.verified_slices import SegmentExtent
from shardd.maintenance.job import Job, JobThread, Turn
from shardd.maintenance.scheduler import JobScheduler
from shardd.protocol.namespaces import namespace, partition_ids, partition_text
from shardd.runtime.throttle import StoppedError, Throttle

_log = logging.getLogger(__name__)

SURVEY_INTERVAL_S: Final = 10.0
_THREAD: Final = JobThread("survey", nice=5)  # polls wait for it, all other work goes on
_NOTHING: Final[tuple[WithheldRange, ...]] = ()


class Owned(Protocol):
    """What is known of the partitions of this shard."""

    def incarnation_of(self, ids: PartitionIds) -> int | None: ...
    def open_partitions(self) -> list[PartitionIds]: ...
    def damaged_partitions(self) -> set[PartitionIds]: ...


class DamageSurveys:
    """`ask` for every DoubtEvent."""

    def __init__(
        self, engine: Engine, data: Path, owned: Owned, jobs: JobScheduler, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine, self._data, self._owned, self._clock = engine, data, owned, clock
        self._waiting: dict[tuple[int, int], asyncio.Future[None]] = {}
        left = self._waiting.__len__
        self._wake = jobs.add(Job("survey", self._work, first_s=None, thread=_THREAD, unit="bytes", left=left))
        self._surveyed_s: dict[tuple[int, int], float] = {}
        self._counters = {
            "surveys": 0,
            "surveys_failed": 0,
            "indexes_repaired": 0,
            "damaged_ranges_found": 0,
            "damaged_messages_found": 0,
        }

    def counters(self) -> dict[str, int]:
        return dict(self._counters)

    def gauges(self) -> dict[str, int]:
        """What is withheld now, over all partitions of this shard."""
        result = {"waiting": len(self._waiting), "damaged_ranges": 0, "damaged_messages": 0, "isolated_messages": 0}
        for ids in self._owned.damaged_partitions():
            for each in self._engine.partition_damage(namespace(*ids)):
                result["damaged_ranges"] += 1
                result["isolated_messages" if each.isolated else "damaged_messages"] += each.end - each.start
        return result

    def ask(self, ns: int, segment: int) -> asyncio.Future[None]:
        """Done when the engine knows what a survey of that segment has found."""
        key = ns, segment
        if key not in self._waiting:
            self._waiting[key] = asyncio.get_running_loop().create_future()
            self._wake()
        return self._waiting[key]

    async def _work(self, turn: Turn) -> None:
        while self._waiting:
            key = next(iter(self._waiting))
            incarnation = self._owned.incarnation_of(partition_ids(key[0])) or 0
            first_timestamp, found = 0, _NOTHING
            try:
                if incarnation and self._is_due(key):
                    first_timestamp, found = await self._survey(turn, *key, incarnation)
            except StoppedError:
                raise
            except Exception:  # whatever it is: the polls get an answer
                _log.exception("partition %s: segment %d cannot be surveyed", partition_text(key[0]), key[1])
                self._counters["surveys_failed"] += 1
            done = self._waiting.pop(key)  # whatever happens now, the others have their turn
            with suppress(KeyError):  # closed meanwhile, or another incarnation: its polls have their answers
                self._engine.partition_surveyed(key[0], incarnation, key[1], first_timestamp, list(found))
            if not done.done():  # whoever waited may have been cancelled
                done.set_result(None)

    def _is_due(self, key: tuple[int, int]) -> bool:
        now = self._clock()
        if now - self._surveyed_s.get(key, -SURVEY_INTERVAL_S) < SURVEY_INTERVAL_S:
            return False
        self._surveyed_s = {k: at for k, at in self._surveyed_s.items() if now - at < SURVEY_INTERVAL_S}
        self._surveyed_s[key] = now
        return True

    async def _survey(
        self, turn: Turn, ns: int, segment: int, incarnation: int
    ) -> tuple[int, tuple[WithheldRange, ...]]:
        """(first timestamp, damaged ranges), nothing when it cannot be told."""
        try:
            self._engine.partition_flush(ns, incarnation)  # entries that wait for the file are no contradiction
            segments = self._engine.partition_segments(ns)
            number = next((i for i, each in enumerate(segments) if each.start_offset == segment), None)
            if number is None:
                return 0, _NOTHING  # deleted meanwhile
            each = segments[number]
            minimum = max((before.last_timestamp for before in segments[:number] if before.records), default=0)
            directory = layout.partition_directory(self._data, *partition_ids(ns))
            end = each.start_offset + each.records + each.absent
            live = SegmentExtent(segment, each.log_bytes, end, sparse_end=end if each.absent else 0)
            known = incarnation, live, each.records, minimum
            survey = await turn.beside(_survey_open, directory, *known, turn.throttle)
            if survey is None or self._owned.incarnation_of(partition_ids(ns)) != incarnation:
                return 0, _NOTHING  # purged meanwhile
            self._report(ns, segment, survey)
        except KeyError:
            return 0, _NOTHING  # closed meanwhile
        except (OSError, ValueError) as error:
            self._counters["surveys_failed"] += 1
            _log.error("partition %s: segment %d cannot be surveyed: %s", partition_text(ns), segment, error)
            return 0, _NOTHING
        return survey.segment.first_timestamp, tuple(
            WithheldRange((each.start, each.end, False)) for each in survey.damaged
        )

    def _report(self, ns: int, segment: int, survey: DamageSurvey) -> None:
        self._counters["surveys"] += 1
        if survey.index_changed:
            self._counters["indexes_repaired"] += 1
            _log.warning(
                "partition %s: the index of segment %d was wrong and is written again", partition_text(ns), segment
            )
        known = self._engine.partition_damage(ns)
        if survey.damaged:
            self._owned.damaged_partitions().add(partition_ids(ns))
        for each in survey.damaged:
            if any(other.start <= each.start and each.end <= other.end for other in known):
                continue
            self._counters["damaged_ranges_found"] += 1
            self._counters["damaged_messages_found"] += each.end - each.start
            _log.error("partition %s: segment %d is damaged: %s are withheld", partition_text(ns), segment, each)


def _survey_open(
    path: Path, incarnation: int, live: SegmentExtent, count: int, minimum: int, throttle: Throttle
) -> DamageSurvey | None:
    """None: the partition is another one by now. A survey writes an index: it is that of the directory that was opened,
    wherever a purge moves it meanwhile."""
    with ExitStack() as stack:
        try:
            descriptor = stack.enter_context(opened(path, os.O_RDONLY | os.O_DIRECTORY))
        except FileNotFoundError:
            return None
        directory = Path(f"/proc/self/fd/{descriptor}")
        if read_incarnation(directory) != incarnation:
            return None
        imported_end = end_of_import(directory)
        return survey_segment(
            directory,
            live.start_offset,
            0 if live.start_offset < imported_end else minimum,
            end_offset=live.end_offset,
            imported_end=imported_end,
            live_bytes=live.limit_bytes,
            sparse_count=count if live.sparse_end else 0,
            throttle=throttle,
        )
