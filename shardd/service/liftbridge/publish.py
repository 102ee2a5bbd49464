"""Stores the messages that Liftbridge clients publish: each message gets its own timestamp, and may expect an offset. A
partition that is read only refuses them, as it refuses native messages."""

from __future__ import annotations

from shardd.config.liftbridge import Liftbridge as Settings
from shardd.engine import batch_check
from shardd.engine.calls import Appended, Place
from shardd.metadata import Metadata
from shardd.metadata.state import Partition, Topic
from shardd.protocol import limits
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge import requests
from shardd.protocol.liftbridge.requests import NO_EXPECTED_OFFSET, Published
from shardd.runtime.aside import handed_over
from shardd.security import Rule
from shardd.service import base
from shardd.service.identity import Identity
from shardd.service.liftbridge.lookup import Found, found_of, require_change
from shardd.service.partition_calls import PartitionCalls
from shardd.service.partition_requests import PartitionRequests, raise_refusal, require_numbers


class LiftbridgePublishService:
    """Lives on the loop thread."""

    def __init__(self, metadata: Metadata, settings: Settings, calls: PartitionCalls, asked: PartitionRequests) -> None:
        self._metadata = metadata
        self._settings = settings
        self._calls = calls
        self._requests = asked

    async def publish(self, identity: Identity, request: requests.Publish) -> Published:
        """Values first, then 2010, 41, 3007; 4010 read only, 4102 another offset, and what a send is refused with.
        With `fsync` answered when the device has it: 10009 says that it is stored and may be lost."""
        _ = identity.user  # 40
        check_batch(request.count, request.batch)
        require_numbers(limits.U32_MAX, request.stream_id, request.topic_id, request.partition)
        found = self._found(request)
        require_change(self._settings, found)
        if found.reserved:
            raise ShardError(Status.UNAUTHORIZED, f"{found.attributes.name} is written by the server")
        return await self.append(identity, found, request)

    async def append(self, identity: Identity, found: Found, request: requests.Publish) -> Published:
        """To the partition, whoever it is reserved for."""
        expected = None if request.expected_offset == NO_EXPECTED_OFFSET else request.expected_offset

        def chosen(topic: Topic) -> Partition:
            if topic.incarnation != request.incarnation:
                raise ShardError(Status.TOPIC_ID_NOT_FOUND)
            return base.partition_of(topic, request.partition)

        async def append(place: Place, _partition: Partition) -> Appended:
            return await self._requests.calls.append(
                place, request.count, request.batch, expected_offset=expected, distinct_timestamps=True
            )

        names = request.stream_id, request.topic_id
        async with handed_over():
            done = await self._requests.ask(identity, Rule.SEND_MESSAGES, names, chosen, append, len(request.batch))
            raise_refusal(done.status)
            if request.fsync:
                partition = base.partition_of(found.topic, request.partition)
                await self._calls.flush(self._calls.home(found.stream, found.topic, partition), fsync=True)
        return Published(done.base_offset, done.timestamp_us)

    def _found(self, request: requests.Publish) -> Found:
        state = self._metadata.state
        stream = state.streams.get(request.stream_id)
        topic = None if stream is None else stream.topics.get(request.topic_id)
        if stream is None or topic is None or topic.incarnation != request.incarnation:
            raise ShardError(Status.TOPIC_ID_NOT_FOUND)
        found = found_of(state, stream, topic)
        if found.native and self._settings.expose_native == "off":
            raise ShardError(Status.TOPIC_ID_NOT_FOUND)
        return found


def check_batch(count: int, batch: bytes) -> None:
    """`ShardError` 4009, 3, and what is wrong with a batch."""
    if count == 0:
        raise ShardError(Status.INVALID_MESSAGES_COUNT)
    if not 0 < count <= requests.BATCH_MESSAGES_MAX:
        raise ShardError(Status.INVALID_COMMAND, f"a batch of {count} messages")
    raise_refusal(batch_check(batch, count))
