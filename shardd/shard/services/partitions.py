"""Partitions: codes 402 and 403 (iggy-protocol 3.6)."""

from __future__ import annotations

from shardd.metadata.commands import CreatePartitions, DeletePartitions
from shardd.protocol import limits, requests
from shardd.protocol.errors import ShardError, Status
from shardd.security import Rule
from shardd.shard.context import ShardContext
from shardd.shard.services import base
from shardd.shard.services.base import Caller


async def create_partitions(context: ShardContext, caller: Caller, request: requests.PartitionsRequest) -> bytes:
    """1..1000 partitions in one request, else 2015."""
    if not 1 <= request.count <= limits.PARTITIONS_PER_REQUEST_MAX:
        raise ShardError(Status.TOO_MANY_PARTITIONS)
    stream, topic = base.topic_of(context.metadata.state, request.stream, request.topic)
    base.require(context, caller, Rule.CHANGE_TOPIC, stream, topic)
    await base.submit(context, caller, CreatePartitions(base.stream_ref(stream), base.topic_ref(topic), request.count))
    return b""


async def delete_partitions(context: ShardContext, caller: Caller, request: requests.PartitionsRequest) -> bytes:
    """0 → 2015; more than the topic has → 2019, whatever the number (a topic may hold more than 1000)."""
    if request.count == 0:
        raise ShardError(Status.TOO_MANY_PARTITIONS)
    stream, topic = base.topic_of(context.metadata.state, request.stream, request.topic)
    base.require(context, caller, Rule.CHANGE_TOPIC, stream, topic)
    await base.submit(context, caller, DeletePartitions(base.stream_ref(stream), base.topic_ref(topic), request.count))
    return b""
