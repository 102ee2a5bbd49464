"""Messages outside the warm path: flushes, and polls that the native engine does not take
(docs/protocol/messages.md)."""

from __future__ import annotations

from shardd.metadata import Metadata
from shardd.protocol import requests
from shardd.protocol.primitives import ConsumerKind
from shardd.security import Rule
from shardd.service import base
from shardd.service.groups import ByEngine, GroupService, NothingPolled
from shardd.service.identity import Identity
from shardd.service.partition_calls import PartitionCalls


class MessageService:
    """Lives on the loop thread."""

    def __init__(self, metadata: Metadata, calls: PartitionCalls, groups: GroupService) -> None:
        self._metadata = metadata
        self._calls = calls
        self._groups = groups

    async def flush_unsaved_buffer(self, identity: Identity, request: requests.FlushUnsavedBuffer) -> None:
        """1009, 2010, 41, 3007, then the owner writes its index and, with `fsync`, waits for the device."""
        stream, topic = base.topic_of(self._metadata.state, request.stream, request.topic)
        base.require(self._metadata.state, identity, Rule.SEND_MESSAGES, stream, topic)
        partition = base.partition_of(topic, request.partition)
        await self._calls.flush(self._calls.home(stream, topic, partition), fsync=request.fsync)

    async def poll_messages(self, identity: Identity, request: requests.PollMessages) -> NothingPolled | ByEngine:
        """A poll as consumer group.

        Well-formed polls of plain consumers never come here: the engine executes them and asks for a route.
        """
        if request.consumer.kind is not ConsumerKind.GROUP:
            raise RuntimeError("the engine handed out a poll that it should execute")
        return await self._groups.poll(identity, request)
