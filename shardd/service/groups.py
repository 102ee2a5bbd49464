"""Consumer groups: codes 600-605, and the partition behind a request as consumer group (docs/protocol/groups.md).

The order is 1009, 2010, 5000, then the permission (41): for everything here but polls and offsets (`for_messages`),
where 41 wins over 5000.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shardd.engine import owner
from shardd.groups import Membership
from shardd.groups.members import GroupMembers
from shardd.groups.messages import GroupRef
from shardd.metadata.commands import CreateConsumerGroup, DeleteConsumerGroup, Ref
from shardd.metadata.state import ConsumerGroup, Stream, Topic
from shardd.protocol import replies, requests
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Identifier
from shardd.runtime.slices import Slices
from shardd.security import Rule
from shardd.service import base
from shardd.service.base import Caller
from shardd.service.context import ShardContext
from shardd.service.sessions import Session

T = TypeVar("T")


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


class GroupService:
    """Commands about groups, and polls of their members. Lives on the loop thread."""

    def __init__(self, members: GroupMembers) -> None:
        self._members = members
        self._turns = Slices()  # for what costs as much as the member has partitions

    async def get_group(self, context: ShardContext, caller: Caller, request: requests.GroupRequest) -> bytes:
        """Empty when stream, topic or group is missing."""
        stream = base.find_stream(context.metadata.state, request.stream)
        topic = None if stream is None else base.find_topic(stream, request.topic)
        group = None if topic is None else find_group(topic, request.group)
        if stream is None or topic is None or group is None:
            return b""
        base.require(context, caller, Rule.GET_TOPIC, stream, topic)
        [members] = await self._members.members([group_ref(stream, topic, group)])
        head = replies.Group(group.id, len(topic.partitions), len(members), group.name)
        return head.encode() + b"".join(replies.GroupMember(each.id, each.partitions).encode() for each in members)

    async def get_groups(self, context: ShardContext, caller: Caller, request: requests.TopicRequest) -> bytes:
        """Empty when stream or topic is missing."""
        stream = base.find_stream(context.metadata.state, request.stream)
        topic = None if stream is None else base.find_topic(stream, request.topic)
        if stream is None or topic is None:
            return b""
        base.require(context, caller, Rule.GET_TOPIC, stream, topic)
        groups = [topic.groups[group_id] for group_id in sorted(topic.groups)]
        members = await self._members.members(topic_group_refs(stream, topic), partitions=False)
        return b"".join(
            replies.Group(group.id, len(topic.partitions), len(those), group.name).encode()
            for group, those in zip(groups, members, strict=True)
        )

    async def create_group(self, context: ShardContext, caller: Caller, request: requests.CreateGroup) -> bytes:
        """1009, 2010, 41, 5004."""
        stream, topic = base.topic_of(context.metadata.state, request.stream, request.topic)
        base.require(context, caller, Rule.GET_TOPIC, stream, topic)
        command = CreateConsumerGroup(base.stream_ref(stream), base.topic_ref(topic), request.name)
        result = await base.submit(context, caller, command)
        created = result.state.streams[stream.id].topics[topic.id]
        return replies.Group(result.id, len(created.partitions), 0, request.name).encode()

    async def delete_group(self, context: ShardContext, caller: Caller, request: requests.GroupRequest) -> bytes:
        stream, topic, group = self._find(context, caller, request)
        ref = Ref(group.id, group.incarnation)
        await base.submit(context, caller, DeleteConsumerGroup(base.stream_ref(stream), base.topic_ref(topic), ref))
        return b""

    async def join_group(self, context: ShardContext, caller: Caller, request: requests.GroupRequest) -> bytes:
        """OK for a member too. 30 and close when the connection has no entry in the client table."""
        stream, topic, group = self._find(context, caller, request)
        await self._members.join(_session(context, caller), group_ref(stream, topic, group))
        return b""

    async def leave_group(self, context: ShardContext, caller: Caller, request: requests.GroupRequest) -> bytes:
        """5006 for who is no member; 30 and close when the connection has no entry in the client table."""
        stream, topic, group = self._find(context, caller, request)
        await self._members.leave(_session(context, caller), group_ref(stream, topic, group))
        return b""

    @staticmethod
    def _find(
        context: ShardContext, caller: Caller, request: requests.GroupRequest
    ) -> tuple[Stream, Topic, ConsumerGroup]:
        stream, topic = base.topic_of(context.metadata.state, request.stream, request.topic)
        group = group_of(topic, request.group)
        base.require(context, caller, Rule.GET_TOPIC, stream, topic)
        return stream, topic, group

    # ---- as consumer group ----

    async def poll(self, context: ShardContext, caller: Caller, request: requests.PollMessages) -> bytes | None:
        """1009, 2010, 41, 5000, 5006. (0, 0, 0) when the member does not have the partition, or none at all.

        Otherwise the engine executes the poll and answers it (None).
        """
        return await self._turns.call(lambda: self._poll(context, caller, request))

    def _poll(self, context: ShardContext, caller: Caller, request: requests.PollMessages) -> bytes | None:
        stream, topic = base.topic_of(context.metadata.state, request.stream, request.topic)
        base.require(context, caller, Rule.POLL_MESSAGES, stream, topic)
        group = group_of(topic, request.consumer.identifier)
        session = _session(context, caller)
        membership = self._members.membership(session, group.incarnation)
        if self._lend(context, session, membership, topic, group, request.partition):
            return None
        chosen = request.partition
        if chosen is None:
            chosen = membership.next_partition(len(topic.partitions))
        if chosen is None or not membership.owns(chosen) or chosen >= len(topic.partitions):
            return replies.PolledHead(0, 0, 0).encode()
        partition = topic.partitions[chosen]
        packed = base.partition_namespace(stream, topic, partition)
        membership.begin_poll(chosen, auto_commit=request.auto_commit)
        context.engine.execute_poll(
            caller.connection,
            owner(packed, context.shards),
            packed,
            partition.incarnation,
            request.strategy,
            request.value,
            request.count,
            group.offsets_id,
            membership.generation,
            request.auto_commit,
        )
        return None

    def _lend(
        self,
        context: ShardContext,
        session: Session,
        membership: Membership,
        topic: Topic,
        group: ConsumerGroup,
        partition: int | None,
    ) -> bool:
        """Whether the engine executes this request, and those like it from now on. Not on a pending partition: what
        comes of it decides whether that may move."""
        usable = membership.usable(len(topic.partitions))
        if partition is not None and partition not in usable:
            return False
        if not self._members.lend(session, membership, group.offsets_id, len(topic.partitions)):
            return False
        context.engine.resume(session.connection)
        return True

    async def in_turn(self, function: Callable[[], T]) -> T:
        """What `function()` returns or raises, when it is its turn."""
        return await self._turns.call(function)

    def commits_natively(
        self, context: ShardContext, caller: Caller, topic: Topic, group: ConsumerGroup, partition: int | None
    ) -> bool:
        """Whether the engine executes the commit in hand; `in_turn`. `ShardError` 30, 5006."""
        session = _session(context, caller)
        membership = self._members.membership(session, group.incarnation)
        chosen = membership.current_partition() if partition is None else partition
        return chosen is not None and self._lend(context, session, membership, topic, group, chosen)

    def working_on(
        self, context: ShardContext, caller: Caller, group: ConsumerGroup, partition: int | None
    ) -> tuple[Session, Membership, int]:
        """Who commits, and on which partition: the given one, or the one polled last; `in_turn`.

        `ShardError` 30, 5006, 3022.
        """
        session = _session(context, caller)
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


def _session(context: ShardContext, caller: Caller) -> Session:
    session = context.sessions.get(caller.connection)
    if session is None or session.removed:
        raise ShardError(Status.STALE_CLIENT, close=True)
    return session
