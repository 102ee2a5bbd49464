"""Which partitions of a topic are read only: their owner refuses sends with 4010, all else goes on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import Final

import msgspec

from shardd.log.layout import PartitionIds
from shardd.metadata.liftbridge_runs import differing, on_ranges
from shardd.metadata.liftbridge_state import Range
from shardd.metadata.state import Stream, Topic
from shardd.worker.partition_changes import changed_topics


class ReadonlyPartitions(msgspec.Struct, frozen=True):
    """Ids of partitions, as ranges in their order: what it costs does not grow with the partitions of a topic."""

    ranges: tuple[Range, ...] = ()

    def __contains__(self, partition: int) -> bool:
        at = bisect_right(self.ranges, partition, key=itemgetter(0)) - 1
        return at >= 0 and partition < self.ranges[at][1]


_NONE: Final = ReadonlyPartitions()


def readonly_partitions(topic: Topic) -> ReadonlyPartitions:
    """Those that a client of Liftbridge has set read only: for clients of every protocol."""
    known = topic.liftbridge
    return ReadonlyPartitions(on_ranges(known.readonly)) if known is not None and known.readonly else _NONE


def readonly_changes(old: Stream | None, new: Stream | None) -> Iterator[tuple[PartitionIds, bool]]:
    """The partitions of topics that have changed which are read only now, or no more. Those that are another one now
    are not among them: whoever opens them asks `readonly_partitions`."""
    for stream_id, before, topic in changed_topics(old, new):
        was, now = readonly_partitions(before).ranges, readonly_partitions(topic).ranges
        count = min(len(topic.partitions), len(before.partitions))
        for (first, end), readonly in differing(was, now):
            for partition in topic.partitions[first : min(end, count)]:
                if partition.incarnation == before.partitions[partition.id].incarnation:
                    yield (stream_id, topic.id, partition.id), readonly
