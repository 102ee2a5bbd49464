"""Figures of this worker and of the server for whoever watches it: asked by doors, in nobody's name (docs/adr/0054)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from shardd.config.metrics import Metrics
from shardd.engine import GroupLag
from shardd.metadata import Metadata
from shardd.metadata.state import ConsumerGroup, Stream, Topic
from shardd.protocol.door_figures import Counts, GroupFigures, Listed, TopicFigures
from shardd.protocol.namespaces import namespace
from shardd.runtime.metrics import ShardFigures
from shardd.runtime.slices import Slices
from shardd.service.long_answers import ascending
from shardd.service.sessions import SessionTable
from shardd.service.statistics import Statistics, Sums
from shardd.service.topics import Keep, Kept

PARTITIONS_AT_ONCE: Final = 500


class LagEngine(Protocol):
    """The part of the engine that knows stored offsets."""

    def group_lag(self, namespace: int, group: int, first: int, end: int, /) -> GroupLag: ...


class FiguresService:
    """One per worker, loop thread only. What grows with what there is, is made in slices and bounded by the settings.
    `own`: counters and gauges of this worker."""

    def __init__(
        self,
        metadata: Metadata,
        statistics: Statistics,
        engine: LagEngine,
        sessions: SessionTable,
        own: Callable[[], ShardFigures],
        limits: Metrics,
    ) -> None:
        self._metadata = metadata
        self._statistics = statistics
        self._engine = engine
        self._sessions = sessions
        self._own = own
        self._limits = limits
        self._slices = Slices()

    def of_shard(self) -> ShardFigures:
        return self._own()

    async def counts(self) -> Counts:
        state, sums, topics, partitions = self._metadata.state, Sums(), 0, 0

        def steps() -> Iterator[None]:
            nonlocal topics, partitions
            for stream in state.streams.values():
                for topic in stream.topics.values():
                    topics += 1
                    partitions += len(topic.partitions)
                    yield from self._statistics.sum_up(topic, sums)
                    yield

        await self._slices.run(steps())
        return Counts(
            len(state.streams),
            topics,
            partitions,
            sums.segments_count,
            sums.messages_count,
            len(state.users),
            len(self._sessions),
        )

    async def topics(self, keep: Keep[TopicFigures, Kept]) -> Listed[Kept]:
        """Of all shards, as their owners have published it."""
        kept = list[Kept]()
        total = sum(len(stream.topics) for stream in self._metadata.state.streams.values())

        def steps() -> Iterator[None]:
            for found in self._in_order():
                if len(kept) >= self._limits.topics_max:
                    return
                yield
                if found is not None:
                    sums = [0] * 6
                    yield from self._sum_up(found[1], sums)
                    kept.append(keep(_topic_figures(*found, sums)))

        await self._slices.run(steps())
        return Listed(kept, max(total - len(kept), 0))

    async def groups(self, keep: Keep[GroupFigures, Kept]) -> Listed[Kept]:
        """Of the partitions of this shard; a group is there also when none of them is."""
        kept, total = list[Kept](), 0
        now_us = time.time_ns() // 1000

        def steps() -> Iterator[None]:
            nonlocal total
            for found in self._in_order():
                yield
                if found is None or not found[1].groups:
                    continue
                groups = found[1].groups
                total += len(groups)
                for group_id in ascending(groups):
                    yield
                    if len(kept) >= self._limits.groups_max:
                        break
                    if group_id is not None:
                        lag = [0] * 4
                        yield from self._lag(*found, groups[group_id], lag)
                        kept.append(keep(_group_figures(*found, groups[group_id], lag, now_us)))

        await self._slices.run(steps())
        return Listed(kept, total - len(kept))

    def _in_order(self) -> Iterator[tuple[Stream, Topic] | None]:
        """Topics by id: on every shard the same ones come first. None for steps between them."""
        streams = self._metadata.state.streams
        for stream_id in ascending(streams):
            yield None
            if stream_id is not None:
                stream = streams[stream_id]
                for topic_id in ascending(stream.topics):
                    yield None if topic_id is None else (stream, stream.topics[topic_id])

    def _sum_up(self, topic: Topic, sums: list[int]) -> Iterator[None]:
        count = len(topic.partitions)
        for first in range(0, count, PARTITIONS_AT_ONCE):
            end = min(first + PARTITIONS_AT_ONCE, count)
            more = self._statistics.engine.stats_sums(topic.partitions, first, end)
            sums[:] = [one + other for one, other in zip(sums, more, strict=True)]
            yield

    def _lag(self, stream: Stream, topic: Topic, group: ConsumerGroup, lag: list[int]) -> Iterator[None]:
        packed, count = namespace(stream.id, topic.id, 0), len(topic.partitions)
        for first in range(0, count, PARTITIONS_AT_ONCE):
            end = min(first + PARTITIONS_AT_ONCE, count)
            *sums, since_us = self._engine.group_lag(packed, group.offsets_id, first, end)
            lag[:3] = [one + other for one, other in zip(lag, sums, strict=False)]
            lag[3] = min(filter(None, (lag[3], since_us)), default=0)
            yield


def _topic_figures(stream: Stream, topic: Topic, sums: list[int]) -> TopicFigures:
    segments, size_bytes, messages, appended, not_durable, read_only = sums
    partitions = len(topic.partitions)
    return TopicFigures(
        stream.name, topic.name, partitions, segments, messages, size_bytes, appended, not_durable, read_only
    )


def _group_figures(stream: Stream, topic: Topic, group: ConsumerGroup, lag: list[int], now_us: int) -> GroupFigures:
    partitions, without_offset, messages, since_us = lag
    age_us = max(now_us - since_us, 0) if since_us else 0
    return GroupFigures(stream.name, topic.name, group.name, partitions, without_offset, messages, age_us)
