"""Streams: codes 200-205 (iggy-protocol 3.4)."""

from __future__ import annotations

from shardd.metadata.commands import CreateStream, DeleteStream, PurgeStream, UpdateStream
from shardd.metadata.state import Stream
from shardd.protocol import replies, requests
from shardd.security import Rule
from shardd.shard.context import ShardContext
from shardd.shard.services import base
from shardd.shard.services.base import Caller
from shardd.shard.services.topics import topic_reply


def stream_reply(context: ShardContext, stream: Stream) -> tuple[replies.Stream, list[replies.Topic]]:
    """The stream with the sums over its topics, and its topics by id."""
    topics = [topic_reply(context, stream.topics[topic_id])[0] for topic_id in sorted(stream.topics)]
    reply = replies.Stream(
        id=stream.id,
        created_at_us=stream.created_at_us,
        topics_count=len(topics),
        size_bytes=sum(topic.size_bytes for topic in topics),
        messages_count=sum(topic.messages_count for topic in topics),
        name=stream.name,
    )
    return reply, topics


async def get_stream(context: ShardContext, caller: Caller, request: requests.StreamRequest) -> bytes:
    stream = base.find_stream(context.metadata.state, request.stream)
    if stream is None:
        return b""
    base.require(context, caller, Rule.GET_STREAM, stream)
    reply, topics = stream_reply(context, stream)
    return reply.encode() + b"".join(topic.encode() for topic in topics)


async def get_streams(context: ShardContext, caller: Caller, request: requests.Empty) -> bytes:
    base.require(context, caller, Rule.GET_STREAMS)
    streams = context.metadata.state.streams
    return b"".join(stream_reply(context, streams[stream_id])[0].encode() for stream_id in sorted(streams))


async def create_stream(context: ShardContext, caller: Caller, request: requests.CreateStream) -> bytes:
    base.require(context, caller, Rule.CREATE_STREAM)
    result = await base.submit(context, caller, CreateStream(request.name))
    return stream_reply(context, result.state.streams[result.id])[0].encode()


async def update_stream(context: ShardContext, caller: Caller, request: requests.UpdateStream) -> bytes:
    stream = base.stream_of(context.metadata.state, request.stream)
    base.require(context, caller, Rule.CHANGE_STREAM, stream)
    await base.submit(context, caller, UpdateStream(base.stream_ref(stream), request.name))
    return b""


async def delete_stream(context: ShardContext, caller: Caller, request: requests.StreamRequest) -> bytes:
    stream = base.stream_of(context.metadata.state, request.stream)
    base.require(context, caller, Rule.CHANGE_STREAM, stream)
    await base.submit(context, caller, DeleteStream(base.stream_ref(stream)))
    return b""


async def purge_stream(context: ShardContext, caller: Caller, request: requests.StreamRequest) -> bytes:
    stream = base.stream_of(context.metadata.state, request.stream)
    base.require(context, caller, Rule.CHANGE_STREAM, stream)
    await base.submit(context, caller, PurgeStream(base.stream_ref(stream)))
    return b""
