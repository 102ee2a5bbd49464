"""Which partitions of a topic a client of Liftbridge has marked. Read only: their owner refuses sends with 4010, all
else goes on. Paused: their owner tells of the next message that is stored and is not of Liftbridge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from shardd.log.layout import PartitionIds
from shardd.metadata.liftbridge_runs import differing, is_on, on_ranges
from shardd.metadata.liftbridge_state import Range, Run
from shardd.metadata.state import Stream, Topic
from shardd.protocol.liftbridge.creation import RESERVED_STREAMS
from shardd.worker.partition_changes import changed_topics


class MarkedPartitions(msgspec.Struct, frozen=True):
    """Ids of partitions, as runs in their order: what it costs does not grow with the partitions of a topic, and to ask
    for one of them not with the runs either."""

    runs: tuple[Run, ...] = ()

    @property
    def ranges(self) -> tuple[Range, ...]:
        return on_ranges(self.runs)

    def __contains__(self, partition: int) -> bool:
        return is_on(self.runs, partition)


_NONE: Final = MarkedPartitions()


def readonly_partitions(topic: Topic) -> MarkedPartitions:
    """For clients of every protocol."""
    known = topic.liftbridge
    return MarkedPartitions(known.readonly) if known is not None and known.readonly else _NONE


def paused_partitions(topic: Topic) -> MarkedPartitions:
    """What the server itself writes into its own streams ends no pause."""
    known = topic.liftbridge
    if known is None or not known.paused or known.name in RESERVED_STREAMS:
        return _NONE
    return MarkedPartitions(known.paused)


def mark_changes(
    old: Stream | None, new: Stream | None, marked: Callable[[Topic], MarkedPartitions]
) -> Iterator[tuple[PartitionIds, bool]]:
    """The partitions of topics that have changed which are marked now, or no more. Those that are another one now are
    not among them: whoever opens them asks `marked`."""
    for stream_id, before, topic in changed_topics(old, new):
        was, now = marked(before).ranges, marked(topic).ranges
        count = min(len(topic.partitions), len(before.partitions))
        for (first, end), is_marked in differing(was, now):
            for partition in topic.partitions[first : min(end, count)]:
                if partition.incarnation == before.partitions[partition.id].incarnation:
                    yield (stream_id, topic.id, partition.id), is_marked
