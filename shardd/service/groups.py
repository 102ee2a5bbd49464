"""Consumer groups, and the partition behind a request as consumer group (docs/protocol/groups.md).

The order is 1009, 2010, 5000, then the permission (41): for everything here but polls and offsets (`for_messages`),
where 41 wins over 5000.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeVar

import msgspec

from shardd.engine import owner
from shardd.groups import Membership
from shardd.groups.members import GroupMembers
from shardd.groups.messages import GroupRef
from shardd.metadata import Metadata
from shardd.metadata.commands import CreateConsumerGroup, DeleteConsumerGroup, Ref
from shardd.metadata.state import ConsumerGroup, Stream, Topic
from shardd.protocol import requests
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Identifier
from shardd.protocol.replies import GroupDetails, GroupMemberSummary, GroupSummary
from shardd.runtime.crowds import SharedRoom
from shardd.runtime.slices import Slices
from shardd.security import Rule
from shardd.service import base
from shardd.service.group_room import GroupRoom
from shardd.service.identity import Identity
from shardd.service.long_answers import LongAnswers, ascending
from shardd.service.sessions import Session
from shardd.service.topics import Keep, Kept

T = TypeVar("T")
CHANGES_MAX: Final = 16  # joins and leaves of a worker at shard 0; of a user at most as many as are left
_GROUPS_AT_ONCE: Final = 200  # whose members shard 0 is asked for


class ByEngine(enum.Enum):
    """The answer of a command that the engine executes after all: it answers the client itself."""

    ANSWERED = enum.auto()


class NothingPolled(msgspec.Struct, frozen=True):
    """The answer to a member that does not have the partition, or none at all."""


class GroupEngine(Protocol):
    """The part of the engine that executes requests of members."""

    def resume(self, connection: int) -> None: ...
    def execute_poll(
        self,
        connection: int,
        shard: int,
        namespace: int,
        incarnation: int,
        strategy: int,
        value: int,
        count: int,
        consumer: int,
        assignment: int,
        user: int,
        auto_commit: bool,
        /,
    ) -> None: ...


def find_group(topic: Topic, identifier: Identifier) -> ConsumerGroup | None:
    """The group with an id or a name inside a topic."""
    group_id = topic.group_ids.get(identifier) if isinstance(identifier, str) else identifier
    return None if group_id is None else topic.groups.get(group_id)


def group_of(topic: Topic, identifier: Identifier) -> ConsumerGroup:
    """The group, or `ShardError` 5000."""
    group = find_group(topic, identifier)
    if group is None:
        raise ShardError(Status.CONSUMER_GROUP_ID_NOT_FOUND)
    return group


def group_ref(stream: Stream, topic: Topic, group: ConsumerGroup) -> GroupRef:
    return GroupRef(stream.id, topic.id, group.id, group.incarnation)


def topic_group_refs(stream: Stream, topic: Topic) -> list[GroupRef]:
    """All groups of a topic by id."""
    return [group_ref(stream, topic, topic.groups[group_id]) for group_id in sorted(topic.groups)]


def _collect(topic: Topic, groups: list[ConsumerGroup]) -> Iterator[None]:
    """All of the topic, by id."""
    for group_id in ascending(topic.groups):
        if group_id is not None:
            groups.append(topic.groups[group_id])
        yield


class GroupService:
    """Commands about groups, and polls of their members. Lives on the loop thread."""

    def __init__(
        self,
        metadata: Metadata,
        members: GroupMembers,
        engine: GroupEngine,
        shards: int,
        long_answers: LongAnswers,
    ) -> None:
        self._metadata = metadata
        self._members = members
        self._engine = engine
        self._shards = shards
        self._long_answers = long_answers
        self._room = GroupRoom(metadata, members)
        self._changing = SharedRoom(CHANGES_MAX, of_addresses=False)
        self._turns = Slices()  # for what costs as much as the member has partitions

    def _shown(self, identity: Identity, request: requests.GroupRequest) -> tuple[Stream, Topic, ConsumerGroup] | None:
        """For who may see its topic. None when stream, topic or group is missing."""
        state = self._metadata.state
        stream = base.find_stream(state, request.stream)
        topic = None if stream is None else base.find_topic(stream, request.topic)
        group = None if topic is None else find_group(topic, request.group)
        if stream is None or topic is None or group is None:
            return None
        base.require(state, identity, Rule.GET_TOPIC, stream, topic)
        return stream, topic, group

    async def get_group(self, identity: Identity, request: requests.GroupRequest) -> GroupDetails | None:
        """None when stream, topic or group is missing."""
        found = self._shown(identity, request)
        if found is None:
            return None
        stream, topic, group = found
        # Settled: what is shown is what a poll of the member finds, on whichever shard it is.
        [members] = await self._members.members([group_ref(stream, topic, group)], settled=True)
        return GroupDetails(
            GroupSummary(group.id, len(topic.partitions), len(members), group.name),
            [GroupMemberSummary(each.id, each.partitions) for each in members],
        )

    async def get_groups(
        self, identity: Identity, request: requests.TopicRequest, keep: Keep[GroupSummary, Kept]
    ) -> list[Kept]:
        """By id; empty when stream or topic is missing."""
        state = self._metadata.state
        stream = base.find_stream(state, request.stream)
        topic = None if stream is None else base.find_topic(stream, request.topic)
        if stream is None or topic is None:
            return []
        base.require(state, identity, Rule.GET_TOPIC, stream, topic)
        groups, kept = list[ConsumerGroup](), list[Kept]()
        await self._long_answers.take(identity, _collect(topic, groups))
        for first in range(0, len(groups), _GROUPS_AT_ONCE):
            some = groups[first : first + _GROUPS_AT_ONCE]
            members = await self._members.members([group_ref(stream, topic, each) for each in some], partitions=False)
            for group, those in zip(some, members, strict=True):
                kept.append(keep(GroupSummary(group.id, len(topic.partitions), len(those), group.name)))
            await asyncio.sleep(0)  # on shard 0 nothing else lets others in
        return kept

    async def create_group(self, identity: Identity, request: requests.CreateGroupRequest) -> GroupSummary:
        """1009, 2010, 41, 5004; 5: there are too many, or too many of the user."""
        stream, topic = base.topic_of(self._metadata.state, request.stream, request.topic)
        base.require(self._metadata.state, identity, Rule.GET_TOPIC, stream, topic)
        await self._room.make(identity.owner)
        command = CreateConsumerGroup(
            base.stream_ref(stream), base.topic_ref(topic), request.name, request.chosen_id, identity.owner
        )
        result = await base.submit(self._metadata, identity, command)
        created = result.state.streams[stream.id].topics[topic.id]
        return GroupSummary(result.id, len(created.partitions), 0, request.name)

    async def delete_group(self, identity: Identity, request: requests.GroupRequest) -> None:
        stream, topic, group = self._find(identity, request)
        ref = Ref(group.id, group.incarnation)
        command = DeleteConsumerGroup(base.stream_ref(stream), base.topic_ref(topic), ref)
        await base.submit(self._metadata, identity, command)

    async def join_group(self, identity: Identity, request: requests.GroupRequest) -> None:
        """Nothing for a member. 30 and close when the connection has no entry in the client table."""
        async with self._changing.place(identity.user, ""):
            stream, topic, group = self._find(identity, request)
            await self._members.join(_entered(identity), group_ref(stream, topic, group))

    async def leave_group(self, identity: Identity, request: requests.GroupRequest) -> None:
        """5006 for who is not a member; 30 and close when the connection has no entry in the client table."""
        async with self._changing.place(identity.user, ""):
            stream, topic, group = self._find(identity, request)
            await self._members.leave(_entered(identity), group_ref(stream, topic, group))

    async def sync_group(self, identity: Identity, request: requests.GroupRequest) -> tuple[int, list[int]] | None:
        """(generation, partitions) of the member that asks: those that it may poll. None: it is no member, or there is
        no such group."""
        found = self._shown(identity, request)
        if found is None:
            return None
        _, topic, group = found
        membership = _entered(identity).memberships.get(group.incarnation)
        if membership is None:
            return None
        return membership.generation, membership.usable(len(topic.partitions))

    def _find(self, identity: Identity, request: requests.GroupRequest) -> tuple[Stream, Topic, ConsumerGroup]:
        stream, topic = base.topic_of(self._metadata.state, request.stream, request.topic)
        group = group_of(topic, request.group)
        base.require(self._metadata.state, identity, Rule.GET_TOPIC, stream, topic)
        return stream, topic, group

    # ---- as consumer group ----

    async def poll(self, identity: Identity, request: requests.PollMessages) -> NothingPolled | ByEngine:
        """1009, 2010, 41, 5000, 5006."""
        return await self.in_turn(identity, lambda: self._poll(identity, request))

    def _poll(self, identity: Identity, request: requests.PollMessages) -> NothingPolled | ByEngine:
        state = self._metadata.state
        stream, topic = base.topic_of(state, request.stream, request.topic)
        base.require(state, identity, Rule.POLL_MESSAGES, stream, topic)
        group = group_of(topic, request.consumer.identifier)
        session = _entered(identity)
        membership = self._members.membership(session, group.incarnation)
        if self._lend(session, membership, topic, group, request.partition):
            return ByEngine.ANSWERED
        chosen = request.partition
        if chosen is None:
            chosen = membership.next_partition(len(topic.partitions))
        if chosen is None or not membership.owns(chosen) or chosen >= len(topic.partitions):
            return NothingPolled()
        partition = topic.partitions[chosen]
        packed = base.partition_namespace(stream, topic, partition)
        membership.begin_poll(chosen, auto_commit=request.auto_commit)
        self._engine.execute_poll(
            session.connection,
            owner(packed, self._shards),
            packed,
            partition.incarnation,
            request.strategy,
            request.value,
            request.count,
            group.offsets_id,
            membership.generation,
            identity.owner,
            request.auto_commit,
        )
        return ByEngine.ANSWERED

    def _lend(
        self, session: Session, membership: Membership, topic: Topic, group: ConsumerGroup, partition: int | None
    ) -> bool:
        """Whether the engine executes this request, and those like it from now on. Not on a pending partition: what
        comes of it decides whether that may move."""
        usable = membership.usable(len(topic.partitions))
        if partition is not None and partition not in usable:
            return False
        if not self._members.lend(session, membership, group.offsets_id, len(topic.partitions)):
            return False
        self._engine.resume(session.connection)
        return True

    async def in_turn(self, identity: Identity, function: Callable[[], T]) -> T:
        """What `function()` returns or raises, when it is the turn of the user."""
        return await self._turns.call(function, (str(identity.user),))

    def commits_natively(self, identity: Identity, topic: Topic, group: ConsumerGroup, partition: int | None) -> bool:
        """Whether the engine executes the commit in hand; `in_turn`. `ShardError` 30, 5006."""
        session = _entered(identity)
        membership = self._members.membership(session, group.incarnation)
        chosen = membership.current_partition() if partition is None else partition
        return chosen is not None and self._lend(session, membership, topic, group, chosen)

    def working_on(
        self, identity: Identity, group: ConsumerGroup, partition: int | None
    ) -> tuple[Session, Membership, int]:
        """Who commits, and on which partition: the given one, or the one polled last; `in_turn`.

        `ShardError` 30, 5006, 3022.
        """
        session = _entered(identity)
        membership = self._members.membership(session, group.incarnation)
        chosen = membership.current_partition() if partition is None else partition
        if chosen is None or not membership.owns(chosen):
            raise ShardError(Status.NOT_RESOLVED_CONSUMER)
        return session, membership, chosen

    async def committed(self, session: Session, membership: Membership, offset: int | None) -> None:
        await self._members.committed(session, membership, offset)

    async def partitions_changed(self, stream: Stream, topic: Topic) -> None:
        """Returns when every member of the topic's groups knows what it has now."""
        await self._members.members(topic_group_refs(stream, topic), settled=True, partitions=False)


def _entered(identity: Identity) -> Session:
    """30 and close when the connection has lost its entry in the client table."""
    session = identity.session
    if session is None or session.removed:
        raise ShardError(Status.STALE_CLIENT, close=True)
    return session
