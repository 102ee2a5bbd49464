"""Which partitions of a topic are read only: their owner refuses sends with 4010, all else goes on."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from shardd.log.layout import PartitionIds
from shardd.metadata.state import Stream, Topic

_NONE: Final[frozenset[int]] = frozenset()


def readonly_partitions(_topic: Topic) -> Container[int]:
    """Their ids."""
    return _NONE


def readonly_changes(old: Stream | None, new: Stream | None) -> Iterator[tuple[PartitionIds, bool]]:
    """The partitions of topics that have changed which are read only now, or no more. Those that are another one now
    are not among them: whoever opens them asks `readonly_partitions`."""
    if old is None or new is None:
        return
    for topic in new.topics.values():
        before = old.topics.get(topic.id)
        if before is None or before is topic:
            continue
        was, now = readonly_partitions(before), readonly_partitions(topic)
        if was == now:
            continue
        for partition, previous in zip(topic.partitions, before.partitions, strict=False):
            readonly = partition.id in now
            if partition.incarnation == previous.incarnation and (partition.id in was) != readonly:
                yield (new.id, topic.id, partition.id), readonly
