"""Topics (docs/protocol/streams.md#topics)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from shardd.config import codecs
from shardd.config.liftbridge import Liftbridge
from shardd.config.schema import System
from shardd.metadata import Metadata
from shardd.metadata.commands import ChangeTopic, CreateTopicWithSettings, DeleteTopic, PurgeTopic, UpdateTopic
from shardd.metadata.state import Stream, Topic
from shardd.protocol import limits, requests, topic_change
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Compression, Identifier
from shardd.protocol.replies import PartitionSummary, TopicDetails, TopicSummary
from shardd.protocol.topic_setting_table import codec_of, settings_of_new
from shardd.security import Rule
from shardd.service import base
from shardd.service.identity import Identity
from shardd.service.liftbridge.lookup import topic_would_take_a_name, would_take_a_name
from shardd.service.statistics import Statistics, Sums

Summary = TypeVar("Summary")
Kept = TypeVar("Kept")
Keep = Callable[[Summary], Kept]
"""The part of each summary that is kept until a long answer is whole. A dispatcher keeps the encoded form: it is made
in the same slice, and much smaller than the values."""


def topic_summary(topic: Topic, sums: Sums, settings: System) -> TopicSummary:
    """The topic with the sums over its partitions. One that is compressed, by whatever algorithm, shows 2."""
    compressed = codec_of(topic.settings, topic.compression, settings) != codecs.NONE
    return TopicSummary(
        id=topic.id,
        created_at_us=topic.created_at_us,
        partitions_count=len(topic.partitions),
        message_expiry_us=topic.message_expiry_us,
        compression=Compression.GZIP if compressed else Compression.NONE,
        max_topic_size_bytes=topic.max_topic_size_bytes,
        replication_factor=topic.replication_factor,
        size_bytes=sums.size_bytes,
        messages_count=sums.messages_count,
        name=topic.name,
    )


def _check_compression(compression: int) -> None:
    if compression not in (Compression.NONE, Compression.GZIP):
        raise ShardError(Status.INVALID_COMMAND, "unknown compression")


class TopicService:
    """Lives on the loop thread. `settings`: the server's defaults."""

    def __init__(self, metadata: Metadata, statistics: Statistics, settings: System, liftbridge: Liftbridge) -> None:
        self._metadata = metadata
        self._statistics = statistics
        self._settings = settings
        self._liftbridge = liftbridge

    async def get_topic(
        self, identity: Identity, request: requests.TopicRequest, keep: Keep[PartitionSummary, Kept]
    ) -> TopicDetails[Kept] | None:
        """None: there is none."""
        state = self._metadata.state
        stream = base.find_stream(state, request.stream)
        topic = None if stream is None else base.find_topic(stream, request.topic)
        if topic is None:
            return None
        base.require(state, identity, Rule.GET_TOPIC, stream, topic)
        return await self._details(identity, topic, keep)

    async def get_topics(
        self, identity: Identity, request: requests.StreamRequest, keep: Keep[TopicSummary, Kept]
    ) -> list[Kept]:
        """By id; empty when there is no such stream."""
        state, kept = self._metadata.state, list[Kept]()
        stream = base.find_stream(state, request.stream)
        if stream is None:
            return kept
        base.require(state, identity, Rule.GET_TOPICS, stream)

        def steps() -> Iterator[None]:
            for topic_id in sorted(stream.topics):
                topic, sums = stream.topics[topic_id], Sums()
                yield from self._statistics.sum_up(topic, sums)
                kept.append(keep(topic_summary(topic, sums, self._settings)))
                yield

        await self._statistics.take(identity, steps())
        return kept

    async def create_topic(
        self,
        identity: Identity,
        request: requests.CreateTopicRequest,
        keep: Keep[PartitionSummary, Kept],
        settings: tuple[tuple[str, str], ...] = (),
    ) -> TopicDetails[Kept]:
        """Checks in this order: 2015, 3, 1009, 41, 1019, 2013; zeros become server defaults
        (docs/protocol/primitives.md#topic-values). `settings`: canonical ones, from the start."""
        if request.partitions_count > limits.PARTITIONS_PER_REQUEST_MAX:
            raise ShardError(Status.TOO_MANY_PARTITIONS)
        _check_compression(request.compression)
        stream = base.stream_of(self._metadata.state, request.stream)
        base.require(self._metadata.state, identity, Rule.CREATE_TOPIC, stream)
        if limits.SERVER_DEFAULT < request.max_topic_size_bytes < self._settings.segment_size_bytes:
            raise ShardError(Status.INVALID_TOPIC_SIZE)
        if would_take_a_name(self._metadata.state, self._liftbridge, stream, request.name):
            raise ShardError(Status.TOPIC_NAME_ALREADY_EXISTS)
        command = CreateTopicWithSettings(
            stream=base.stream_ref(stream),
            name=request.name,
            partitions_count=request.partitions_count,
            compression=request.compression,
            message_expiry_us=request.message_expiry_us or self._settings.topic_message_expiry_us,
            max_topic_size_bytes=request.max_topic_size_bytes or self._settings.topic_max_size_bytes,
            replication_factor=request.replication_factor or 1,
            chosen_id=request.chosen_id,
            retention=True,
            settings=settings_of_new(settings),
        )
        result = await base.submit(self._metadata, identity, command)
        topic = result.state.streams[stream.id].topics[result.id]
        return await self._details(identity, topic, keep, created=True)

    async def update_topic(self, identity: Identity, request: requests.UpdateTopicRequest) -> None:
        """Expiry and size are stored as sent, zeros too, and without the check of the size
        (docs/protocol/primitives.md#topic-values)."""
        _check_compression(request.compression)
        stream, topic = self._to_change(identity, request.stream, request.topic)
        self._require_free(stream, topic, request.name)
        command = UpdateTopic(
            stream=base.stream_ref(stream),
            topic=base.topic_ref(topic),
            name=request.name,
            compression=request.compression,
            message_expiry_us=request.message_expiry_us,
            max_topic_size_bytes=request.max_topic_size_bytes,
            replication_factor=request.replication_factor or 1,
            retention=True,
        )
        await base.submit(self._metadata, identity, command)

    async def change_topic(self, identity: Identity, request: topic_change.ChangeTopic) -> None:
        """As `update_topic`, of the values that are said: the others keep what they have when the record is applied."""
        if request.compression is not None:
            _check_compression(request.compression)
        stream, topic = self._to_change(identity, request.stream, request.topic)
        if request.name is not None:
            self._require_free(stream, topic, request.name)
        command = ChangeTopic(
            stream=base.stream_ref(stream),
            topic=base.topic_ref(topic),
            name=request.name,
            compression=request.compression,
            message_expiry_us=request.message_expiry_us,
            max_topic_size_bytes=request.max_topic_size_bytes,
            replication_factor=1 if request.replication_factor == 0 else request.replication_factor,
            retention=request.message_expiry_us is not None or request.max_topic_size_bytes is not None,
        )
        await base.submit(self._metadata, identity, command)

    async def delete_topic(self, identity: Identity, request: requests.TopicRequest) -> None:
        stream, topic = self._to_change(identity, request.stream, request.topic)
        await base.submit(self._metadata, identity, DeleteTopic(base.stream_ref(stream), base.topic_ref(topic)))

    async def purge_topic(self, identity: Identity, request: requests.TopicRequest) -> None:
        stream, topic = self._to_change(identity, request.stream, request.topic)
        await base.submit(self._metadata, identity, PurgeTopic(base.stream_ref(stream), base.topic_ref(topic)))

    def _require_free(self, stream: Stream, topic: Topic, name: str) -> None:
        """`ShardError` 2013 when the topic would take over the name of a stream of Liftbridge."""
        if name != topic.name and topic_would_take_a_name(self._metadata.state, self._liftbridge, stream, topic, name):
            raise ShardError(Status.TOPIC_NAME_ALREADY_EXISTS)

    def _to_change(self, identity: Identity, stream: Identifier, topic: Identifier) -> tuple[Stream, Topic]:
        found = base.topic_of(self._metadata.state, stream, topic)
        base.require(self._metadata.state, identity, Rule.CHANGE_TOPIC, *found)
        return found

    async def _details(
        self, identity: Identity, topic: Topic, keep: Keep[PartitionSummary, Kept], *, created: bool = False
    ) -> TopicDetails[Kept]:
        """The topic and its partitions by id. One that was `created` just now is announced without segments; GET_TOPIC
        shows one in each partition (docs/protocol/streams.md#topics)."""
        sums, kept = Sums(), list[Kept]()

        def steps() -> Iterator[None]:
            for partition in topic.partitions:
                stats = self._statistics.of(partition)
                sums.add(stats)
                summary = PartitionSummary(
                    id=partition.id,
                    created_at_us=partition.created_at_us,
                    segments_count=0 if created else stats.segments_count,
                    current_offset=stats.current_offset,
                    size_bytes=stats.size_bytes,
                    messages_count=stats.messages_count,
                )
                kept.append(keep(summary))
                yield

        await self._statistics.take(identity, steps())
        return TopicDetails(topic_summary(topic, sums, self._settings), kept)
