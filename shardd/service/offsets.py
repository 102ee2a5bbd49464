"""Consumer offsets: codes 120-122 (docs/protocol/messages.md#offsets). Executed by the owner of the partition.

STORE_CONSUMER_OFFSET of a plain consumer is native; here is what the engine leaves to Python.
"""

from __future__ import annotations

from shardd.engine import xxh32
from shardd.groups import Membership
from shardd.metadata.state import ConsumerGroup, Partition, Stream, Topic
from shardd.protocol import limits, replies, requests
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Consumer, ConsumerKind
from shardd.security import Rule
from shardd.service import base
from shardd.service.base import Caller
from shardd.service.context import ShardContext
from shardd.service.groups import GroupService, group_of
from shardd.service.partition_calls import Home, PartitionCalls
from shardd.service.sessions import Session


def consumer_id(consumer: Consumer) -> int:
    """The number of a plain consumer; a name becomes its hash (docs/protocol/primitives.md#consumer)."""
    if isinstance(consumer.identifier, str):
        return xxh32(consumer.identifier.encode())
    return consumer.identifier


def _partition(topic: Topic, partition: int | None) -> Partition:
    """The partition, 0 when none is given, or `ShardError` 3007."""
    return base.partition_of(topic, limits.PARTITION_ID_ABSENT if partition is None else partition)


def _resolve(
    context: ShardContext, caller: Caller, request: requests.OffsetRequest | requests.StoreOffset
) -> tuple[Stream, Topic, ConsumerGroup | None]:
    """1009, 2010, 41, 5000 in this order; the group is None for a plain consumer."""
    stream, topic = base.topic_of(context.metadata.state, request.stream, request.topic)
    base.require(context, caller, Rule.POLL_MESSAGES, stream, topic)
    if request.consumer.kind is ConsumerKind.GROUP:
        return stream, topic, group_of(topic, request.consumer.identifier)
    return stream, topic, None


_Work = tuple[Session, Membership, ConsumerGroup, Home]


class OffsetService:
    """Offsets of plain consumers and of groups. Lives on the loop thread."""

    def __init__(self, calls: PartitionCalls, groups: GroupService) -> None:
        self._calls = calls
        self._groups = groups

    async def get_offset(self, context: ShardContext, caller: Caller, request: requests.OffsetRequest) -> bytes:
        """Empty when nothing is stored or the stream, topic, group or partition is missing; 41 wins over the last two.

        Reading the offset of a group needs no membership.
        """
        try:
            stream, topic, group = _resolve(context, caller, request)
            partition = _partition(topic, request.partition)
        except ShardError as error:
            if error.status is Status.UNAUTHORIZED:
                raise
            return b""
        number = consumer_id(request.consumer) if group is None else group.offsets_id
        stored = await self._calls.get_offset(self._calls.home(stream, topic, partition), request.consumer.kind, number)
        if stored is None:
            return b""
        current_offset = base.partition_stats(context, partition).current_offset
        return replies.Offset(partition.id, current_offset, stored).encode()

    async def store_offset(self, context: ShardContext, caller: Caller, request: requests.StoreOffset) -> bytes | None:
        """A store as consumer group: 1009, 2010, 41, 5000, 5006, 3022, 4100; None when the engine executes it. It
        executes those of consumers, and here only pending partitions and memberships without room there are left."""

        def begin() -> _Work | None:
            stream, topic, group = _resolve(context, caller, request)
            if group is None:
                raise RuntimeError("the engine handed out a store that it should execute")
            if self._groups.commits_natively(context, caller, topic, group, request.partition):
                return None
            return self._begin(context, caller, stream, topic, group, request.partition)

        work = await self._groups.in_turn(begin)
        if work is None:
            return None
        session, membership, known, home = work
        stored: int | None = None
        try:
            await self._calls.store_offset(
                home, ConsumerKind.GROUP, known.offsets_id, request.offset, membership.generation
            )
            stored = request.offset
        finally:
            await self._end(session, membership, stored)
        return b""

    async def delete_offset(self, context: ShardContext, caller: Caller, request: requests.OffsetRequest) -> bytes:
        """3021 when nothing is stored; as consumer group 5006 and 3022 before that."""
        stream, topic, group = _resolve(context, caller, request)
        if group is None:
            home = self._calls.home(stream, topic, _partition(topic, request.partition))
            await self._calls.delete_offset(home, ConsumerKind.CONSUMER, consumer_id(request.consumer))
            return b""

        def begin() -> _Work:
            stream, topic, group = _resolve(context, caller, request)
            if group is None:
                raise RuntimeError("it was a group before its turn came")
            return self._begin(context, caller, stream, topic, group, request.partition)

        session, membership, known, home = await self._groups.in_turn(begin)
        try:
            await self._calls.delete_offset(home, ConsumerKind.GROUP, known.offsets_id, membership.generation)
        finally:
            await self._end(session, membership, None)
        return b""

    def _begin(
        self,
        context: ShardContext,
        caller: Caller,
        stream: Stream,
        topic: Topic,
        group: ConsumerGroup,
        partition: int | None,
    ) -> _Work:
        """A change of a member's offset that goes to the owner of the partition. `ShardError` 30, 5006, 3022, 3007."""
        session, membership, chosen = self._groups.working_on(context, caller, group, partition)
        home = self._calls.home(stream, topic, base.partition_of(topic, chosen))
        membership.begin_commit(chosen)
        return session, membership, group, home

    async def _end(self, session: Session, membership: Membership, offset: int | None) -> None:
        await self._groups.committed(session, membership, offset)
