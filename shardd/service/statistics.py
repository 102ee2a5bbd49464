"""Statistics of partitions and topics (docs/protocol/records.md#statistics), as their owners publish them; and answers
that grow with the number of topics and partitions asked about, in slices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

import msgspec

from shardd.engine import StatsSlot, StatsSums
from shardd.metadata.state import Partition, Topic
from shardd.service.base import Connections
from shardd.service.identity import Identity
from shardd.service.long_answers import LongAnswers


class PartitionStats(msgspec.Struct, frozen=True):
    """Statistics of one partition; sizes in bytes."""

    segments_count: int = 1
    current_offset: int = 0
    size_bytes: int = 0
    messages_count: int = 0


EMPTY_PARTITION = PartitionStats()
_SUMMED_AT_ONCE: Final = 500


class Sums(msgspec.Struct):
    """Over partitions; sizes in bytes."""

    segments_count: int = 0
    size_bytes: int = 0
    messages_count: int = 0

    def add(self, stats: PartitionStats | Sums) -> None:
        self.segments_count += stats.segments_count
        self.size_bytes += stats.size_bytes
        self.messages_count += stats.messages_count


class StatisticsEngine(Connections, Protocol):
    """The part of the engine with the shared statistics."""

    def stats(self, slot: int) -> StatsSlot: ...
    def stats_sums(self, partitions: tuple[Partition, ...], first: int, end: int, /) -> StatsSums: ...


class Statistics:
    """One per worker, loop thread only."""

    def __init__(self, engine: StatisticsEngine) -> None:
        self.engine = engine
        self.answers = LongAnswers(engine)

    def of(self, partition: Partition) -> PartitionStats:
        """What the owner published; an empty partition while the slot holds another incarnation."""
        figures = self.engine.stats(partition.slot)
        if figures.incarnation != partition.incarnation:
            return EMPTY_PARTITION
        last_offset = max(figures.next_offset - 1, 0)
        return PartitionStats(figures.segments_count, last_offset, figures.size_bytes, figures.messages_count)

    def sum_up(self, topic: Topic, sums: Sums) -> Iterator[None]:
        """Adds every partition of the topic, some in each step."""
        count = len(topic.partitions)
        for first in range(0, count, _SUMMED_AT_ONCE):
            end = min(first + _SUMMED_AT_ONCE, count)
            sums.add(Sums(*self.engine.stats_sums(topic.partitions, first, end)[:3]))
            yield

    async def take(self, identity: Identity, steps: Iterable[object]) -> None:
        """As `LongAnswers.take`."""
        await self.answers.take(identity, steps)
