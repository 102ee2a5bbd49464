"""Consumer offsets: codes 120-122 (iggy-protocol 3.8, 5.3). Executed by the owner of the partition.

STORE_CONSUMER_OFFSET of a plain consumer is native; here is what the engine leaves to Python.
"""

from __future__ import annotations

from shardd.engine import xxh32
from shardd.metadata.state import Partition, Stream, Topic
from shardd.protocol import limits, replies, requests
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Consumer, ConsumerKind
from shardd.security import Rule
from shardd.shard.context import ShardContext
from shardd.shard.services import base
from shardd.shard.services.base import Caller
from shardd.shard.services.partition_calls import PartitionCalls


def consumer_id(consumer: Consumer) -> int:
    """The number of a plain consumer; a name becomes its hash (iggy-protocol 2.3)."""
    if isinstance(consumer.identifier, str):
        return xxh32(consumer.identifier.encode())
    return consumer.identifier


def _partition_id(request: requests.OffsetRequest | requests.StoreOffset) -> int:
    return limits.PARTITION_ID_ABSENT if request.partition is None else request.partition


def _resolve(
    context: ShardContext, caller: Caller, request: requests.OffsetRequest | requests.StoreOffset
) -> tuple[Stream, Topic, Partition]:
    """1009, 2010, 41, 5000, 3007 in this order; then what was addressed."""
    stream, topic = base.topic_of(context.metadata.state, request.stream, request.topic)
    base.require(context, caller, Rule.POLL_MESSAGES, stream, topic)
    if request.consumer.kind is ConsumerKind.GROUP:  # no group exists
        raise ShardError(Status.CONSUMER_GROUP_ID_NOT_FOUND)
    return stream, topic, base.partition_of(topic, _partition_id(request))


async def get_offset(
    context: ShardContext, caller: Caller, request: requests.OffsetRequest, *, calls: PartitionCalls
) -> bytes:
    """Empty when nothing is stored or the stream, topic, group or partition is missing; 41 wins over the last two."""
    try:
        stream, topic, partition = _resolve(context, caller, request)
    except ShardError as error:
        if error.status is Status.UNAUTHORIZED:
            raise
        return b""
    home = calls.home(stream, topic, partition)
    stored = await calls.get_offset(home, ConsumerKind.CONSUMER, consumer_id(request.consumer))
    if stored is None:
        return b""
    current_offset = base.partition_stats(context, partition).current_offset
    return replies.Offset(partition.id, current_offset, stored).encode()


async def store_offset(context: ShardContext, caller: Caller, request: requests.StoreOffset) -> bytes:
    """A store as consumer group: 1009, 2010, 41, 5000. The engine executes those of plain consumers."""
    _resolve(context, caller, request)
    raise RuntimeError("the engine handed out a store that it should execute")


async def delete_offset(
    context: ShardContext, caller: Caller, request: requests.OffsetRequest, *, calls: PartitionCalls
) -> bytes:
    """3021 when nothing is stored."""
    stream, topic, partition = _resolve(context, caller, request)
    home = calls.home(stream, topic, partition)
    await calls.delete_offset(home, ConsumerKind.CONSUMER, consumer_id(request.consumer))
    return b""
