"""Opens and closes the partitions that this shard owns, following the metadata. Lives on the loop thread of its worker.

A record is applied here before it is acknowledged, so nobody is told about a partition that its owner does not know
yet, and whatever was deleted or purged is out of reach (renamed to `trash/`) before the client hears of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

from shardd.engine import Engine, namespace, owner
from shardd.log import layout
from shardd.log.recovery import Recovered, open_partition
from shardd.log.trash import move_to_trash
from shardd.metadata.state import State, Stream

_log = logging.getLogger(__name__)

OFFSET_GROUP = 2  # native/src/partition.h
_READ_ONLY = 10006  # CannotWriteToFile: a partition whose directory cannot be used refuses sends

Place = tuple[int, int, int]  # stream, topic, partition
Identity = tuple[int, int]  # incarnation, slot


def partitions_of(stream: Stream | None) -> dict[Place, Identity]:
    """Every partition of a stream; none for None."""
    if stream is None:
        return {}
    return {
        (stream.id, topic.id, partition.id): (partition.incarnation, partition.slot)
        for topic in stream.topics.values()
        for partition in topic.partitions
    }


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


class OwnedPartitions:
    """The partitions of one shard. `follow` is called for every applied record."""

    def __init__(self, engine: Engine, shard: int, shards: int, data: Path, segment_size_bytes: int) -> None:
        self._engine = engine
        self._shard = shard
        self._shards = shards
        self._data = data
        self._segment_size_bytes = segment_size_bytes
        self._open: set[Place] = set()
        self._refused: set[Place] = set()  # directories that are not ours to move
        self._recovered = {"partitions": 0, "segments": 0, "scanned_bytes": 0, "microseconds": 0, "refused": 0}

    def __len__(self) -> int:
        return len(self._open)

    def recovery_figures(self) -> dict[str, int]:
        """What this process has recovered so far: partitions that held something, their segments, bytes of the active
        ones, time; `refused` could not be opened."""
        return dict(self._recovered)

    def follow(self, old: State, new: State) -> bool:
        """Applies the difference; True when something went to the trash."""
        trashed = False
        for stream_id in list(changed_streams(old, new)):
            before = partitions_of(old.streams.get(stream_id))
            after = partitions_of(new.streams.get(stream_id))
            for place, identity in before.items():
                if after.get(place) != identity and self._owns(place):
                    trashed = self._close(place) or trashed
            self._remove_skeleton(old.streams.get(stream_id), new.streams.get(stream_id))
            for place, identity in after.items():
                if before.get(place) != identity and self._owns(place):
                    groups = new.streams[stream_id].topics[place[1]].groups
                    self._open_one(place, identity, {group.offsets_id for group in groups.values()})
        return trashed

    def _owns(self, place: Place) -> bool:
        return owner(namespace(*place), self._shards) == self._shard

    def _open_one(self, place: Place, identity: Identity, groups: set[int]) -> None:
        """Recovers and opens, without the offsets of groups that are not among `groups`: they were deleted.

        A partition that cannot be recovered opens read only, the others are not concerned.
        """
        directory = layout.partition_directory(self._data, *place)
        incarnation, slot = identity
        arguments = (namespace(*place), incarnation, slot, str(directory), self._segment_size_bytes)
        try:
            began_ns = time.monotonic_ns()
            recovered = open_partition(directory, incarnation)
            self._count(recovered, time.monotonic_ns() - began_ns)
            for note in recovered.notes:
                _log.warning("%s", note)
            self._engine.partition_open(*arguments, recovered.state, recovered.segments, recovered.offsets)
            for kind, number, _ in recovered.offsets:
                if kind == OFFSET_GROUP and number not in groups:
                    self._engine.offset_delete(namespace(*place), kind, number)
        except (OSError, ValueError) as error:
            _log.error("partition %s is read only and empty until the next start: %s", directory, error)
            self._refused.add(place)
            self._recovered["refused"] += 1
            self._engine.partition_open(*arguments, _READ_ONLY, [], [])
        self._open.add(place)

    def _count(self, recovered: Recovered, elapsed_ns: int) -> None:
        if recovered.segments:
            self._recovered["partitions"] += 1
            self._recovered["segments"] += len(recovered.segments)
            self._recovered["scanned_bytes"] += recovered.segments[-1][1]
            self._recovered["microseconds"] += elapsed_ns // 1000

    def _close(self, place: Place) -> bool:
        self._open.discard(place)
        self._engine.partition_close(namespace(*place))
        if place in self._refused:  # it could not be opened: what lies there may belong to a newer log
            self._refused.discard(place)
            return False
        directory = layout.partition_directory(self._data, *place)
        try:
            return move_to_trash(directory, layout.trash_directory(self._data), durable=False) is not None
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


def _remove_empty(*directories: Path) -> None:
    for directory in directories:
        try:
            directory.rmdir()
        except OSError:  # not empty (another shard's partition, a foreign file) or never made
            return
