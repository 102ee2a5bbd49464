"""Consumer offsets (docs/protocol/messages.md#offsets). Executed by the owner of the partition.

Storing the offset of a plain consumer is native for connections; here is what the engine leaves to Python.
"""

from __future__ import annotations

import xxhash

from shardd.engine import xxh32
from shardd.engine.calls import Place, Reader
from shardd.groups import Membership
from shardd.metadata import Metadata
from shardd.metadata.state import ConsumerGroup, Partition, Stream, Topic
from shardd.protocol import limits, requests
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.positions import StorePosition
from shardd.protocol.primitives import Consumer, ConsumerKind
from shardd.protocol.replies import ConsumerOffset
from shardd.runtime.aside import handed_over
from shardd.security import Rule
from shardd.service import base
from shardd.service.groups import ByEngine, GroupService, group_of
from shardd.service.identity import Identity
from shardd.service.partition_calls import Home, PartitionCalls
from shardd.service.partition_requests import PartitionRequests, raise_refusal, require_numbers
from shardd.service.sessions import Session
from shardd.service.statistics import Statistics


def consumer_id(consumer: Consumer) -> int:
    """The number of a plain consumer; a name becomes its hash (docs/protocol/primitives.md#consumer)."""
    if isinstance(consumer.identifier, str):
        return xxh32(consumer.identifier.encode())
    return consumer.identifier


def partition_or_first(topic: Topic, partition: int | None) -> Partition:
    """The partition, 0 when none is given, or `ShardError` 3007."""
    return base.partition_of(topic, limits.PARTITION_ID_ABSENT if partition is None else partition)


_Request = requests.OffsetRequest | requests.StoreOffset


def _require_history(partition: Partition, request: _Request) -> None:
    """`ShardError` 4102 when the offset belongs to another history of the partition."""
    if not isinstance(request, StorePosition):
        return
    if (request.incarnation, request.epoch) != (partition.incarnation, 0):
        raise ShardError(Status.UNEXPECTED_OFFSET, f"the offset belongs to history {request.incarnation}")


_Work = tuple[Session, Membership, ConsumerGroup, Home]


def name_hash_of(name: str) -> int:
    """Tells consumer names with one number apart: `hash_name` of the engine. Never 0."""
    return xxhash.xxh3_64_intdigest(name.encode()) or 1


def plain_reader(identity: Identity, consumer: Consumer) -> Reader:
    """A plain consumer that reads or stores for the user of a request."""
    name = consumer.identifier
    name_hash = name_hash_of(name) if isinstance(name, str) else 0
    return Reader(ConsumerKind.CONSUMER, consumer_id(consumer), user=identity.owner, name=name_hash)


class OffsetService:
    """Offsets of plain consumers and of groups. Lives on the loop thread."""

    def __init__(
        self,
        metadata: Metadata,
        statistics: Statistics,
        calls: PartitionCalls,
        groups: GroupService,
        asked: PartitionRequests,
    ) -> None:
        self._metadata = metadata
        self._statistics = statistics
        self._calls = calls
        self._groups = groups
        self._requests = asked

    async def get_offset(self, identity: Identity, request: requests.OffsetRequest) -> ConsumerOffset | None:
        """None when nothing is stored or the stream, topic, group or partition is missing; 41 wins over the last two.

        Reading the offset of a group needs no membership.
        """
        try:
            stream, topic, group = self._resolve(identity, request)
            partition = partition_or_first(topic, request.partition)
        except ShardError as error:
            if error.status is Status.UNAUTHORIZED:
                raise
            return None
        number = consumer_id(request.consumer) if group is None else group.offsets_id
        stored = await self._calls.get_offset(self._calls.home(stream, topic, partition), request.consumer.kind, number)
        if stored is None:
            return None
        return ConsumerOffset(partition.id, self._statistics.of(partition).current_offset, stored)

    async def store_offset(self, identity: Identity, request: requests.StoreOffset) -> ByEngine | None:
        """As consumer group: 1009, 2010, 41, 5000, 5006, 3022, 4100, 4102; here only pending partitions and memberships
        without room in the engine are left. As plain consumer 1009, 2010, 41, 3007, 4100: for callers without a
        connection, as the engine executes those of connections itself."""
        if request.consumer.kind is not ConsumerKind.GROUP:
            await self._store(identity, request)
            return None

        def begin() -> _Work | None:
            stream, topic, group = self._resolve(identity, request)
            if group is None:
                raise RuntimeError("it was a group before its turn came")
            if self._groups.commits_natively(identity, topic, group, request.partition):
                return None
            return self._begin(identity, stream, topic, group, request)

        work = await self._groups.in_turn(identity, begin)
        if work is None:
            return ByEngine.ANSWERED
        session, membership, known, home = work
        stored: int | None = None
        try:
            async with handed_over():
                await self._calls.store_offset(
                    home,
                    ConsumerKind.GROUP,
                    known.offsets_id,
                    request.offset,
                    assignment=membership.generation,
                    user=identity.owner,
                )
            stored = request.offset
        finally:
            await self._groups.committed(session, membership, stored)
        return None

    async def _store(self, identity: Identity, request: requests.StoreOffset) -> None:
        require_numbers(limits.U32_MAX, request.consumer.identifier, request.partition)
        require_numbers(limits.U64_MAX, request.offset)
        reader = plain_reader(identity, request.consumer)

        async def store(place: Place, partition: Partition) -> int:
            _require_history(partition, request)
            return await self._requests.calls.store_offset(place, reader, request.offset)

        names = request.stream, request.topic
        async with handed_over():
            status = await self._requests.ask(
                identity, Rule.POLL_MESSAGES, names, lambda topic: partition_or_first(topic, request.partition), store
            )
        raise_refusal(status)

    async def delete_offset(self, identity: Identity, request: requests.OffsetRequest) -> None:
        """3021 when nothing is stored; as consumer group 5006 and 3022 before that."""
        stream, topic, group = self._resolve(identity, request)
        if group is None:
            home = self._calls.home(stream, topic, partition_or_first(topic, request.partition))
            async with handed_over():
                await self._calls.delete_offset(home, ConsumerKind.CONSUMER, consumer_id(request.consumer))
            return

        def begin() -> _Work:
            stream, topic, group = self._resolve(identity, request)
            if group is None:
                raise RuntimeError("it was a group before its turn came")
            return self._begin(identity, stream, topic, group, request)

        session, membership, known, home = await self._groups.in_turn(identity, begin)
        try:
            async with handed_over():
                await self._calls.delete_offset(home, ConsumerKind.GROUP, known.offsets_id, membership.generation)
        finally:
            await self._groups.committed(session, membership, None)

    def _resolve(self, identity: Identity, request: _Request) -> tuple[Stream, Topic, ConsumerGroup | None]:
        """1009, 2010, 41, 5000 in this order; the group is None for a plain consumer."""
        stream, topic = base.topic_of(self._metadata.state, request.stream, request.topic)
        base.require(self._metadata.state, identity, Rule.POLL_MESSAGES, stream, topic)
        if request.consumer.kind is ConsumerKind.GROUP:
            return stream, topic, group_of(topic, request.consumer.identifier)
        return stream, topic, None

    def _begin(
        self, identity: Identity, stream: Stream, topic: Topic, group: ConsumerGroup, request: _Request
    ) -> _Work:
        """A change of a member's offset that goes to the owner of the partition. `ShardError` 30, 5006, 3022, 3007,
        4102."""
        session, membership, chosen = self._groups.working_on(identity, group, request.partition)
        partition = base.partition_of(topic, chosen)
        _require_history(partition, request)
        home = self._calls.home(stream, topic, partition)
        membership.begin_commit(chosen)
        return session, membership, group, home
