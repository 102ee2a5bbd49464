"""GET_PARTITION_BOUNDS (shardd.protocol.bounds): from the shared statistics, the segments from the names of their
files."""

from __future__ import annotations

import os
from pathlib import Path

from shardd.log import layout
from shardd.metadata.state import Partition, Stream, Topic
from shardd.protocol import bounds
from shardd.protocol.bounds import PartitionBounds, SegmentBounds, TopicBounds
from shardd.protocol.errors import ShardError, Status
from shardd.security import Rule
from shardd.shard.context import ShardContext
from shardd.shard.services import base
from shardd.shard.services.base import Caller


async def get_partition_bounds(context: ShardContext, caller: Caller, request: bounds.GetPartitionBounds) -> bytes:
    found = []
    for selection in request.topics:
        stream, topic = base.topic_of(context.metadata.state, selection.stream, selection.topic)
        base.require(context, caller, Rule.POLL_MESSAGES, stream, topic)
        partitions = [base.partition_of(topic, each) for each in selection.partitions] or list(topic.partitions)
        found.append((stream, topic, [_bounds(context, partition) for partition in partitions]))
    if request.segments:
        found = await context.threads.run(_with_segments, context.settings.system.data_directory, found)
    topics = (TopicBounds(s.id, t.id, s.name, t.name, tuple(partitions)) for s, t, partitions in found)
    return bounds.encode_reply(tuple(topics))


def _bounds(context: ShardContext, partition: Partition) -> PartitionBounds:
    incarnation, end, size_bytes, messages, _, durable_end, first, state, unseen = context.engine.stats(partition.slot)
    end = max(end - unseen, durable_end, first)  # the fields may be of two neighbouring moments
    if incarnation != partition.incarnation:
        raise ShardError(Status.SHARD_COMMUNICATION_ERROR, "the partition is not open at its owner")
    return PartitionBounds(partition.id, state, incarnation, first, end, durable_end, size_bytes, messages)


_Found = list[tuple[Stream, Topic, list[PartitionBounds]]]


def _with_segments(data: Path, found: _Found) -> _Found:
    """Looks into the directories; blocks."""
    return [
        (
            stream,
            topic,
            [
                with_segments(layout.partition_directory(data, stream.id, topic.id, each.id), each)
                for each in partitions
            ],
        )
        for stream, topic, partitions in found
    ]


def with_segments(directory: Path, partition: PartitionBounds) -> PartitionBounds:
    """The bounds were taken before the names: segments that were made in between are left out."""
    logs = {}
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                name = layout.parse_segment_name(entry.name)
                if name is not None and name[1] == "log" and partition.first <= name[0] < partition.end:
                    logs[name[0]] = entry.stat().st_size
    except FileNotFoundError:
        return partition  # it never got a message, or is being deleted
    starts = sorted(logs)
    if not starts:
        return partition  # the directory is being made, or its first log is
    ends = [*starts[1:], partition.end]
    segments = tuple(
        SegmentBounds(start, end, logs[start], sealed=end != partition.end)
        for start, end in zip(starts, ends, strict=True)
    )
    numbers = (partition.id, partition.state, partition.incarnation, partition.first, partition.end)
    sizes = (partition.durable_end, partition.size_bytes, partition.messages_count)
    return PartitionBounds(*numbers, *sizes, segments)
