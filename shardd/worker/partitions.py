"""Opens and closes the partitions that this shard owns, following the metadata. Lives on the loop thread of its worker.

A record is followed here before it is acknowledged, so nobody is told about a partition that its owner does not know
yet, and whatever was deleted or purged is out of reach (renamed to `trash/`) before the client hears of it. The loop
goes on meanwhile: what has to happen on it is done in slices, the rest in a helper thread (docs/adr/0015).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Final

from shardd.config.schema import Settings
from shardd.engine import Engine, ExpiryClock, _native, owner
from shardd.engine.partition_limits import IdWindow, PartitionLimits, SendingPartition, SendLimits
from shardd.log import layout
from shardd.log.layout import PartitionIds
from shardd.log.recovered import Recovered
from shardd.maintenance.retention_limits import RetentionLimits
from shardd.metadata.state import State, Stream, Topic
from shardd.protocol.namespaces import namespace, partition_ids
from shardd.protocol.topic_setting_table import ACK
from shardd.runtime import tracing
from shardd.runtime.disk_errors import Trouble
from shardd.runtime.threads import Threads
from shardd.worker.id_windows import window_of
from shardd.worker.opening import READ_ONLY, Outcome, recover_all, retried, tell_unread, trouble_in
from shardd.worker.partition_changes import (
    Change,
    Directories,
    Identity,
    changed_streams,
    changed_topics,
    identity_in,
    partitions_of,
    plan,
    remove_closed,
)
from shardd.worker.partition_marks import mark_changes, paused_partitions, readonly_partitions

_log = logging.getLogger(__name__)

LEVELS: Final = {
    "written": _native.LEVEL_WRITTEN,
    "memory": _native.LEVEL_MEMORY,
    "durable": _native.LEVEL_DURABLE,
}
SLICE: Final = 256  # partitions between two looks at the rest of the loop, in a recovery
FOLLOW_SLICE_MS: Final = 1.0  # work of a change between two looks at the rest of the loop
RECOVERY_LANES: Final = 2  # directories that are scanned at once


class _Slices:
    """Gives the loop to others whenever a slice of work is done."""

    def __init__(self) -> None:
        self._end = time.monotonic() + FOLLOW_SLICE_MS / 1000

    async def next(self) -> None:
        if time.monotonic() >= self._end:
            await asyncio.sleep(0)
            self._end = time.monotonic() + FOLLOW_SLICE_MS / 1000


class OwnedPartitions:
    """The partitions of one shard. `recover` is called once, then `follow` for every applied record. `seal` gets the
    segments (directory, incarnation, start offset) whose manifests have no digest yet."""

    def __init__(
        self,
        engine: Engine,
        shard: int,
        shards: int,
        data: Path,
        settings: Settings,
        seal: Callable[[PartitionIds, int, int], None] = lambda _place, _incarnation, _start: None,
    ) -> None:
        self._engine = engine
        self._shard = shard
        self._shards = shards
        self._data = data
        self._system = settings.system
        self._segment_size_bytes = self._system.segment_size_bytes
        self._limits = RetentionLimits(settings)
        self._changing = asyncio.Lock()  # a change, or the opening of what a full disk had kept out
        self._seal = seal
        self._open: dict[PartitionIds, int] = {}  # and their incarnations
        self._damaged: set[PartitionIds] = set()
        self._refused: set[PartitionIds] = set()  # directories that are not ours to move
        self._waiting: dict[PartitionIds, Trouble] = {}  # what keeps them from being opened, and passes by itself
        self._recovered = {
            "partitions": 0,
            "segments": 0,
            "scanned_bytes": 0,
            "microseconds": 0,
            "phase_microseconds": 0,
            "phase_cpu_microseconds": 0,
            "refused": 0,
        }

    def __len__(self) -> int:
        return len(self._open)

    def incarnation_of(self, ids: PartitionIds) -> int | None:
        """Of the partition that is open there."""
        return self._open.get(ids)

    def open_partitions(self) -> list[PartitionIds]:
        return list(self._open)

    def damaged_partitions(self) -> set[PartitionIds]:
        """Open partitions with damaged ranges; whoever finds more adds to it."""
        return self._damaged

    def recovery_figures(self) -> dict[str, int]:
        """What this process has recovered so far: partitions that held something, their segments, bytes of logs that
        were read, time of all lanes, of the whole phase and its CPU time; `refused` could not be opened."""
        return dict(self._recovered)

    async def recover(self, current: Callable[[], State], threads: Threads) -> State:
        """Opens everything that there is now; the state that was recovered, from which the changes have to be followed.

        Directories are scanned in helper threads, and the loop goes on meanwhile. `current` gives the state of the
        moment: what was deleted or purged since is not opened, its slot may belong to another partition by then.
        """
        with tracing.span("recovery", shard=self._shard):
            return await self._recover(current, threads)

    async def _recover(self, current: Callable[[], State], threads: Threads) -> State:
        phase_began_ns, cpu_began_ns = time.monotonic_ns(), time.process_time_ns()
        state, directories = current(), Directories(self._data)
        waiting: list[tuple[PartitionIds, Identity]] = []
        for stream_id in sorted(state.streams):
            for number, (ids, identity) in enumerate(partitions_of(state.streams[stream_id]).items()):
                if number % SLICE == 0:
                    await asyncio.sleep(0)
                if not self._owns(ids):
                    continue
                directory, exists = directories.find(ids)
                if exists:
                    waiting.append((ids, identity))
                elif identity_in(current(), ids) == identity:
                    self._open_as(ids, identity, state, directory, Recovered())
        waiting.reverse()

        async def lane() -> None:
            while waiting:
                batch = [waiting.pop() for _ in range(min(len(waiting), SLICE // 4))]
                began_ns = time.monotonic_ns()
                outcomes = await threads.run(self._recover_all, batch, state, self._clock())
                self._recovered["microseconds"] += (time.monotonic_ns() - began_ns) // 1000
                for (ids, identity), outcome in zip(batch, outcomes, strict=True):
                    if identity_in(current(), ids) == identity:
                        self._open_as(ids, identity, state, directories.find(ids)[0], outcome)

        await asyncio.gather(*(lane() for _ in range(RECOVERY_LANES)))
        await self._limit_sends(State(), state)
        self._recovered["phase_microseconds"] += (time.monotonic_ns() - phase_began_ns) // 1000
        self._recovered["phase_cpu_microseconds"] += (time.process_time_ns() - cpu_began_ns) // 1000
        return state

    async def try_again(
        self, current: Callable[[], State], threads: Threads, kinds: Container[Trouble] = frozenset(Trouble)
    ) -> None:
        """Opens again what a full disk, or a lack of descriptors or memory, left read only. `current` gives the state
        of the moment."""
        for ids in sorted(ids for ids, trouble in self._waiting.items() if trouble in kinds):
            async with self._changing:
                identity = identity_in(current(), ids)
                if identity is None or ids not in self._waiting:
                    continue
                [outcome] = await threads.run(self._recover_all, [(ids, identity)], current(), self._clock())
                if identity_in(current(), ids) != identity:
                    continue  # deleted or purged meanwhile: whoever follows that waits for us
                del self._waiting[ids]
                self._engine.partition_close(namespace(*ids), self._open.pop(ids, 0))
                directory = str(layout.partition_directory(self._data, *ids))
                self._open_as(ids, identity, current(), directory, outcome)
                await self._limit_sends(State(), current())

    async def follow(self, old: State, new: State, threads: Threads) -> bool:
        """Applies the difference while the loop goes on; True when something went to the trash.

        Everything is closed first, which no request can pass from then on (its incarnation is not found, it waits or is
        refused), then moved away, then opened.
        """
        if old.streams is new.streams:
            return False
        async with self._changing:
            slices = _Slices()
            for stream_id in list(changed_streams(old, new)):
                before, after = old.streams.get(stream_id), new.streams.get(stream_id)
                for ids, readonly in mark_changes(before, after, readonly_partitions):
                    if ids in self._open:
                        self._engine.partition_set_readonly(namespace(*ids), self._open[ids], readonly)
                    await slices.next()
                for ids, paused in mark_changes(before, after, paused_partitions):
                    if ids in self._open:
                        self._engine.partition_set_paused(namespace(*ids), self._open[ids], paused)
                    await slices.next()
                for ids, level, limits, window in self._to_adapt(before, after):
                    place = namespace(*ids), self._open[ids]
                    if window is not None:
                        self._engine.partition_set_window(*place, window)
                    if level is not None:
                        self._engine.partition_set_level(*place, level)
                    if limits is not None:
                        self._engine.partition_set_limits(*place, limits)
                    await slices.next()
            change = await threads.run(plan, self._data, self._shard, self._shards, old, new)
            if not change:
                await self._limit_sends(old, new)
                return False
            left_alone = frozenset(self._refused.intersection(change.closing))  # may belong to a newer log
            slices = _Slices()
            for ids in change.closing:
                self._close(ids)
                await slices.next()
            trashed, found = await threads.run(self._exchange_files, change, left_alone, new, self._clock())
            slices = _Slices()
            for ids, identity in change.opening:
                directory = str(layout.partition_directory(self._data, *ids))
                self._open_as(ids, identity, new, directory, found.get(ids, Recovered()))
                await slices.next()
            await self._limit_sends(old, new)
            return trashed

    async def _limit_sends(self, old: State, new: State) -> None:
        """Of topics that have changed: their limits, or their partitions."""
        slices, none = _Slices(), SendLimits()
        for stream_id in changed_streams(old, new):
            before = old.streams.get(stream_id)
            for topic in new.streams[stream_id].topics.values() if stream_id in new.streams else ():
                previous = None if before is None else before.topics.get(topic.id)
                limits = self._limits.of_sends(topic)
                had = none if previous is None else self._limits.of_sends(previous)
                if previous is not topic and (limits, had) != (none, none):
                    places = [(each.slot, each.incarnation) for each in topic.partitions]
                    numbers = [(stream_id, topic.id, each.id) for each in topic.partitions]
                    open_here = self._open
                    own = [
                        SendingPartition(namespace(*ids), open_here[ids], at)
                        for at, ids in enumerate(numbers)
                        if ids in open_here
                    ]
                    self._engine.topic_set_send_limits(own, limits, places)
                await slices.next()

    def _exchange_files(
        self, change: Change, left_alone: frozenset[PartitionIds], new: State, clock: ExpiryClock
    ) -> tuple[bool, dict[PartitionIds, Outcome]]:
        """In a helper thread: what was closed goes; whether anything went, and what lies where a partition opens."""
        trashed = remove_closed(self._data, change, left_alone)
        directories = Directories(self._data)
        there = [item for item in change.opening if directories.find(item[0])[1]]
        outcomes = self._recover_all(there, new, clock)
        return trashed, {ids: outcome for (ids, _), outcome in zip(there, outcomes, strict=True)}

    def _level(self, topic: Topic) -> int:
        return LEVELS[ACK.of(topic.settings, self._system)]

    def _to_adapt(
        self, old: Stream | None, new: Stream | None
    ) -> Iterator[tuple[PartitionIds, int | None, PartitionLimits | None, IdWindow | None]]:
        """The open partitions of topics whose level, limits or window have changed, with what is new of them."""
        for stream_id, before, topic in changed_topics(old, new):
            level = self._level(topic) if self._level(before) != self._level(topic) else None
            limits = self._limits.of(topic) if self._limits.of(before) != self._limits.of(topic) else None
            windows = window_of(topic, self._system), window_of(before, self._system)
            window = windows[0] if windows[0] != windows[1] else None
            if level is None and limits is None and window is None:
                continue
            for partition, previous in zip(topic.partitions, before.partitions, strict=False):
                ids = (stream_id, topic.id, partition.id)
                if ids in self._open and partition.incarnation == previous.incarnation:
                    yield ids, level, limits, window

    def rolled(self, ns: int, start_offset: int) -> None:
        """The segment that starts there will not change any more."""
        ids = partition_ids(ns)
        if ids in self._open:
            self._seal(ids, self._open[ids], start_offset)

    def _owns(self, ids: PartitionIds) -> bool:
        return owner(namespace(*ids), self._shards) == self._shard

    def _clock(self) -> ExpiryClock:
        """The believed one, which belongs to the loop, as it is now."""
        return self._engine.expiry_clock()

    def _recover_all(
        self, batch: list[tuple[PartitionIds, Identity]], state: State, clock: ExpiryClock
    ) -> list[Outcome]:
        """In a helper thread, or on the loop for single ones."""
        places = [(ids, incarnation) for ids, (incarnation, _) in batch]
        return recover_all(self._data, places, state, self._system, clock)

    def _open_as(self, ids: PartitionIds, identity: Identity, state: State, directory: str, outcome: Outcome) -> None:
        """Opens what was recovered, without the offsets of groups that were deleted.

        A partition that could not be recovered opens read only, the others are not concerned.
        """
        incarnation, slot = identity
        arguments = (namespace(*ids), incarnation, slot, directory, self._segment_size_bytes)
        topic = state.streams[ids[0]].topics[ids[1]]
        level = self._level(topic)
        trouble = trouble_in(outcome)
        try:
            if not isinstance(outcome, Recovered):
                raise outcome
            self._open_recovered(ids, arguments, topic, outcome)
        except (OSError, ValueError, MemoryError) as error:
            trouble = trouble_in(error) or Trouble.DEVICE
            _log.error("partition %s is read only and empty %s: %s", directory, trouble.value, error)
            if trouble is Trouble.FOREIGN:
                self._refused.add(ids)
            self._recovered["refused"] += 1
            self._engine.partition_close(namespace(*ids), incarnation)
            self._engine.partition_open(*arguments, READ_ONLY, [], level, [], 0)  # it holds nothing to be limited
        if trouble is not None and trouble.heals:
            self._waiting[ids] = trouble
        if ids[2] in readonly_partitions(topic):
            self._engine.partition_set_readonly(namespace(*ids), incarnation, True)
        if ids[2] in paused_partitions(topic):
            self._engine.partition_set_paused(namespace(*ids), incarnation, True)
        self._open[ids] = incarnation

    def _open_recovered(
        self, ids: PartitionIds, arguments: tuple[int, int, int, str, int], topic: Topic, found: Recovered
    ) -> None:
        """OSError, ValueError, MemoryError."""
        self._count(found)
        for note in found.notes:
            _log.warning("%s", note)
        files = (found.state, found.segments, self._level(topic), found.damaged, found.durable_end)
        more = (found.log_start, self._limits.of(topic), found.waiting)
        unread = retried(self._data, lambda: self._engine.partition_open(*arguments, *files, *more))
        tell_unread(Path(arguments[3]), *unread)
        self._compare_ids(ids, arguments[1], window_of(topic, self._system), found.known_ids)
        if found.damaged:
            self._damaged.add(ids)
        for start in found.unsealed:
            self._seal(ids, arguments[1], start)
        alive = {group.offsets_id for group in topic.groups.values()} if found.groups else set()
        for group in found.groups:
            if group not in alive:
                self._engine.offset_delete(namespace(*ids), arguments[1], _native.OFFSET_GROUP, group)

    def _compare_ids(self, ids: PartitionIds, incarnation: int, window: IdWindow, known: bytes = b"") -> None:
        """Of topics that compare none there is nothing to say to a partition that was just opened."""
        if window == IdWindow():
            return
        if not self._engine.partition_set_window(namespace(*ids), incarnation, window, known):
            _log.error("partition %s: no memory for the ids of its last messages: they may be stored twice", ids)

    def _count(self, recovered: Recovered) -> None:
        if recovered.segments:
            self._recovered["partitions"] += 1
            self._recovered["segments"] += len(recovered.segments)
            self._recovered["scanned_bytes"] += recovered.scanned_bytes

    def _close(self, ids: PartitionIds) -> None:
        incarnation = self._open.pop(ids, 0)
        self._damaged.discard(ids)
        self._waiting.pop(ids, None)
        self._refused.discard(ids)
        self._engine.partition_close(namespace(*ids), incarnation)
