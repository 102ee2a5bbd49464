"""Partitions and their segments: codes 402, 403, 503 (docs/protocol/streams.md#partitions)."""

from __future__ import annotations

from shardd.metadata.commands import CreatePartitions, DeletePartitions
from shardd.protocol import account_requests, limits, requests
from shardd.protocol.errors import ShardError, Status
from shardd.security import Rule
from shardd.service import base
from shardd.service.base import Caller
from shardd.service.context import ShardContext
from shardd.service.groups import GroupService
from shardd.service.partition_calls import PartitionCalls


async def create_partitions(
    context: ShardContext, caller: Caller, request: requests.PartitionsRequest, *, groups: GroupService
) -> bytes:
    """1..1000 partitions in one request, else 2015. The members of the topic's groups know their share at the end."""
    if not 1 <= request.count <= limits.PARTITIONS_PER_REQUEST_MAX:
        raise ShardError(Status.TOO_MANY_PARTITIONS)
    stream, topic = base.topic_of(context.metadata.state, request.stream, request.topic)
    base.require(context, caller, Rule.CHANGE_TOPIC, stream, topic)
    await base.submit(context, caller, CreatePartitions(base.stream_ref(stream), base.topic_ref(topic), request.count))
    await groups.partitions_changed(stream, topic)
    return b""


async def delete_partitions(
    context: ShardContext, caller: Caller, request: requests.PartitionsRequest, *, groups: GroupService
) -> bytes:
    """0 → 2015; more than the topic has → 2019, whatever the number (a topic may hold more than 1000)."""
    if request.count == 0:
        raise ShardError(Status.TOO_MANY_PARTITIONS)
    stream, topic = base.topic_of(context.metadata.state, request.stream, request.topic)
    base.require(context, caller, Rule.CHANGE_TOPIC, stream, topic)
    await base.submit(context, caller, DeletePartitions(base.stream_ref(stream), base.topic_ref(topic), request.count))
    await groups.partitions_changed(stream, topic)
    return b""


async def delete_segments(
    context: ShardContext, caller: Caller, request: account_requests.DeleteSegments, *, calls: PartitionCalls
) -> bytes:
    """1009, 2010, 3007, 41: the only command that looks at the partition before the permission.

    Fewer segments than asked for is no error: the active one and those that a consumer still needs stay.
    """
    stream, topic = base.topic_of(context.metadata.state, request.stream, request.topic)
    partition = base.partition_of(topic, request.partition)
    base.require(context, caller, Rule.CHANGE_TOPIC, stream, topic)
    await calls.delete_segments(calls.home(stream, topic, partition), request.count)
    return b""
