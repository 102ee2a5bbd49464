"""Stored offsets that were not used for `offsets.expiry` are deleted, and told in the log
(docs/adr/0142-stored-offsets-expire-when-asked-to.md)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from shardd.config.schema import NEVER, OffsetSettings
from shardd.engine import Engine
from shardd.maintenance.job import Job, Turn
from shardd.maintenance.scheduler import JobScheduler
from shardd.metadata import Metadata
from shardd.metadata.state import Stream, Topic
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.namespaces import partition_ids
from shardd.protocol.primitives import ConsumerKind
from shardd.protocol.unused_offsets import PLACES_AT_ONCE
from shardd.service.base import partition_at
from shardd.service.partition_calls import PartitionCalls, StoredEntry
from shardd.service.unused_offsets import UnusedOffsetService, UnusedRows

DAY_US: Final = 86_400_000_000
PAGES_AT_ONCE: Final = 16  # with something unused on them, of 1,024 places at most
TOLD_MAX: Final = 100  # consumers in the log in one run
PARTITIONS_TOLD_MAX: Final = 8  # of one consumer
_log = logging.getLogger(__name__)


class Page(NamedTuple):
    """Of the table of one partition: what was unused there."""

    namespace: int
    incarnation: int
    rows: UnusedRows


class OffsetExpiry:
    """Each worker looks through its own partitions. Lives on the loop thread."""

    def __init__(
        self,
        engine: Engine,
        metadata: Metadata,
        calls: PartitionCalls,
        unused: UnusedOffsetService,
        settings: OffsetSettings,
    ) -> None:
        self._engine, self._metadata = engine, metadata
        self._calls, self._unused = calls, unused
        self._age_us, self._interval_s = settings.expiry_us, settings.expiry_check_interval_ms / 1000
        self._expired = 0

    def start(self, jobs: JobScheduler) -> None:
        """The first run is an interval away."""
        if self._age_us != NEVER:
            jobs.add(Job("offset_expiry", self._work, self._interval_s, first_s=self._interval_s))

    def counters(self) -> dict[str, int]:
        return {"expired": self._expired}

    async def _work(self, turn: Turn) -> None:
        gone: dict[str, list[str]] = {}
        pages: list[Page] = []
        steps = self._look(pages)
        try:
            while True:
                await turn.on_loop(_until_full(steps, pages))
                for page in pages:
                    for whose, what in await self._expire(page):
                        gone.setdefault(whose, []).append(what)
                    await asyncio.sleep(0)
                if len(pages) < PAGES_AT_ONCE:
                    return
                pages.clear()
        finally:
            self._tell(gone)

    def _look(self, pages: list[Page]) -> Iterator[None]:
        """The pages of the tables of this shard on which there is something unused: a step for each page."""
        for stream in self._metadata.state.streams.values():
            for topic in stream.topics.values():
                for partition in topic.partitions:
                    home = self._calls.home(stream, topic, partition)
                    if self._calls.is_here(home):
                        yield from self._look_in((home.namespace, home.incarnation), pages)

    def _look_in(self, place: tuple[int, int], pages: list[Page]) -> Iterator[None]:
        first, goes_on = 0, True
        while goes_on:
            try:
                status, next_first, rows = self._engine.offsets_unused(*place, first, PLACES_AT_ONCE, self._age_us)
            except KeyError:  # it is not open, or another one has its place by now
                return
            if status == Status.OK and rows:
                pages.append(Page(*place, UnusedRows(first, [StoredEntry(*row) for row in rows])))
            yield
            first, goes_on = next_first, status == Status.OK and next_first != 0

    async def _expire(self, page: Page) -> list[tuple[str, str]]:
        """What was deleted there, for the log: whose, and what."""
        found = self._of(page.namespace, page.incarnation)
        if found is None:
            return []
        stream, topic, number = found
        home = self._calls.home(stream, topic, topic.partitions[number])
        try:
            deleted = await self._unused.expire(stream, topic, home, page.rows, self._age_us)
        except ShardError as error:
            _log.warning(
                "stored offsets of %s/%s partition %d do not expire now: %s", stream.name, topic.name, number, error
            )
            return []
        self._expired += len(deleted)
        names = {each.offsets_id: each.name for each in topic.groups.values()} if deleted else {}
        return [
            (f"{_name(names, each)} of topic {stream.name}/{topic.name}", f"{each.value} in partition {number}")
            for each in deleted
        ]

    def _of(self, packed: int, incarnation: int) -> tuple[Stream, Topic, int] | None:
        """None: it is gone since it was looked through."""
        partition = partition_at(self._metadata.state, packed)
        if partition is None or partition.incarnation != incarnation:
            return None
        stream_id, topic_id, number = partition_ids(packed)
        stream = self._metadata.state.streams[stream_id]
        return stream, stream.topics[topic_id], number

    def _tell(self, gone: dict[str, list[str]]) -> None:
        days = self._age_us / DAY_US
        for whose, what in islice(gone.items(), TOLD_MAX):
            more = len(what) - PARTITIONS_TOLD_MAX
            _log.warning(
                "stored offsets of %s have expired, they were not used for %.4g days (offsets.expiry): %s%s",
                whose, days, ", ".join(what[:PARTITIONS_TOLD_MAX]), f" and {more} more" if more > 0 else "",
            )  # fmt: skip
        if len(gone) > TOLD_MAX:
            _log.warning("stored offsets of %d further consumers have expired", len(gone) - TOLD_MAX)


def _until_full(steps: Iterator[None], pages: list[Page]) -> Iterator[None]:
    """The rest of the steps, or as many as fill the pages that are kept at once."""
    for each in steps:
        yield each
        if len(pages) >= PAGES_AT_ONCE:
            return


def _name(groups: dict[int, str], entry: StoredEntry) -> str:
    """A group has its offsets under another number than its own."""
    if entry.kind != ConsumerKind.GROUP:
        return f"consumer {entry.consumer}"
    return f"group {groups[entry.consumer]!r}" if entry.consumer in groups else "a group"
