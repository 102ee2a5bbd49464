"""What a record changes about the partitions of one shard, and the files that have to go: the parts of following it
that touch neither the engine nor the loop, so that they can run in a helper thread, however many partitions it is."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from shardd.engine import owner
from shardd.log import layout
from shardd.log.layout import PartitionIds
from shardd.log.trash import move_to_trash
from shardd.metadata.state import Partition, State, Stream, Topic
from shardd.protocol.namespaces import namespace

_log = logging.getLogger(__name__)

Identity = tuple[int, int]  # incarnation, slot


def partitions_of(stream: Stream) -> dict[PartitionIds, Identity]:
    """Every partition of a stream."""
    return {
        (stream.id, topic.id, partition.id): (partition.incarnation, partition.slot)
        for topic in stream.topics.values()
        for partition in topic.partitions
    }


def identity_in(state: State, ids: PartitionIds) -> Identity | None:
    """The partition that stands there now."""
    stream = state.streams.get(ids[0])
    topic = None if stream is None else stream.topics.get(ids[1])
    if topic is None or ids[2] >= len(topic.partitions):
        return None
    partition = topic.partitions[ids[2]]
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


def changed_topics(old: Stream | None, new: Stream | None) -> Iterator[tuple[int, Topic, Topic]]:
    """Of the topics of a stream that are there all the time and whose values differ: the id of the stream, the topic
    before and now."""
    if old is None or new is None:
        return
    for topic in new.topics.values():
        before = old.topics.get(topic.id)
        if before is not None and before is not topic:
            yield new.id, before, topic


class Directories:
    """Which partitions have a directory, looked up once for each topic: most of many partitions have none."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._topics: dict[tuple[int, int], tuple[str, set[str] | None]] = {}

    def find(self, ids: PartitionIds) -> tuple[str, bool]:
        """(path, whether something may be there)."""
        known = self._topics.get(ids[:2])
        if known is None:
            parent = layout.topic_directory(self._data, *ids[:2]) / layout.PARTITIONS
            known = self._topics[ids[:2]] = (f"{parent}/", _names(parent))
        prefix, names = known
        name = str(ids[2])
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


class Change(msgspec.Struct, frozen=True):
    """What one shard has to do: close, move to the trash, open. A purged partition is in both lists.

    `skeletons`: directories of topics and streams that are gone, each inner one first.
    """

    closing: list[PartitionIds]
    opening: list[tuple[PartitionIds, Identity]]
    skeletons: list[tuple[Path, ...]]

    def __bool__(self) -> bool:
        return bool(self.closing or self.opening or self.skeletons)


def plan(data: Path, shard: int, shards: int, old: State, new: State) -> Change:
    """The difference between two states, as far as it is this shard's."""
    change = Change([], [], [])
    for stream_id in changed_streams(old, new):
        old_stream, new_stream = old.streams.get(stream_id), new.streams.get(stream_id)
        for ids, before, after in _changed_partitions(stream_id, old_stream, new_stream):
            if owner(namespace(*ids), shards) != shard:
                continue
            if before is not None:
                change.closing.append(ids)
            if after is not None:
                change.opening.append((ids, (after.incarnation, after.slot)))
        change.skeletons.extend(_skeletons(data, old_stream, new_stream))
    return change


def _changed_partitions(
    stream_id: int, old: Stream | None, new: Stream | None
) -> Iterator[tuple[PartitionIds, Partition | None, Partition | None]]:
    """The ids of every partition that is another one now, with both of them. What did not change is shared."""
    old_topics: Mapping[int, Topic] = {} if old is None else old.topics
    new_topics: Mapping[int, Topic] = {} if new is None else new.topics
    for topic_id in {*old_topics, *new_topics}:
        old_topic, new_topic = old_topics.get(topic_id), new_topics.get(topic_id)
        if old_topic is new_topic:
            continue
        before = () if old_topic is None else old_topic.partitions
        after = () if new_topic is None else new_topic.partitions
        for number, (one, other) in enumerate(itertools.zip_longest(before, after)):
            if one is not other and one != other:
                yield (stream_id, topic_id, number), one, other


def _skeletons(data: Path, old: Stream | None, new: Stream | None) -> Iterator[tuple[Path, ...]]:
    if old is None:
        return
    for topic_id in old.topics:
        if new is None or topic_id not in new.topics:
            topic = layout.topic_directory(data, old.id, topic_id)
            yield topic / layout.PARTITIONS, topic
    if new is None:
        stream = layout.stream_directory(data, old.id)
        yield stream / layout.TOPICS, stream


def remove_closed(data: Path, change: Change, left_alone: frozenset[PartitionIds]) -> bool:
    """Moves what was closed to the trash, but for `left_alone`, and removes the skeletons that are empty (the last
    shard that gets here succeeds). True when something was moved. Blocks: helper threads only."""
    directories, trash, moved = Directories(data), layout.trash_directory(data), False
    for ids in change.closing:
        directory, exists = directories.find(ids)
        if not exists or ids in left_alone:
            continue
        try:
            moved = move_to_trash(Path(directory), trash, durable=False) is not None or moved
        except OSError as error:  # its marker keeps the next incarnation from opening it
            _log.error("%s cannot be moved to the trash: %s", directory, error)
    for skeleton in change.skeletons:
        _remove_empty(*skeleton)
    return moved


def _remove_empty(*directories: Path) -> None:
    for directory in directories:
        try:
            directory.rmdir()
        except OSError:  # not empty (another shard's partition, a foreign file) or never made
            return
