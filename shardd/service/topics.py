"""Topics: codes 300-305 (docs/protocol/streams.md#topics)."""

from __future__ import annotations

from collections.abc import Iterator

from shardd.metadata.commands import CreateTopic, DeleteTopic, PurgeTopic, UpdateTopic
from shardd.metadata.state import Topic
from shardd.protocol import limits, replies, requests
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Compression
from shardd.security import Rule
from shardd.service import base
from shardd.service.base import Caller
from shardd.service.context import ShardContext


def topic_head(topic: Topic, sums: base.Sums) -> replies.Topic:
    """The topic with the sums over its partitions."""
    return replies.Topic(
        id=topic.id,
        created_at_us=topic.created_at_us,
        partitions_count=len(topic.partitions),
        message_expiry_us=topic.message_expiry_us,
        compression=topic.compression,
        max_topic_size_bytes=topic.max_topic_size_bytes,
        replication_factor=topic.replication_factor,
        size_bytes=sums.size_bytes,
        messages_count=sums.messages_count,
        name=topic.name,
    )


async def topic_reply(context: ShardContext, caller: Caller, topic: Topic, *, created: bool = False) -> bytes:
    """The topic and its partitions by id. One that was `created` just now is announced without segments; GET_TOPIC
    shows one in each partition (docs/protocol/streams.md#topics)."""
    sums, entries = base.Sums(), bytearray()

    def steps() -> Iterator[None]:
        for partition in topic.partitions:
            stats = base.partition_stats(context, partition)
            sums.add(stats)
            entry = replies.Partition(
                id=partition.id,
                created_at_us=partition.created_at_us,
                segments_count=0 if created else stats.segments_count,
                current_offset=stats.current_offset,
                size_bytes=stats.size_bytes,
                messages_count=stats.messages_count,
            )
            entries.extend(entry.encode())
            yield

    await base.compute(context, caller, steps())
    return topic_head(topic, sums).encode() + bytes(entries)


def _check_compression(compression: int) -> None:
    if compression not in (Compression.NONE, Compression.GZIP):
        raise ShardError(Status.INVALID_COMMAND, "unknown compression")


async def get_topic(context: ShardContext, caller: Caller, request: requests.TopicRequest) -> bytes:
    stream = base.find_stream(context.metadata.state, request.stream)
    topic = None if stream is None else base.find_topic(stream, request.topic)
    if topic is None:
        return b""
    base.require(context, caller, Rule.GET_TOPIC, stream, topic)
    return await topic_reply(context, caller, topic)


async def get_topics(context: ShardContext, caller: Caller, request: requests.StreamRequest) -> bytes:
    stream = base.find_stream(context.metadata.state, request.stream)
    if stream is None:
        return b""
    base.require(context, caller, Rule.GET_TOPICS, stream)
    topics = [stream.topics[topic_id] for topic_id in sorted(stream.topics)]
    sums = await base.sums(context, caller, topics)
    return b"".join(topic_head(*each).encode() for each in zip(topics, sums, strict=True))


async def create_topic(context: ShardContext, caller: Caller, request: requests.CreateTopic) -> bytes:
    """Checks in this order: 2015, 3, 1009, 41, 1019, 2013; zeros become server defaults
    (docs/protocol/primitives.md#topic-values)."""
    if request.partitions_count > limits.PARTITIONS_PER_REQUEST_MAX:
        raise ShardError(Status.TOO_MANY_PARTITIONS)
    _check_compression(request.compression)
    stream = base.stream_of(context.metadata.state, request.stream)
    base.require(context, caller, Rule.CREATE_TOPIC, stream)
    system = context.settings.system
    if limits.SERVER_DEFAULT < request.max_topic_size_bytes < system.segment_size_bytes:
        raise ShardError(Status.INVALID_TOPIC_SIZE)
    command = CreateTopic(
        stream=base.stream_ref(stream),
        name=request.name,
        partitions_count=request.partitions_count,
        compression=request.compression,
        message_expiry_us=request.message_expiry_us or system.topic_message_expiry_us,
        max_topic_size_bytes=request.max_topic_size_bytes or system.topic_max_size_bytes,
        replication_factor=request.replication_factor or 1,
    )
    result = await base.submit(context, caller, command)
    return await topic_reply(context, caller, result.state.streams[stream.id].topics[result.id], created=True)


async def update_topic(context: ShardContext, caller: Caller, request: requests.UpdateTopic) -> bytes:
    """Expiry and size are stored as sent, zeros too, and without the check of the size
    (docs/protocol/primitives.md#topic-values)."""
    _check_compression(request.compression)
    stream, topic = base.topic_of(context.metadata.state, request.stream, request.topic)
    base.require(context, caller, Rule.CHANGE_TOPIC, stream, topic)
    command = UpdateTopic(
        stream=base.stream_ref(stream),
        topic=base.topic_ref(topic),
        name=request.name,
        compression=request.compression,
        message_expiry_us=request.message_expiry_us,
        max_topic_size_bytes=request.max_topic_size_bytes,
        replication_factor=request.replication_factor or 1,
    )
    await base.submit(context, caller, command)
    return b""


async def delete_topic(context: ShardContext, caller: Caller, request: requests.TopicRequest) -> bytes:
    stream, topic = base.topic_of(context.metadata.state, request.stream, request.topic)
    base.require(context, caller, Rule.CHANGE_TOPIC, stream, topic)
    await base.submit(context, caller, DeleteTopic(base.stream_ref(stream), base.topic_ref(topic)))
    return b""


async def purge_topic(context: ShardContext, caller: Caller, request: requests.TopicRequest) -> bytes:
    stream, topic = base.topic_of(context.metadata.state, request.stream, request.topic)
    base.require(context, caller, Rule.CHANGE_TOPIC, stream, topic)
    await base.submit(context, caller, PurgeTopic(base.stream_ref(stream), base.topic_ref(topic)))
    return b""
