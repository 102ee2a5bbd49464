"""GET_PARTITION_BOUNDS (shardd.protocol.bounds): from the shared statistics, the segments from the names of their
files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from shardd.log import layout
from shardd.log.manifest import read_manifest
from shardd.log.record_format import INDEX_ENTRY_BYTES
from shardd.metadata.state import Partition, Stream, Topic
from shardd.protocol import bounds, primitives
from shardd.protocol.bounds import PartitionBounds, SegmentBounds
from shardd.protocol.errors import ShardError, Status
from shardd.runtime.threads import UnwantedError
from shardd.security import Rule
from shardd.service import base
from shardd.service.base import Caller
from shardd.service.context import ShardContext

LISTED_AT_ONCE: Final = 64  # directories in one call of a helper thread: others use the threads, too


class BoundsService:
    """Lives on the loop thread."""

    def __init__(self) -> None:
        self._listing = asyncio.Lock()  # one request at a time looks into directories

    async def get_partition_bounds(
        self, context: ShardContext, caller: Caller, request: bounds.GetPartitionBounds
    ) -> bytes:
        selected = _select(context, caller, request)
        encoded: list[list[bytes]] = []
        if request.segments:
            async with self._listing:
                await _encode_with_segments(context, caller, selected, encoded)
        else:
            await base.compute(context, caller, _encode(context, selected, encoded))
        parts = [primitives.u32(len(selected))]
        for (stream, topic, partitions), entries in zip(selected, encoded, strict=True):
            parts.append(bounds.encode_topic(stream.id, topic.id, stream.name, topic.name, len(partitions)))
            parts += entries
        return b"".join(parts)


_Selected = list[tuple[Stream, Topic, list[Partition] | tuple[Partition, ...]]]


def _select(context: ShardContext, caller: Caller, request: bounds.GetPartitionBounds) -> _Selected:
    """Every partition that is asked for, none of them twice. `ShardError` 4, 1009, 2010, 41, 3007, 2015."""
    selected: _Selected = []
    topics, total = set(), 0
    for selection in request.topics:
        stream, topic = base.topic_of(context.metadata.state, selection.stream, selection.topic)
        base.require(context, caller, Rule.POLL_MESSAGES, stream, topic)
        if topic.incarnation in topics:
            raise ShardError(Status.INVALID_FORMAT, "a topic twice")
        topics.add(topic.incarnation)
        total += len(selection.partitions) or len(topic.partitions)
        if total > bounds.PARTITIONS_MAX:
            raise ShardError(Status.TOO_MANY_PARTITIONS, f"{total} partitions and more")
        partitions = [base.partition_of(topic, each) for each in selection.partitions] or topic.partitions
        selected.append((stream, topic, partitions))
    return selected


def _encode(context: ShardContext, selected: _Selected, encoded: list[list[bytes]]) -> Iterator[None]:
    for _, _, partitions in selected:
        entries: list[bytes] = []
        encoded.append(entries)
        for partition in partitions:
            entries.append(_bounds(context, partition).encode())
            yield


def _bounds(context: ShardContext, partition: Partition) -> PartitionBounds:
    incarnation, end, size_bytes, messages, _, durable_end, first, state, unseen = context.engine.stats(partition.slot)
    end = max(end - unseen, durable_end, first)  # the fields may be of two neighbouring moments
    if incarnation != partition.incarnation:
        raise ShardError(Status.SHARD_COMMUNICATION_ERROR, "the partition is not open at its owner")
    return PartitionBounds(partition.id, state, incarnation, first, end, durable_end, size_bytes, messages)


async def _encode_with_segments(
    context: ShardContext, caller: Caller, selected: _Selected, encoded: list[list[bytes]]
) -> None:
    """In pieces, for as long as the client is there. `ShardError` 2015."""
    data, segments_count = context.settings.system.data_directory, 0
    for stream, topic, partitions in selected:
        entries: list[bytes] = []
        encoded.append(entries)
        for at in range(0, len(partitions), LISTED_AT_ONCE):
            piece = [
                (layout.partition_directory(data, stream.id, topic.id, each.id), _bounds(context, each))
                for each in partitions[at : at + LISTED_AT_ONCE]
            ]
            try:
                more, listed = await context.threads.run(
                    _listed, piece, wanted=lambda: not context.engine.has_left(caller.connection)
                )
            except UnwantedError:
                raise ShardError(Status.DISCONNECTED, "it has left before its turn", close=True) from None
            entries += more
            segments_count += listed
            if segments_count > bounds.SEGMENTS_MAX:
                raise ShardError(Status.TOO_MANY_PARTITIONS, f"{segments_count} segments and more")


def _listed(piece: list[tuple[Path, PartitionBounds]]) -> tuple[list[bytes], int]:
    """Looks into the directories; blocks. The entries, and how many segments they have."""
    listed = [with_segments(directory, partition) for directory, partition in piece]
    return [each.encode() for each in listed], sum(len(each.segments) for each in listed)


def with_segments(directory: Path, partition: PartitionBounds) -> PartitionBounds:
    """The bounds were taken before the names: segments that were made in between are left out."""
    logs, entries_bytes = {}, {}
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                name = layout.parse_segment_name(entry.name)
                if name is None or not partition.first <= name[0] < partition.end:
                    continue
                if name[1] == "log":
                    logs[name[0]] = entry.stat().st_size
                elif name[1] == "index":
                    entries_bytes[name[0]] = entry.stat().st_size
    except FileNotFoundError:
        return partition  # it never got a message, or is being deleted
    starts = sorted(logs)
    if not starts:
        return partition  # the directory is being made, or its first log is
    ends = [*starts[1:], partition.end]
    segments = tuple(
        SegmentBounds(start, end, logs[start], end != partition.end, _layout(directory, start, end, entries_bytes))
        for start, end in zip(starts, ends, strict=True)
    )
    return replace(partition, segments=segments)


def _layout(directory: Path, start: int, end: int, entries_bytes: dict[int, int]) -> int:
    """Only an index with less entries than offsets is worth a look at the manifest."""
    if entries_bytes.get(start, 0) >= (end - start) * INDEX_ENTRY_BYTES:
        return bounds.LAYOUT_PLAIN
    try:
        manifest = read_manifest(directory, start)
    except (OSError, ValueError):
        return bounds.LAYOUT_PLAIN
    return bounds.LAYOUT_SPARSE if manifest is not None and manifest.sparse else bounds.LAYOUT_PLAIN
