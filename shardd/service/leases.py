"""LEASE_FILES (docs/extensions.md#lease-files): readers of files ask retention to leave them for a while."""

from __future__ import annotations

from shardd.metadata import Metadata
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.leases import LEASE_MAX_S, LeaseFiles
from shardd.security import Rule
from shardd.service import base
from shardd.service.identity import Identity
from shardd.service.partition_calls import PartitionCalls


class LeaseService:
    """Lives on the loop thread."""

    def __init__(self, metadata: Metadata, calls: PartitionCalls) -> None:
        self._metadata, self._calls = metadata, calls

    async def lease_files(self, identity: Identity, request: LeaseFiles) -> None:
        """4, 1009, 2010, 41, 3007, 5."""
        if request.seconds > LEASE_MAX_S:
            raise ShardError(Status.INVALID_FORMAT, f"a lease of {request.seconds} s, at most {LEASE_MAX_S}")
        stream, topic = base.topic_of(self._metadata.state, request.stream, request.topic)
        base.require(self._metadata.state, identity, Rule.POLL_MESSAGES, stream, topic)
        partition = base.partition_of(topic, request.partition)
        home = self._calls.home(stream, topic, partition)
        await self._calls.lease(home, identity.owner, request.offset, request.seconds)
