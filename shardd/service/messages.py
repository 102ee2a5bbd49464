"""Messages outside the warm path of connections: flushes, polls that the native engine does not take, and what callers
without a connection send and poll (docs/protocol/messages.md)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Protocol

import msgspec

from shardd.engine import batch_check, xxh32
from shardd.engine.calls import Answer, Place
from shardd.metadata import Metadata
from shardd.metadata.state import Partition, Topic
from shardd.protocol import limits, requests
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import ConsumerKind
from shardd.protocol.send_request import Partitioning, PartitioningKind
from shardd.runtime.aside import handed_over
from shardd.security import Rule
from shardd.service import base
from shardd.service.groups import ByEngine, GroupService, NothingPolled
from shardd.service.identity import Identity
from shardd.service.offsets import partition_or_first, plain_reader
from shardd.service.partition_calls import PartitionCalls
from shardd.service.partition_requests import PartitionRequests, raise_refusal, require_numbers
from shardd.service.routes import balanced_counter


class SharedEngine(Protocol):
    """The part of the engine with what all shards share."""

    def balance(self, counter: int, partitions: int, /) -> int: ...
    def stats(self, slot: int, /) -> tuple[int, int, int, int, int, int, int, int, int]: ...


class PolledMessages(msgspec.Struct, frozen=True):
    """`current_offset`: the last one that polls may see. `records`: `count` of them as they are stored
    (docs/protocol/messages.md#message). The partition has the offsets [first_offset, end) of the history
    `incarnation` a moment later; 0: that was not asked for."""

    partition: int
    current_offset: int
    count: int
    records: bytes
    incarnation: int = 0
    first_offset: int = 0
    end: int = 0


class MessageService:
    """Lives on the loop thread."""

    def __init__(
        self,
        metadata: Metadata,
        calls: PartitionCalls,
        groups: GroupService,
        asked: PartitionRequests,
        engine: SharedEngine,
    ) -> None:
        self._metadata = metadata
        self._calls = calls
        self._groups = groups
        self._requests = asked
        self._engine = engine

    async def flush_unsaved_buffer(self, identity: Identity, request: requests.FlushUnsavedBuffer) -> None:
        """1009, 2010, 41, 3007, then the owner writes its index and, with `fsync`, waits for the device."""
        stream, topic = base.topic_of(self._metadata.state, request.stream, request.topic)
        base.require(self._metadata.state, identity, Rule.SEND_MESSAGES, stream, topic)
        partition = base.partition_of(topic, request.partition)
        async with handed_over():
            await self._calls.flush(self._calls.home(stream, topic, partition), fsync=request.fsync)

    async def send_messages(self, identity: Identity, request: requests.SendMessages) -> None:
        """Everything as docs/protocol/messages.md#batch-checks says, for callers without a connection. Returns when the
        level of the topic is reached."""
        _check(identity, request)

        async def append(place: Place, _partition: Partition) -> int:
            return (await self._requests.calls.append(place, request.count, request.batch)).status

        names = request.stream, request.topic
        async with handed_over():
            status = await self._requests.ask(
                identity,
                Rule.SEND_MESSAGES,
                names,
                lambda topic: self._chosen(topic, request.partitioning),
                append,
                len(request.batch),
            )
        raise_refusal(status)

    def _chosen(self, topic: Topic, partitioning: Partitioning) -> Partition:
        """2010, 3007."""
        if partitioning.kind is PartitioningKind.PARTITION:
            return base.partition_of(topic, partitioning.partition)
        count = len(topic.partitions)
        if count == 0:
            raise ShardError(Status.TOPIC_ID_NOT_FOUND)
        if partitioning.kind is PartitioningKind.KEY:
            return topic.partitions[xxh32(partitioning.key) % count]
        return topic.partitions[self._engine.balance(balanced_counter(topic), count)]

    async def poll_messages(
        self, identity: Identity, request: requests.PollMessages
    ) -> PolledMessages | NothingPolled | ByEngine:
        """As consumer group 1009, 2010, 41, 5000, 5006; the engine answers the connection.

        As plain consumer 1009, 2010, 41, 3007, 4027, 10002: for callers without a connection, as the engine executes
        those of connections itself. At most `POLLED_BYTES_MAX`: fewer messages then.
        """
        if request.consumer.kind is ConsumerKind.GROUP:
            return await self._groups.poll(identity, request)
        require_numbers(limits.U32_MAX, request.consumer.identifier, request.partition, request.count)
        require_numbers(limits.U64_MAX, request.value)
        reader = plain_reader(identity, request.consumer)
        place_read: tuple[Place, Partition] | None = None

        async def read(place: Place, partition: Partition) -> Answer:
            nonlocal place_read
            place_read = place, partition
            return await self._requests.calls.read(
                place,
                reader,
                request.strategy,
                request.value,
                request.count,
                auto_commit=request.auto_commit,
                bytes_max=limits.POLLED_BYTES_MAX,
            )

        names = request.stream, request.topic
        async with handed_over() if request.auto_commit else nullcontext():
            answer = await self._requests.ask(
                identity, Rule.POLL_MESSAGES, names, lambda topic: partition_or_first(topic, request.partition), read
            )
        raise_refusal(answer.status)
        if place_read is None:
            raise RuntimeError("a poll without a partition was answered")
        place, partition = place_read
        first, end = self._range(partition, place.incarnation, answer.current_offset)
        found = answer.current_offset, answer.messages_count, answer.records
        return PolledMessages(partition.id, *found, place.incarnation, first, end)

    def _range(self, partition: Partition, incarnation: int, current_offset: int) -> tuple[int, int]:
        """Of the offsets that the partition has, by the shared figures of its owner."""
        figures = self._engine.stats(partition.slot)
        told, end, _, _, _, durable_end, first, _, unseen = figures
        if told != incarnation:
            return 0, current_offset + 1  # purged meanwhile: the next poll tells it
        return first, max(end - unseen, durable_end, first)


def _check(identity: Identity, request: requests.SendMessages) -> None:
    """What is judged before the stream and the topic are looked for."""
    _ = identity.user  # 40
    require_numbers(limits.U32_MAX, request.count, request.partitioning.partition)
    if request.count == 0:
        raise ShardError(Status.INVALID_MESSAGES_COUNT)
    key = request.partitioning.key
    if request.partitioning.kind is PartitioningKind.KEY and not 1 <= len(key) <= limits.MESSAGES_KEY_BYTES_MAX:
        raise ShardError(Status.INVALID_COMMAND, "no key, or one that is too long")
    raise_refusal(batch_check(request.batch, request.count))
