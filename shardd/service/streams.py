"""Streams (docs/protocol/streams.md#streams)."""

from __future__ import annotations

from collections.abc import Iterator

from shardd.config.liftbridge import Liftbridge
from shardd.config.schema import System
from shardd.metadata import Metadata
from shardd.metadata.commands import CreateStream, DeleteStream, PurgeStream, UpdateStream
from shardd.metadata.state import Stream, Topic
from shardd.protocol import requests
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Identifier
from shardd.protocol.replies import StreamDetails, StreamSummary, TopicSummary
from shardd.security import Rule
from shardd.service import base
from shardd.service.identity import Identity
from shardd.service.liftbridge.lookup import stream_would_take_a_name
from shardd.service.statistics import Statistics, Sums
from shardd.service.topics import Keep, Kept, topic_summary


def _topics(stream: Stream) -> list[Topic]:
    return [stream.topics[topic_id] for topic_id in sorted(stream.topics)]


def _summary(stream: Stream, sums: Sums) -> StreamSummary:
    """The stream with the sums over its topics."""
    return StreamSummary(
        id=stream.id,
        created_at_us=stream.created_at_us,
        topics_count=len(stream.topics),
        size_bytes=sums.size_bytes,
        messages_count=sums.messages_count,
        name=stream.name,
    )


class StreamService:
    """Lives on the loop thread. `settings`: the server's defaults."""

    def __init__(self, metadata: Metadata, statistics: Statistics, settings: System, liftbridge: Liftbridge) -> None:
        self._metadata = metadata
        self._statistics = statistics
        self._settings = settings
        self._liftbridge = liftbridge

    async def get_stream(
        self, identity: Identity, request: requests.StreamRequest, keep: Keep[TopicSummary, Kept]
    ) -> StreamDetails[Kept] | None:
        """None: there is none."""
        state = self._metadata.state
        stream = base.find_stream(state, request.stream)
        if stream is None:
            return None
        base.require(state, identity, Rule.GET_STREAM, stream)
        sums, kept = Sums(), list[Kept]()

        def steps() -> Iterator[None]:
            for topic in _topics(stream):
                of_topic = Sums()
                yield from self._statistics.sum_up(topic, of_topic)
                sums.add(of_topic)
                kept.append(keep(topic_summary(topic, of_topic, self._settings)))
                yield

        await self._statistics.take(identity, steps())
        return StreamDetails(_summary(stream, sums), kept)

    async def get_streams(
        self, identity: Identity, request: requests.Empty, keep: Keep[StreamSummary, Kept]
    ) -> list[Kept]:
        """By id."""
        base.require(self._metadata.state, identity, Rule.GET_STREAMS)
        streams, kept = self._metadata.state.streams, list[Kept]()

        def steps(stream: Stream) -> Iterator[None]:
            sums = Sums()
            for topic in _topics(stream):
                yield from self._statistics.sum_up(topic, sums)
                yield
            kept.append(keep(_summary(stream, sums)))
            yield

        for stream_id in sorted(streams):  # one after the other: others get their turn between two streams
            await self._statistics.take(identity, steps(streams[stream_id]))
        return kept

    async def create_stream(self, identity: Identity, request: requests.CreateStreamRequest) -> StreamSummary:
        base.require(self._metadata.state, identity, Rule.CREATE_STREAM)
        result = await base.submit(self._metadata, identity, CreateStream(request.name, request.chosen_id))
        return _summary(result.state.streams[result.id], Sums())

    async def update_stream(self, identity: Identity, request: requests.UpdateStreamRequest) -> None:
        """1012 also when a topic of it would take over the name of a stream of Liftbridge."""
        stream = self._to_change(identity, request.stream)
        state = self._metadata.state
        if request.name != stream.name and await stream_would_take_a_name(
            state, self._liftbridge, stream, request.name
        ):
            raise ShardError(Status.STREAM_NAME_ALREADY_EXISTS)
        await base.submit(self._metadata, identity, UpdateStream(base.stream_ref(stream), request.name))

    async def delete_stream(self, identity: Identity, request: requests.StreamRequest) -> None:
        stream = self._to_change(identity, request.stream)
        await base.submit(self._metadata, identity, DeleteStream(base.stream_ref(stream)))

    async def purge_stream(self, identity: Identity, request: requests.StreamRequest) -> None:
        stream = self._to_change(identity, request.stream)
        await base.submit(self._metadata, identity, PurgeStream(base.stream_ref(stream)))

    def _to_change(self, identity: Identity, identifier: Identifier) -> Stream:
        stream = base.stream_of(self._metadata.state, identifier)
        base.require(self._metadata.state, identity, Rule.CHANGE_STREAM, stream)
        return stream
