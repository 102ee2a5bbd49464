"""Partitions and their segments (docs/protocol/streams.md#partitions)."""

from __future__ import annotations

from shardd.metadata import Metadata
from shardd.metadata.commands import CreatePartitions, DeletePartitions
from shardd.protocol import account_requests, limits, requests
from shardd.protocol.errors import ShardError, Status
from shardd.runtime.aside import handed_over
from shardd.security import Rule
from shardd.service import base
from shardd.service.audit import tell_deleted_segments
from shardd.service.groups import GroupService
from shardd.service.identity import Identity
from shardd.service.partition_calls import PartitionCalls


class PartitionService:
    """Lives on the loop thread."""

    def __init__(self, metadata: Metadata, calls: PartitionCalls, groups: GroupService) -> None:
        self._metadata = metadata
        self._calls = calls
        self._groups = groups

    async def create_partitions(self, identity: Identity, request: requests.PartitionsRequest) -> None:
        """1..1000 in one request, else 2015. The members of the topic's groups know their share at the end."""
        if not 1 <= request.count <= limits.PARTITIONS_PER_REQUEST_MAX:
            raise ShardError(Status.TOO_MANY_PARTITIONS)
        await self._change(identity, request, CreatePartitions)

    async def delete_partitions(self, identity: Identity, request: requests.PartitionsRequest) -> None:
        """0 → 2015; more than the topic has → 2019, whatever the number (a topic may hold more than 1000)."""
        if request.count == 0:
            raise ShardError(Status.TOO_MANY_PARTITIONS)
        await self._change(identity, request, DeletePartitions)

    async def _change(
        self,
        identity: Identity,
        request: requests.PartitionsRequest,
        command: type[CreatePartitions | DeletePartitions],
    ) -> None:
        stream, topic = base.topic_of(self._metadata.state, request.stream, request.topic)
        base.require(self._metadata.state, identity, Rule.CHANGE_TOPIC, stream, topic)
        change = command(base.stream_ref(stream), base.topic_ref(topic), request.count)
        await base.submit(self._metadata, identity, change)
        await self._groups.partitions_changed(stream, topic)

    async def delete_segments(self, identity: Identity, request: account_requests.DeleteSegments) -> None:
        """1009, 2010, 3007, 41: the only command that looks at the partition before the permission.

        Fewer segments than asked for is not an error: the active one and those that a consumer still needs stay.
        """
        stream, topic = base.topic_of(self._metadata.state, request.stream, request.topic)
        partition = base.partition_of(topic, request.partition)
        base.require(self._metadata.state, identity, Rule.CHANGE_TOPIC, stream, topic)
        async with handed_over():
            await self._calls.delete_segments(self._calls.home(stream, topic, partition), request.count)
        tell_deleted_segments(self._metadata.state, identity, (stream, topic, partition), request.count)
