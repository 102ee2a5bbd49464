"""What every command family shares: the caller, lookups with their statuses, statistics, submitting a change.

The order inside each service is that of docs/protocol/framing.md#checks: semantic checks, existence, permission,
partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shardd.engine import namespace
from shardd.metadata import Result
from shardd.metadata.commands import Command, Ref
from shardd.metadata.state import Partition, State, Stream, Topic
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Identifier
from shardd.runtime.channel import BusError
from shardd.runtime.threads import UnwantedError
from shardd.security import Rule, allowed
from shardd.service.context import ShardContext


@dataclass(frozen=True, slots=True)
class Caller:
    """The connection of a request; `user_id` is None without a login. `user_incarnation`: which user with that id."""

    connection: int
    user_id: int | None
    user_incarnation: int = 0

    @property
    def user(self) -> int:
        """The user behind a request that has passed the login check."""
        if self.user_id is None:
            raise ShardError(Status.UNAUTHENTICATED)
        return self.user_id


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """Statistics of one partition; sizes in bytes."""

    segments_count: int = 1
    current_offset: int = 0
    size_bytes: int = 0
    messages_count: int = 0


EMPTY_PARTITION = PartitionStats()


def find_stream(state: State, identifier: Identifier) -> Stream | None:
    """The stream with an id or a name."""
    stream_id = state.stream_ids.get(identifier) if isinstance(identifier, str) else identifier
    return None if stream_id is None else state.streams.get(stream_id)


def find_topic(stream: Stream, identifier: Identifier) -> Topic | None:
    """The topic with an id or a name inside a stream."""
    topic_id = stream.topic_ids.get(identifier) if isinstance(identifier, str) else identifier
    return None if topic_id is None else stream.topics.get(topic_id)


def stream_of(state: State, identifier: Identifier) -> Stream:
    """The stream, or `ShardError` 1009."""
    stream = find_stream(state, identifier)
    if stream is None:
        raise ShardError(Status.STREAM_ID_NOT_FOUND)
    return stream


def topic_of(state: State, stream: Identifier, topic: Identifier) -> tuple[Stream, Topic]:
    """The stream and the topic, or `ShardError` 1009 or 2010."""
    found_stream = stream_of(state, stream)
    found = find_topic(found_stream, topic)
    if found is None:
        raise ShardError(Status.TOPIC_ID_NOT_FOUND)
    return found_stream, found


def partition_of(topic: Topic, partition: int) -> Partition:
    """The partition, or `ShardError` 3007."""
    if partition >= len(topic.partitions):
        raise ShardError(Status.PARTITION_NOT_FOUND)
    return topic.partitions[partition]


def permitted(
    context: ShardContext, caller: Caller, rule: Rule, stream: Stream | None = None, topic: Topic | None = None
) -> bool:
    """Whether a permission of the caller grants `rule` (docs/protocol/commands.md#permissions)."""
    stream_id = None if stream is None else stream.id
    topic_id = None if topic is None else topic.id
    return allowed(context.metadata.state, caller.user, rule, stream_id, topic_id)


def require(
    context: ShardContext, caller: Caller, rule: Rule, stream: Stream | None = None, topic: Topic | None = None
) -> None:
    """`ShardError` 41 unless `permitted`."""
    if not permitted(context, caller, rule, stream, topic):
        raise ShardError(Status.UNAUTHORIZED)


def partition_stats(context: ShardContext, partition: Partition) -> PartitionStats:
    """What the owner published; an empty partition while the slot holds another incarnation
    (docs/protocol/records.md#statistics)."""
    incarnation, next_offset, size_bytes, messages_count, segments_count, *_ = context.engine.stats(partition.slot)
    if incarnation != partition.incarnation:
        return EMPTY_PARTITION
    return PartitionStats(segments_count, max(next_offset - 1, 0), size_bytes, messages_count)


@dataclass(slots=True)
class Sums:
    """Over the partitions of one topic; sizes in bytes."""

    segments_count: int = 0
    size_bytes: int = 0
    messages_count: int = 0

    def add(self, stats: PartitionStats) -> None:
        self.segments_count += stats.segments_count
        self.size_bytes += stats.size_bytes
        self.messages_count += stats.messages_count


async def compute(context: ShardContext, caller: Caller, steps: Iterable[object]) -> None:
    """Takes steps whose number grows with the topics and partitions asked about, in slices (`shardd.runtime.slices`).

    8 and close when they take longer than a slice and the client has left meanwhile.
    """
    try:
        await context.reports.run(steps, lambda: not context.engine.has_left(caller.connection))
    except UnwantedError:
        raise ShardError(Status.DISCONNECTED, "it has left before its turn", close=True) from None


async def sums(context: ShardContext, caller: Caller, topics: Iterable[Topic]) -> list[Sums]:
    """Of each topic."""
    found: list[Sums] = []

    def steps() -> Iterator[None]:
        for topic in topics:
            of_topic = Sums()
            found.append(of_topic)
            for partition in topic.partitions:
                of_topic.add(partition_stats(context, partition))
                yield
            yield

    await compute(context, caller, steps())
    return found


def partition_namespace(stream: Stream, topic: Topic, partition: Partition) -> int:
    return namespace(stream.id, topic.id, partition.id)


def partition_at(state: State, packed: int) -> Partition | None:
    """The partition of a namespace; None when there is none."""
    stream = state.streams.get(packed >> 32)
    topic = None if stream is None else stream.topics.get(packed >> 20 & 0xFFF)
    partition_id = packed & 0xFFFFF
    if topic is None or partition_id >= len(topic.partitions):
        return None
    return topic.partitions[partition_id]


def stream_ref(stream: Stream) -> Ref:
    return Ref(stream.id, stream.incarnation)


def topic_ref(topic: Topic) -> Ref:
    return Ref(topic.id, topic.incarnation)


async def submit(context: ShardContext, caller: Caller, command: Command) -> Result:
    """Has shard 0 make the change; returns when every live shard has applied it. `ShardError` for a refusal.

    When shard 0 was lost on the way nobody knows whether the change was made: 11001, and the connection closes. A
    caller who was deleted while it waited may do nothing any more, though its id may be in use again: 41.
    """
    try:
        result = await context.metadata.submit(Ref(caller.user, caller.user_incarnation), command)
    except BusError as error:
        raise ShardError(Status.SHARD_COMMUNICATION_ERROR, str(error), close=True) from error
    if result.status != Status.OK:
        raise ShardError(Status(result.status))
    return result
