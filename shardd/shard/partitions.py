"""Opens and closes the partitions that this shard owns, following the metadata. Lives on the loop thread of its worker.

A record is applied here before it is acknowledged, so nobody is told about a partition that its owner does not know
yet, and whatever was deleted or purged is out of reach (renamed to `trash/`) before the client hears of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from shardd.config.schema import System
from shardd.engine import Engine, namespace, owner
from shardd.log import layout
from shardd.log.recovery import Recovered, open_partition
from shardd.log.trash import move_to_trash
from shardd.metadata.channel import Threads
from shardd.metadata.disk import NO_ROOM
from shardd.metadata.reserve import Reserve
from shardd.metadata.state import State, Stream

_log = logging.getLogger(__name__)

OFFSET_GROUP = 2  # native/src/partition.h
LEVELS = {"written": 0, "memory": 1, "durable": 2}  # partition_level in native/src/partition.h
_READ_ONLY = 10006  # CannotWriteToFile: a partition whose directory cannot be used refuses sends
SLICE: Final = 256  # partitions between two looks at the rest of the loop
RECOVERY_LANES: Final = 2  # directories that are scanned at once

Place = tuple[int, int, int]  # stream, topic, partition
Identity = tuple[int, int]  # incarnation, slot
Outcome = Recovered | OSError | ValueError


def partitions_of(stream: Stream | None, other: Stream | None = None) -> dict[Place, Identity]:
    """Every partition of a stream, but of topics that are the very same in `other`; none for None."""
    if stream is None:
        return {}
    same = {} if other is None else other.topics
    return {
        (stream.id, topic.id, partition.id): (partition.incarnation, partition.slot)
        for topic in stream.topics.values()
        if same.get(topic.id) is not topic
        for partition in topic.partitions
    }


def identity_in(state: State, place: Place) -> Identity | None:
    """The partition that stands there now."""
    stream = state.streams.get(place[0])
    topic = None if stream is None else stream.topics.get(place[1])
    if topic is None or place[2] >= len(topic.partitions):
        return None
    partition = topic.partitions[place[2]]
    return partition.incarnation, partition.slot


def changed_streams(old: State, new: State) -> Iterator[int]:
    """Ids of the streams whose values differ (by identity: unchanged parts are shared)."""
    if old.streams is new.streams:
        return
    for stream_id, stream in new.streams.items():
        if old.streams.get(stream_id) is not stream:
            yield stream_id
    for stream_id in old.streams:
        if stream_id not in new.streams:
            yield stream_id


def place_of(namespace: int) -> Place:
    """(stream, topic, partition) of a namespace."""
    return namespace >> 32, namespace >> 20 & 0xFFF, namespace & 0xFFFFF


def place_text(namespace: int) -> str:
    """ "stream/topic/partition" of a namespace."""
    return "/".join(map(str, place_of(namespace)))


class _Directories:
    """Which partitions have a directory, looked up once for each topic: most of many partitions have none."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._topics: dict[tuple[int, int], tuple[str, set[str] | None]] = {}

    def find(self, place: Place) -> tuple[str, bool]:
        """(path, whether something may be there)."""
        known = self._topics.get(place[:2])
        if known is None:
            parent = layout.topic_directory(self._data, *place[:2]) / layout.PARTITIONS
            known = self._topics[place[:2]] = (f"{parent}/", _names(parent))
        prefix, names = known
        name = str(place[2])
        return prefix + name, names is None or name in names


def _names(directory: Path) -> set[str] | None:
    """Names in a directory; None when they cannot be read."""
    try:
        with os.scandir(directory) as entries:
            return {entry.name for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError:
        return None


class OwnedPartitions:
    """The partitions of one shard. `follow` is called for every applied record, `recover` once before.

    `progress` is called during long work, so that nobody takes it for a worker that hangs. `seal` gets the segments
    (directory, incarnation, start offset) whose manifests have no digest yet.
    """

    def __init__(
        self,
        engine: Engine,
        shard: int,
        shards: int,
        data: Path,
        system: System,
        progress: Callable[[], None] = lambda: None,
        seal: Callable[[Path, int, int], None] = lambda _directory, _incarnation, _start: None,
    ) -> None:
        self._engine = engine
        self._shard = shard
        self._shards = shards
        self._data = data
        self._segment_size_bytes = system.segment_size_bytes
        self._level = LEVELS[system.partition.ack]
        self._progress = progress
        self._seal = seal
        self._open: dict[Place, int] = {}  # and their incarnations
        self._refused: set[Place] = set()  # directories that are not ours to move
        self._no_room: set[Place] = set()  # read only because the disk was full when they were opened
        self._recovered = {
            "partitions": 0,
            "segments": 0,
            "scanned_bytes": 0,
            "microseconds": 0,
            "phase_microseconds": 0,
            "refused": 0,
        }

    def __len__(self) -> int:
        return len(self._open)

    def incarnation_of(self, place: Place) -> int | None:
        """Of the partition that is open there."""
        return self._open.get(place)

    def open_places(self) -> list[Place]:
        return list(self._open)

    def recovery_figures(self) -> dict[str, int]:
        """What this process has recovered so far: partitions that held something, their segments, bytes of logs that
        were read, time of all lanes at the start and of the whole phase; `refused` could not be opened."""
        return dict(self._recovered)

    async def recover(self, state: State, threads: Threads) -> None:
        """Opens everything; directories are scanned in helper threads, and the loop goes on meanwhile."""
        phase_began_ns = time.monotonic_ns()
        directories = _Directories(self._data)
        waiting: list[tuple[Place, Identity]] = []
        for stream_id in sorted(state.streams):
            for number, (place, identity) in enumerate(partitions_of(state.streams[stream_id]).items()):
                if number % SLICE == 0:
                    await asyncio.sleep(0)
                if not self._owns(place):
                    continue
                directory, exists = directories.find(place)
                if exists:
                    waiting.append((place, identity))
                else:
                    self._open_as(place, identity, state, directory, Recovered())
        waiting.reverse()

        async def lane() -> None:
            while waiting:
                batch = [waiting.pop() for _ in range(min(len(waiting), SLICE // 16))]
                began_ns = time.monotonic_ns()
                outcomes = await threads.run(self._recover_all, batch)
                self._recovered["microseconds"] += (time.monotonic_ns() - began_ns) // 1000
                for (place, identity), outcome in zip(batch, outcomes, strict=True):
                    self._open_as(place, identity, state, directories.find(place)[0], outcome)

        await asyncio.gather(*(lane() for _ in range(RECOVERY_LANES)))
        self._recovered["phase_microseconds"] += (time.monotonic_ns() - phase_began_ns) // 1000

    async def room_returned(self, current: Callable[[], State], threads: Threads) -> None:
        """Opens again what a full disk left read only. `current` gives the state of the moment."""
        for place in sorted(self._no_room):
            identity = identity_in(current(), place)
            if identity is None or place not in self._no_room:
                continue
            [outcome] = await threads.run(self._recover_all, [(place, identity)])
            if identity_in(current(), place) != identity or place not in self._no_room:
                continue  # deleted or purged meanwhile
            self._no_room.discard(place)
            self._engine.partition_close(namespace(*place))
            directory = str(layout.partition_directory(self._data, *place))
            self._open_as(place, identity, current(), directory, outcome)
            self._engine.routes_invalidate()

    def follow(self, old: State, new: State) -> bool:
        """Applies the difference; True when something went to the trash."""
        trashed = False
        directories = _Directories(self._data)
        for stream_id in list(changed_streams(old, new)):
            old_stream, new_stream = old.streams.get(stream_id), new.streams.get(stream_id)
            before, after = partitions_of(old_stream, new_stream), partitions_of(new_stream, old_stream)
            for number, (place, identity) in enumerate(before.items()):
                if number % SLICE == 0:
                    self._progress()
                if after.get(place) != identity and self._owns(place):
                    trashed = self._close(place, directories) or trashed
            self._remove_skeleton(old_stream, new_stream)
            directories = _Directories(self._data)
            for number, (place, identity) in enumerate(after.items()):
                if number % SLICE == 0:
                    self._progress()
                if before.get(place) != identity and self._owns(place):
                    directory, exists = directories.find(place)
                    [outcome] = self._recover_all([(place, identity)]) if exists else [Recovered()]
                    self._open_as(place, identity, new, directory, outcome)
        return trashed

    def rolled(self, ns: int, start_offset: int) -> None:
        """The segment that starts there will not change any more."""
        place = place_of(ns)
        if place in self._open:
            self._seal(layout.partition_directory(self._data, *place), self._open[place], start_offset)

    def _owns(self, place: Place) -> bool:
        return owner(namespace(*place), self._shards) == self._shard

    def _recover_all(self, batch: list[tuple[Place, Identity]]) -> list[Outcome]:
        """In a helper thread, or on the loop for single ones. A full disk gets the room of the reserve once."""
        outcomes: list[Outcome] = []
        for place, (incarnation, _) in batch:
            directory = layout.partition_directory(self._data, *place)
            outcome = _recover_one(directory, incarnation)
            if _wants_room(outcome) and Reserve(self._data).release():
                outcome = _recover_one(directory, incarnation)
            outcomes.append(outcome)
        return outcomes

    def _open_as(self, place: Place, identity: Identity, state: State, directory: str, outcome: Outcome) -> None:
        """Opens what was recovered, without the offsets of groups that were deleted.

        A partition that could not be recovered opens read only, the others are not concerned.
        """
        incarnation, slot = identity
        arguments = (namespace(*place), incarnation, slot, directory, self._segment_size_bytes)
        if _wants_room(outcome):
            self._no_room.add(place)
        try:
            if not isinstance(outcome, Recovered):
                raise outcome
            self._count(outcome)
            for note in outcome.notes:
                _log.warning("%s", note)
            self._engine.partition_open(
                *arguments, outcome.state, outcome.segments, outcome.offsets, self._level, outcome.damaged
            )
            for start in outcome.unsealed:
                self._seal(Path(directory), incarnation, start)
            groups = state.streams[place[0]].topics[place[1]].groups.values() if outcome.offsets else ()
            alive = {group.offsets_id for group in groups}
            for kind, number, _ in outcome.offsets:
                if kind == OFFSET_GROUP and number not in alive:
                    self._engine.offset_delete(namespace(*place), kind, number)
        except (OSError, ValueError) as error:
            if place in self._no_room:
                _log.error("partition %s is read only and empty until there is room: %s", directory, error)
            else:
                _log.error("partition %s is read only and empty until the next start: %s", directory, error)
                self._refused.add(place)
            self._recovered["refused"] += 1
            self._engine.partition_open(*arguments, _READ_ONLY, [], [], self._level, [])
        self._open[place] = incarnation

    def _count(self, recovered: Recovered) -> None:
        if recovered.segments:
            self._recovered["partitions"] += 1
            self._recovered["segments"] += len(recovered.segments)
            self._recovered["scanned_bytes"] += recovered.scanned_bytes

    def _close(self, place: Place, directories: _Directories) -> bool:
        self._open.pop(place, None)
        self._no_room.discard(place)
        self._engine.partition_close(namespace(*place))
        if place in self._refused:  # it could not be opened: what lies there may belong to a newer log
            self._refused.discard(place)
            return False
        directory, exists = directories.find(place)
        if not exists:
            return False
        try:
            return move_to_trash(Path(directory), layout.trash_directory(self._data), durable=False) is not None
        except OSError as error:  # its marker keeps the next incarnation from opening it
            _log.error("%s cannot be moved to the trash: %s", directory, error)
            return False

    def _remove_skeleton(self, old: Stream | None, new: Stream | None) -> None:
        """Removes the empty directories of deleted topics; the last shard that gets here succeeds."""
        if old is None:
            return
        gone = [topic_id for topic_id in old.topics if new is None or topic_id not in new.topics]
        for topic_id in gone:
            topic = layout.topic_directory(self._data, old.id, topic_id)
            _remove_empty(topic / layout.PARTITIONS, topic)
        if new is None:
            stream = layout.stream_directory(self._data, old.id)
            _remove_empty(stream / layout.TOPICS, stream)


def _recover_one(directory: Path, incarnation: int) -> Outcome:
    try:
        return open_partition(directory, incarnation)
    except (OSError, ValueError) as error:
        return error


def _wants_room(outcome: Outcome) -> bool:
    """Whether it could be recovered (further) if the disk had room."""
    if isinstance(outcome, Recovered):
        return outcome.state == _READ_ONLY
    return isinstance(outcome, OSError) and outcome.errno in NO_ROOM


def _remove_empty(*directories: Path) -> None:
    for directory in directories:
        try:
            directory.rmdir()
        except OSError:  # not empty (another shard's partition, a foreign file) or never made
            return
