"""Bounds of partitions (shardd.protocol.bounds): from the shared statistics, and segments from the names of files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Generic

import msgspec
from msgspec.structs import replace

from shardd.log import layout
from shardd.log.manifest import read_manifest
from shardd.log.record_format import INDEX_ENTRY_BYTES
from shardd.metadata import Metadata
from shardd.metadata.state import Partition, Stream, Topic
from shardd.protocol import bounds
from shardd.protocol.bounds import PartitionBounds, SegmentBounds
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.record_layout import LAYOUT_COMPRESSED, LAYOUT_PLAIN, LAYOUT_SPARSE
from shardd.runtime.fair_turns import FairTurns
from shardd.runtime.threads import Threads, UnwantedError
from shardd.security import Rule
from shardd.service import base
from shardd.service.identity import Identity
from shardd.service.partition_calls import PartitionCalls
from shardd.service.statistics import Statistics
from shardd.service.topics import Keep, Kept

LISTED_AT_ONCE: Final = 64  # directories in one call of a helper thread: others use the threads, too


class TopicPartitions(msgspec.Struct, Generic[Kept], frozen=True):
    """What was asked for of one topic."""

    stream_id: int
    topic_id: int
    stream: str
    topic: str
    partitions: list[Kept]


_Selected = list[tuple[Stream, Topic, list[Partition] | tuple[Partition, ...]]]


class BoundsService:
    """Lives on the loop thread."""

    def __init__(
        self,
        metadata: Metadata,
        statistics: Statistics,
        threads: Threads,
        data_directory: Path,
        calls: PartitionCalls,
    ) -> None:
        self._metadata = metadata
        self._calls = calls
        self._statistics = statistics
        self._threads = threads
        self._data_directory = data_directory
        self._listing = FairTurns(1)  # one request at a time looks into directories, users in turns

    async def get_partition_bounds(
        self,
        identity: Identity,
        request: bounds.GetPartitionBounds,
        keep: Keep[PartitionBounds, Kept],
    ) -> list[TopicPartitions[Kept]]:
        """In the order of the request. `keep` may run in helper threads. An answer tells that the user may poll, unless
        the request is that of a sender. 4, 1009, 2010, 41, 3007, 2015."""
        selected = self._select(identity, request)
        found: list[TopicPartitions[Kept]] = [
            TopicPartitions(*_names(stream, topic), []) for stream, topic, _ in selected
        ]
        if request.sync:
            await self._statistics.take(identity, self._ask_syncs(selected))
        if request.segments:
            async with self._listing.turn((str(identity.user),)):
                await self._find_with_segments(identity, selected, found, keep)
        else:
            await self._statistics.take(identity, self._find(identity, selected, found, keep))
        return found

    def _select(self, identity: Identity, request: bounds.GetPartitionBounds) -> _Selected:
        """Every partition that is asked for, none of them twice."""
        selected: _Selected = []
        topics, total, state = set(), 0, self._metadata.state
        for selection in request.topics:
            stream, topic = base.topic_of(state, selection.stream, selection.topic)
            if not (request.for_sender and base.permitted(state, identity, Rule.SEND_MESSAGES, stream, topic)):
                base.require(state, identity, Rule.POLL_MESSAGES, stream, topic)
            if topic.incarnation in topics:
                raise ShardError(Status.INVALID_FORMAT, "a topic twice")
            topics.add(topic.incarnation)
            total += len(selection.partitions) or len(topic.partitions)
            if total > bounds.PARTITIONS_MAX:
                raise ShardError(Status.TOO_MANY_PARTITIONS, f"{total} partitions and more")
            partitions = [base.partition_of(topic, each) for each in selection.partitions] or topic.partitions
            selected.append((stream, topic, partitions))
        return selected

    def _find(
        self,
        identity: Identity,
        selected: _Selected,
        found: list[TopicPartitions[Kept]],
        keep: Keep[PartitionBounds, Kept],
    ) -> Iterator[None]:
        """A sender without the right to poll wants the count: zeros stand for a partition that is not open."""
        for (stream, topic, partitions), of_topic in zip(selected, found, strict=True):
            reads = base.permitted(self._metadata.state, identity, Rule.POLL_MESSAGES, stream, topic)
            for partition in partitions:
                of_topic.partitions.append(keep(self._bounds(partition, or_zeros=not reads)))
                yield

    def _ask_syncs(self, selected: _Selected) -> Iterator[None]:
        for stream, topic, partitions in selected:
            for partition in partitions:
                each = self._bounds(partition)
                if each.durable_end < each.end:
                    self._calls.ask_sync(self._calls.home(stream, topic, partition))
                yield

    def end_of(self, partition: Partition) -> int:
        """The offset of its next message. `ShardError` 11001."""
        return self._bounds(partition).end

    def _bounds(self, partition: Partition, *, or_zeros: bool = False) -> PartitionBounds:
        figures = self._statistics.engine.stats(partition.slot)
        incarnation, end, size_bytes, messages, _, durable_end, first, state, unseen = figures
        end = max(end - unseen, durable_end, first)  # the fields may be of two neighbouring moments
        if incarnation != partition.incarnation:
            if or_zeros:
                return PartitionBounds(partition.id, 0, 0, 0, 0, 0, 0, 0)
            raise ShardError(Status.SHARD_COMMUNICATION_ERROR, "the partition is not open at its owner")
        return PartitionBounds(partition.id, state, incarnation, first, end, durable_end, size_bytes, messages)

    async def _find_with_segments(
        self,
        identity: Identity,
        selected: _Selected,
        found: list[TopicPartitions[Kept]],
        keep: Keep[PartitionBounds, Kept],
    ) -> None:
        """In pieces, for as long as the client is there. `ShardError` 2015."""
        segments_count = 0
        for (stream, topic, partitions), of_topic in zip(selected, found, strict=True):
            for at in range(0, len(partitions), LISTED_AT_ONCE):
                piece = [
                    (layout.partition_directory(self._data_directory, stream.id, topic.id, each.id), self._bounds(each))
                    for each in partitions[at : at + LISTED_AT_ONCE]
                ]
                try:
                    more, listed = await self._threads.run(
                        _listed, piece, keep, wanted=lambda: base.waits(self._statistics.engine, identity)
                    )
                except UnwantedError:
                    raise ShardError(Status.DISCONNECTED, "it has left before its turn", close=True) from None
                of_topic.partitions.extend(more)
                segments_count += listed
                if segments_count > bounds.SEGMENTS_MAX:
                    raise ShardError(Status.TOO_MANY_PARTITIONS, f"{segments_count} segments and more")


def _names(stream: Stream, topic: Topic) -> tuple[int, int, str, str]:
    return stream.id, topic.id, stream.name, topic.name


def _listed(piece: list[tuple[Path, PartitionBounds]], keep: Keep[PartitionBounds, Kept]) -> tuple[list[Kept], int]:
    """Looks into the directories; blocks. What is kept, and how many segments there are."""
    listed = [with_segments(directory, partition) for directory, partition in piece]
    return [keep(each) for each in listed], sum(len(each.segments) for each in listed)


def with_segments(directory: Path, partition: PartitionBounds) -> PartitionBounds:
    """The bounds were taken before the names: segments that were made in between are left out."""
    logs: dict[int, int] = {}
    entries_bytes: dict[int, int] = {}
    packed: set[int] = set()
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                name = layout.parse_segment_name(entry.name)
                if name is None or name[0] >= partition.end:
                    continue
                if name[1] == "log":
                    logs[name[0]] = entry.stat().st_size
                elif name[1] == "blocks":
                    packed.add(name[0])
                elif name[1] == "index":
                    entries_bytes[name[0]] = entry.stat().st_size
    except FileNotFoundError:
        return partition  # it never got a message, or is being deleted
    compressed = _sizes_of(directory, packed)
    logs |= compressed
    starts = sorted(logs)
    before = [start for start in starts if start <= partition.first]
    starts = starts[max(0, len(before) - 1) :]  # the log may start within a segment
    if not starts:
        return partition  # the directory is being made, or its first log is
    ends = [*starts[1:], partition.end]
    segments = tuple(
        SegmentBounds(
            start,
            end,
            logs[start],
            end != partition.end,
            _layout(directory, start, end, entries_bytes)
            | (LAYOUT_COMPRESSED if start in compressed else LAYOUT_PLAIN),
        )
        for start, end in zip(starts, ends, strict=True)
        if end > partition.first
    )
    return replace(partition, segments=segments)


def _sizes_of(directory: Path, starts: set[int]) -> dict[int, int]:
    """Bytes of the plain logs of those that are compressed."""
    sizes = {}
    for start in starts:
        try:
            manifest = read_manifest(directory, start)
        except (OSError, ValueError):
            continue
        if manifest is not None and manifest.sealed is not None and manifest.stored is not None:
            sizes[start] = manifest.sealed.log_bytes
    return sizes


def _layout(directory: Path, start: int, end: int, entries_bytes: dict[int, int]) -> int:
    """Only an index with less entries than offsets is worth a look at the manifest."""
    if entries_bytes.get(start, 0) >= (end - start) * INDEX_ENTRY_BYTES:
        return LAYOUT_PLAIN
    try:
        manifest = read_manifest(directory, start)
    except (OSError, ValueError):
        return LAYOUT_PLAIN
    return LAYOUT_SPARSE if manifest is not None and manifest.sparse else LAYOUT_PLAIN
