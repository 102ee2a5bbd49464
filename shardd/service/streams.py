"""Streams: codes 200-205 (docs/protocol/streams.md#streams)."""

from __future__ import annotations

from shardd.metadata.commands import CreateStream, DeleteStream, PurgeStream, UpdateStream
from shardd.metadata.state import Stream, Topic
from shardd.protocol import replies, requests
from shardd.security import Rule
from shardd.service import base
from shardd.service.base import Caller
from shardd.service.context import ShardContext
from shardd.service.topics import topic_head


def _topics(stream: Stream) -> list[Topic]:
    return [stream.topics[topic_id] for topic_id in sorted(stream.topics)]


def _head(stream: Stream, sums: list[base.Sums]) -> bytes:
    """The stream with the sums over its topics."""
    return replies.Stream(
        id=stream.id,
        created_at_us=stream.created_at_us,
        topics_count=len(sums),
        size_bytes=sum(each.size_bytes for each in sums),
        messages_count=sum(each.messages_count for each in sums),
        name=stream.name,
    ).encode()


async def get_stream(context: ShardContext, caller: Caller, request: requests.StreamRequest) -> bytes:
    stream = base.find_stream(context.metadata.state, request.stream)
    if stream is None:
        return b""
    base.require(context, caller, Rule.GET_STREAM, stream)
    topics = _topics(stream)
    sums = await base.sums(context, caller, topics)
    return _head(stream, sums) + b"".join(topic_head(*each).encode() for each in zip(topics, sums, strict=True))


async def get_streams(context: ShardContext, caller: Caller, request: requests.Empty) -> bytes:
    base.require(context, caller, Rule.GET_STREAMS)
    streams = context.metadata.state.streams
    found = [streams[stream_id] for stream_id in sorted(streams)]
    return b"".join([_head(stream, await base.sums(context, caller, _topics(stream))) for stream in found])


async def create_stream(context: ShardContext, caller: Caller, request: requests.CreateStream) -> bytes:
    base.require(context, caller, Rule.CREATE_STREAM)
    result = await base.submit(context, caller, CreateStream(request.name))
    return _head(result.state.streams[result.id], [])


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
