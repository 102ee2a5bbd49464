"""What every command family shares: lookups with their statuses, permission, submitting a change.

The order inside each service is that of docs/protocol/framing.md#checks: semantic checks, existence, permission,
partition.
"""

from __future__ import annotations

from typing import Protocol

from shardd.metadata import Metadata, Result
from shardd.metadata.commands import Command, Ref
from shardd.metadata.state import Partition, State, Stream, Topic
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.namespaces import namespace, partition_ids
from shardd.protocol.primitives import Identifier
from shardd.runtime import tracing
from shardd.runtime.aside import beside
from shardd.runtime.channel import BusError
from shardd.security import Rule, allowed
from shardd.service.audit import tell_change
from shardd.service.identity import Identity


class Connections(Protocol):
    """The part of the engine that knows its connections."""

    def has_left(self, connection: int) -> bool: ...


def waits(connections: Connections, identity: Identity) -> bool:
    """Whether somebody will read the answer. The client of a door is there until the door closes it."""
    session = identity.session
    if session is None:
        return True
    return not (session.removed if session.door else connections.has_left(session.connection))


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
    state: State, identity: Identity, rule: Rule, stream: Stream | None = None, topic: Topic | None = None
) -> bool:
    """Whether a permission of the user grants `rule` (docs/protocol/commands.md#permissions)."""
    stream_id = None if stream is None else stream.id
    topic_id = None if topic is None else topic.id
    return allowed(state, identity.user, rule, stream_id, topic_id)


def require(
    state: State, identity: Identity, rule: Rule, stream: Stream | None = None, topic: Topic | None = None
) -> None:
    """`ShardError` 41 unless `permitted`."""
    if not permitted(state, identity, rule, stream, topic):
        raise ShardError(Status.UNAUTHORIZED)


def partition_namespace(stream: Stream, topic: Topic, partition: Partition) -> int:
    return namespace(stream.id, topic.id, partition.id)


def partition_at(state: State, packed: int) -> Partition | None:
    """The partition of a namespace; None when there is none."""
    stream_id, topic_id, partition_id = partition_ids(packed)
    stream = state.streams.get(stream_id)
    topic = None if stream is None else stream.topics.get(topic_id)
    if topic is None or partition_id >= len(topic.partitions):
        return None
    return topic.partitions[partition_id]


def stream_ref(stream: Stream) -> Ref:
    return Ref(stream.id, stream.incarnation)


def topic_ref(topic: Topic) -> Ref:
    return Ref(topic.id, topic.incarnation)


async def submit(metadata: Metadata, identity: Identity, command: Command) -> Result:
    """Has shard 0 make the change; returns when every live shard has applied it. `ShardError` for a refusal.

    When shard 0 was lost on the way nobody knows whether the change was made: 11001, and the connection closes. A
    user who was deleted while the command waited may do nothing any more, though its id may be in use again: 41.
    """
    before = metadata.state
    try:
        with beside(), tracing.span("metadata", change=type(command).__name__):
            result = await metadata.submit(identity.ref, command)
    except BusError as error:
        raise ShardError(Status.SHARD_COMMUNICATION_ERROR, str(error), close=True) from error
    if result.status != Status.OK:
        raise ShardError(Status(result.status))
    tell_change(before, identity, command, result.id)
    return result
