"""Job `retention`: removes what has expired and what topics may not hold any more (docs/adr/0041-retention.md). Lives
on the loop thread; every step is one call into the engine, which hides messages at once and lets their files follow.

What expires is not served from that moment on, whatever this job does: it makes room and moves the figures.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from shardd.config.schema import Settings
from shardd.engine import Engine, OldestSegment, StoredOffset, _native, owner
from shardd.log import layout, spool
from shardd.maintenance.damage_surveys import Owned
from shardd.maintenance.job import Job, JobThread, Turn
from shardd.maintenance.retention_limits import RetentionLimits
from shardd.maintenance.retention_preview import preview, preview_held
from shardd.maintenance.scheduler import JobScheduler
from shardd.maintenance.trash_emptier import reserves_free
from shardd.metadata.state import State, Topic
from shardd.protocol.errors import Status
from shardd.protocol.namespaces import namespace, partition_ids, partition_text
from shardd.runtime.channel import CONTROL_SHARD
from shardd.service.lease_table import Leases, Place

_log = logging.getLogger(__name__)

PENDING_INTERVAL_S: Final = 0.5  # what waits for a sync, a second or a reader is looked at again
_PREVIEW_THREAD: Final = JobThread("sealing", nice=19)  # that of the sealer
TOLD_MAX: Final = 8  # names in one line of the log
HOLDERS_MAX: Final = 16  # partitions of a shard of which is told who holds messages back
GROUPS_MAX: Final = 1000  # of a topic among which is looked for its id
LEASE_RESERVES_MIN: Final = 4  # times `system.disk.reserve`: with less free, no lease keeps a file
STEPS_MAX: Final = 4096  # for one partition in one run: each takes up to CLEAN_SEGMENTS_MAX segments


class _Barriers(NamedTuple):
    """Partitions in which stored offsets hold messages back, those in which messages are gone that a stored offset has
    not passed, and those that carry times ahead of the believed clock."""

    held: set[int]
    overtaken: set[int]
    ahead: set[int]


def _listed(names: Sequence[object]) -> str:
    """For one line of the log."""
    return ", ".join(map(str, names[:TOLD_MAX])) + (" ..." if len(names) > TOLD_MAX else "")


class Retention:
    """`place`: shard and shards. `state`: the metadata of the moment."""

    def __init__(
        self,
        engine: Engine,
        place: tuple[int, int],
        owned: Owned,
        state: Callable[[], State],
        settings: Settings,
        leases: Leases,
        jobs: JobScheduler,
    ) -> None:
        self._shard, self._shards = place
        self._engine, self._owned, self._state = engine, owned, state
        self._data = settings.system.data_directory
        self._leases = leases
        self._reserve_bytes = settings.system.disk_reserve_bytes
        self._trash_directory = layout.trash_directory(self._data)
        self._limits = RetentionLimits(settings)
        self._interval_s = settings.data_maintenance.interval_ms / 1000
        self._pending = 0
        self._sizes: dict[int, int] = {}  # topics above their limit (incarnations), and their bytes at the last run
        self._held: set[int] = set()
        self._ahead: set[int] = set()
        self._overtaken: dict[int, tuple[str, int]] = {}  # the slowest consumer of each
        self._behind: dict[str, int] = {}  # the same for `gauges`, and the stored offsets
        self._holders: dict[str, int] = {}  # who holds messages back, by the names of `gauges`, and the stored offsets
        self._counters = {"runs": 0, "segments": 0, "bytes_dropped": 0, "early_rolls": 0, "errors": 0}
        if self._limits.enabled:
            jobs.add(Job("retention", self._work, self._interval_s, left=lambda: self._pending))
            if self._shard == CONTROL_SHARD:
                jobs.add(Job("retention_preview", self._tell_kept, thread=_PREVIEW_THREAD))

    def gauges(self) -> dict[str, int]:
        """Partitions that have something to remove yet; those in which stored offsets hold messages back; those in
        which messages are gone that a stored offset has not passed; those with limits that carry times ahead of what is
        believed; topics above their size; by how many microseconds
        the clock is off what is believed. Stored offsets that hold messages back, each under
        `held_by.<stream>/<topic>/<partition>.<consumer or group>.<id>`; those that have not passed what is gone, under
        `overtaken.` and the same."""
        return {
            "pending": self._pending,
            "held_partitions": len(self._held),
            "overtaken_partitions": len(self._overtaken),
            "ahead_partitions": len(self._ahead),
            "topics_above_size": len(self._sizes),
            "clock_doubted_us": abs(self._engine.expiry_clock().jump_us),
            **self._holders,
            **self._behind,
        }

    def counters(self) -> dict[str, int]:
        """Runs, segments whose files were removed, bytes that went because of a size, segments that were sealed early
        for it, steps that failed."""
        return dict(self._counters)

    # ---- one run ----

    async def _work(self, turn: Turn) -> float:
        self._trash_directory.mkdir(exist_ok=True)
        trash = str(self._trash_directory / f"{time.time_ns()}-{os.getpid()}-segment")
        self._counters["runs"] += 1
        self._pending = 0
        barriers = _Barriers(set(), set(), set())
        self._leases.look(short=reserves_free(self._data, self._reserve_bytes) < LEASE_RESERVES_MIN)
        await turn.on_loop(self._steps(trash, barriers))
        self._tell_held(barriers.held)
        self._tell_overtaken(barriers.overtaken)
        self._tell_ahead(barriers.ahead)
        return min(PENDING_INTERVAL_S, self._interval_s) if self._pending or self._sizes else self._interval_s

    async def _tell_kept(self, turn: Turn) -> None:
        """Once, after the start: topics of earlier versions, whose limits remove nothing yet, and what would go."""
        now_us = self._engine.now_us()
        kept = await turn.beside(preview, self._data, self._state(), self._limits, now_us, turn.throttle)
        if kept:
            most = sorted(kept, key=lambda each: -each.size_bytes)
            _log.warning(
                "%d topics keep everything, whatever their expiry and size, until `shardd retention enable`; at least "
                "this would go: %s",
                len(kept), _listed(most),
            )  # fmt: skip

        held = await turn.beside(preview_held, self._data, self._state(), self._limits, now_us, turn.throttle)
        if held:
            _log.warning(
                "%d topics of earlier versions let stored offsets hold messages beyond size or count until "
                "`shardd topic set STREAM TOPIC size_held_max=\"0 s\"`; at most this would go: %s",
                len(held), _listed(held),
            )  # fmt: skip

    def _steps(self, trash: str, barriers: _Barriers) -> Iterator[None]:
        """Only the list of topics is that of the beginning: what they may hold is asked anew at each step."""
        above: dict[int, int] = {}
        for stream in self._state().streams.values():
            for listed in stream.topics.values():
                yield
                topic = self._topic((stream.id, listed.id), listed.incarnation)
                if topic is None or not self._is_limited(topic):
                    continue
                own = []
                for partition in topic.partitions:
                    yield
                    place = namespace(stream.id, topic.id, partition.id), partition.incarnation
                    if self._owned.incarnation_of(partition_ids(place[0])) == partition.incarnation:
                        own.append(place)
                        yield from self._clean(place, trash, barriers)
                yield from self._trim((stream.id, topic.id), topic.incarnation, own, above)
        self._sizes = above

    def _topic(self, ids: tuple[int, int], incarnation: int) -> Topic | None:
        """As it is now; None when it was deleted."""
        stream = self._state().streams.get(ids[0])
        topic = None if stream is None else stream.topics.get(ids[1])
        return topic if topic is not None and topic.incarnation == incarnation else None

    def _is_limited(self, topic: Topic) -> bool:
        removes = self._limits.is_on(topic) and self._limits.has_any(topic)
        return removes or self._limits.segment_age_us(topic) > 0

    def _topic_of(self, place: Place) -> Topic | None:
        """That of a partition, as it is now; None when the partition was deleted or purged."""
        stream_id, topic_id, number = partition_ids(place[0])
        stream = self._state().streams.get(stream_id)
        topic = None if stream is None else stream.topics.get(topic_id)
        there = topic is not None and number < len(topic.partitions)
        return topic if topic and there and topic.partitions[number].incarnation == place[1] else None

    def _destination(self, topic: Topic, place: Place, trash: str) -> str:
        """Where files of segments go first: they are archived before they are deleted, or they are not."""
        if not self._limits.archives(topic):
            return f"{trash}-{place[0]}"
        layout.make_incoming(self._data)
        return spool.incoming_prefix(self._data, partition_ids(place[0]), place[1])

    def _clean(self, place: Place, trash: str, barriers: _Barriers) -> Iterator[None]:
        for _ in range(STEPS_MAX):
            topic = self._topic_of(place)
            if topic is None or not self._is_limited(topic):
                return
            try:
                done = self._engine.partition_clean(*place, self._destination(topic, place, trash))
            except KeyError:  # deleted or purged meanwhile
                return
            yield
            self._leases.cleaned(place, done.leased_bytes)
            self._counters["segments"] += done.removed
            if done.status == Status.CANNOT_DELETE_FILE:
                self._counters["errors"] += 1
            if done.held:
                barriers.held.add(place[0])
            if done.overtaken:
                barriers.overtaken.add(place[0])
            if done.ahead:
                barriers.ahead.add(place[0])
            if not done.removed or done.status != Status.OK:
                self._pending += done.pending and not done.leased_bytes
                return

    def _tell_held(self, held: set[int]) -> None:
        """Names in the figures who holds messages back; in the log when it begins."""
        self._holders = {}
        begun = sorted(held - self._held)[:TOLD_MAX]
        for number in sorted(held)[:HOLDERS_MAX]:
            slowest = self._slowest(number)
            if slowest is None:
                continue
            kind, who = self._consumer(number, slowest)
            self._holders[f"held_by.{partition_text(number)}.{kind}.{who}"] = slowest.value
            if number in begun:
                _log.warning(
                    "messages of %s are kept beyond their limits: the stored offset %d of %s %d has not passed them",
                    partition_text(number), slowest.value, kind, who,
                )  # fmt: skip
        self._held = held

    def _tell_overtaken(self, overtaken: set[int]) -> None:
        """In the log once for each consumer: its next poll begins at the first message that is left."""
        told, before, self._overtaken, self._behind = 0, self._overtaken, {}, {}
        for number in sorted(overtaken):
            slowest = self._slowest(number)
            if slowest is None:
                continue
            kind, consumer = self._consumer(number, slowest)
            if len(self._behind) < HOLDERS_MAX:
                self._behind[f"overtaken.{partition_text(number)}.{kind}.{consumer}"] = slowest.value
            is_told = before.get(number) == (kind, consumer)
            if not is_told and told == TOLD_MAX:
                self._overtaken[number] = before.get(number, ("", 0))  # told in a later run
                continue
            self._overtaken[number] = kind, consumer
            if is_told:
                continue
            told += 1
            _log.warning(
                "messages of %s are gone that the stored offset %d of %s %d has not passed: it goes on at the first "
                "message that is left",
                partition_text(number), slowest.value, kind, consumer,
            )  # fmt: skip

    def _tell_ahead(self, ahead: set[int]) -> None:
        """In the log when it begins."""
        begun = sorted(ahead - self._ahead)
        if begun:
            _log.warning(
                "%d partitions carry times ahead of the clock, later messages get the same, and all of them age from "
                "the moment when their segment was sealed: %s",
                len(begun), _listed([partition_text(number) for number in begun]),
            )  # fmt: skip
        self._ahead = ahead

    def _consumer(self, number: int, slowest: StoredOffset) -> tuple[str, int]:
        """Kind and id of a consumer, or of a group as clients know it."""
        if slowest.kind != _native.OFFSET_GROUP:
            return "consumer", slowest.consumer
        stream_id, topic_id, _ = partition_ids(number)
        stream = self._state().streams.get(stream_id)
        topic = None if stream is None else stream.topics.get(topic_id)  # it may be deleted, and not closed here yet
        groups = islice(topic.groups.values() if topic is not None else (), GROUPS_MAX)
        return "group", next((each.id for each in groups if each.offsets_id == slowest.consumer), slowest.consumer)

    def _slowest(self, number: int) -> StoredOffset | None:
        try:
            return self._engine.partition_slowest(number)
        except KeyError:
            return None

    # ---- by size ----

    def _bytes_kept(self, ids: tuple[int, int], incarnation: int) -> int:
        """Nine tenths of the size that the topic has now; 0: nothing of it goes by its size."""
        topic = self._topic(ids, incarnation)
        if topic is None or not self._limits.is_on(topic) or self._limits.refuses(topic):
            return 0
        return self._limits.size_bytes(topic) * 9 // 10

    def _trim(self, ids: tuple[int, int], incarnation: int, own: list[Place], above: dict[int, int]) -> Iterator[None]:
        """Oldest segments first, while the topic has nine tenths of its size. The shard that has most of it begins; the
        others follow when that has not helped since their last run, and keep what their partitions may have of it: a
        busy neighbour must not empty them."""
        topic = self._topic(ids, incarnation)
        if topic is None or not self._bytes_kept(ids, incarnation):
            return
        sums = [0] * self._shards
        for partition in topic.partitions:
            stats = self._engine.stats(partition.slot)
            if stats.incarnation == partition.incarnation:
                sums[owner(namespace(*ids, partition.id), self._shards)] += stats.size_bytes
            yield
        total, threshold = sum(sums), self._bytes_kept(ids, incarnation)
        if not threshold or total < threshold:
            return
        before = self._sizes.get(incarnation)
        above[incarnation] = total
        own_bytes, follows = sums[self._shard], max(sums) > sums[self._shard]
        if follows and (before is None or total < before):
            return
        oldest: list[tuple[int, Place]] = []
        largest = (0, (0, 0))  # bytes of an active segment that is the only one, its partition
        for place in own:
            yield
            found = self._oldest_of(place)
            if found is not None and found.only_active:
                largest = max(largest, (found.bytes, place))
            elif found is not None and (found.droppable or found.waits):
                heapq.heappush(oldest, (found.first_timestamp, place))
        while threshold := self._bytes_kept(ids, incarnation):  # somebody may raise the size, or end retention
            kept_bytes = threshold * len(own) // len(topic.partitions) if follows else 0
            if total < threshold or own_bytes <= kept_bytes:
                return
            if not oldest:
                if largest[0]:
                    self._roll_early(largest[1])
                return
            _, place = heapq.heappop(oldest)
            found = self._oldest_of(place)
            if found is not None and found.waits:
                return  # for a second at most: until then no younger one goes in its place
            dropped = self._dropped(place)
            total -= dropped
            own_bytes -= dropped
            self._counters["bytes_dropped"] += dropped
            found = self._oldest_of(place)
            if dropped and found is not None and (found.droppable or found.waits):
                heapq.heappush(oldest, (found.first_timestamp, place))
            yield

    def _roll_early(self, place: Place) -> None:
        """Active segments alone are too much: the largest one is sealed, so that a later run can take it."""
        with contextlib.suppress(KeyError):
            self._counters["early_rolls"] += self._engine.partition_roll_early(*place) == Status.OK

    def _oldest_of(self, place: Place) -> OldestSegment | None:
        try:
            return self._engine.partition_oldest_segment(*place)
        except KeyError:  # deleted meanwhile
            return None

    def _dropped(self, place: Place) -> int:
        try:
            return self._engine.partition_drop_oldest(*place)
        except KeyError:
            return 0
