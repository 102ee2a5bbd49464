"""The memberships of this worker's connections (docs/protocol/groups.md): asks the hub on shard 0, takes its
assignments and reports what is released. Lives on the loop thread. The memberships are part of the sessions and move
with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Final

from shardd.engine import owner
from shardd.groups import Membership, messages
from shardd.groups.hub import topic_of_group
from shardd.groups.messages import GroupRef
from shardd.groups.surroundings import MemberSession, MembersSurroundings
from shardd.metadata import Record, State, Topic
from shardd.metadata.commands import DeleteConsumerGroup
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.namespaces import namespace
from shardd.protocol.primitives import ConsumerKind
from shardd.runtime.channel import CONTROL_SHARD, BusError, PeerLost, RemoteError, Senders
from shardd.runtime.slices import Slices

HUB_TIMEOUT_S: Final = 5.0
HUB_ATTEMPTS_MAX: Final = 3  # a shard 0 that dies with a question in its hands is asked again: all can be repeated
ANNOUNCE_RETRY_S: Final = 0.02
ANNOUNCED_AT_ONCE: Final = 10_000  # memberships and their partitions in one message

_log = logging.getLogger(__name__)


def ref_of(membership: Membership) -> GroupRef:
    return GroupRef(membership.stream_id, membership.topic_id, membership.group_id, membership.group)


class GroupMembers:
    """Made inside the running loop; announces what it has to shard 0 at once."""

    def __init__(self, around: MembersSurroundings) -> None:
        self._engine = around.engine
        self._metadata = around.metadata
        self._bus = around.bus
        self._sessions = around.sessions
        self._tasks: set[asyncio.Task[None]] = set()
        self._announcing: asyncio.Task[None] | None = None
        self._assigning = Slices()
        self._deleting = Slices()
        self._deletions: list[Iterator[None]] = []
        self._bus.serve(messages.METHOD_ASSIGN, Senders.CONTROL_SHARD, self._on_assign)
        self._bus.watch(self._peer_changed)
        self._metadata.subscribe(self._applied)
        self._metadata.follow_with(self._follow)
        self._sessions.on_leave(self._left)
        self._start_announcing()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- commands ----

    async def join(self, session: MemberSession, ref: GroupRef) -> None:
        """Does nothing for a member. `ShardError` 5000, 11001."""
        known = session.memberships.get(ref.incarnation)
        if known is not None and known.confirmed:
            return
        membership = Membership(ref.incarnation, ref.stream_id, ref.topic_id, ref.group_id)
        session.memberships[ref.incarnation] = membership  # before the hub sends its assignment
        try:
            await self._ask(messages.Join(ref, session.key, self._bus.shard, session.moves))
        except ShardError:
            session.memberships.pop(ref.incarnation, None)
            raise
        membership.confirmed = True

    async def leave(self, session: MemberSession, ref: GroupRef) -> None:
        """`ShardError` 5006 for who is no member, 11001."""
        if ref.incarnation not in session.memberships:
            raise ShardError(Status.CONSUMER_GROUP_MEMBER_NOT_FOUND)
        await self._ask(messages.Leave([ref], session.key))
        self._drop(session, ref.incarnation)

    async def members(
        self, refs: Sequence[GroupRef], *, settled: bool = False, partitions: bool = True
    ) -> list[list[messages.MemberEntry]]:
        """The members of each group, with their `partitions`. `settled`: all workers know their assignments then."""
        if not refs:
            return []
        return (await self._ask(messages.Members(list(refs), settled, partitions))).members

    async def used(self, refs: Sequence[GroupRef]) -> list[int | None]:
        """When a member of each group came or went last (`messages.Answer`); None: it has members."""
        answer = await self._ask(messages.Members(list(refs), partitions=False))
        return [None if members else us for members, us in zip(answer.members, answer.used_us, strict=True)]

    async def quiet_us(self, refs: Sequence[GroupRef]) -> list[int | None]:
        """For how long each group has had no member, at most since the start of shard 0; None: it has members."""
        if not refs:
            return []
        answer = await self._ask(messages.Members(list(refs), partitions=False))
        return [None if members else us for members, us in zip(answer.members, answer.quiet_us, strict=True)]

    def membership(self, session: MemberSession, incarnation: int) -> Membership:
        """For a request of the connection, which has no other one under way. `ShardError` 5006 for who is no member."""
        membership = session.memberships.get(incarnation)
        if membership is None:
            raise ShardError(Status.CONSUMER_GROUP_MEMBER_NOT_FOUND)
        self._take_back(session, membership)
        membership.busy = None
        return membership

    # ---- memberships lent to the engine (docs/adr/0010-native-group-requests.md) ----

    def lend(self, session: MemberSession, membership: Membership, offsets_id: int, partitions_count: int) -> bool:
        """The engine may poll and commit alone, as the request in hand is written. False: it has no room."""
        last_polled = -1 if membership.last_polled is None else membership.last_polled
        return self._engine.seat_put(
            session.connection,
            membership.group,
            membership.generation,
            offsets_id,
            membership.rotation,
            last_polled,
            membership.lend(partitions_count),
        )

    def _take_back(self, session: MemberSession, membership: Membership) -> None:
        """Before anybody looks at, changes or moves what the engine may have changed."""
        taken = self._engine.seat_take(session.connection, membership.group)
        if taken is not None:
            membership.take_back(taken)

    def _drop(self, session: MemberSession, incarnation: int) -> None:
        self._engine.seat_take(session.connection, incarnation)
        session.memberships.pop(incarnation, None)

    def moving(self, connection: int) -> None:
        """The connection is about to move with its memberships."""
        session = self._sessions.get(connection)
        if session is not None:
            for membership in session.memberships.values():
                self._take_back(session, membership)

    # ---- work on partitions ----

    def polled(self, connection: int, count: int, offset: int, stored: bool = False) -> None:
        """The engine has answered a request of a member, or (count 0) did not get to it: GroupPolledEvent."""
        session = self._sessions.get(connection)
        for membership in () if session is None else session.memberships.values():
            if session is not None and membership.busy is not None:
                if stored:
                    membership.end_commit(offset)
                else:
                    membership.end_poll(count, offset)
                self._release_later(session, membership)

    async def committed(self, session: MemberSession, membership: Membership, offset: int | None) -> None:
        """The commit that the membership began has stored `offset`, or failed; a pending partition may move now."""
        membership.end_commit(offset)
        released = membership.release_idle()
        if released:
            await self._release(session, membership, released)

    def _release_later(self, session: MemberSession, membership: Membership) -> None:
        released = membership.release_idle()
        if released:
            self._spawn(self._release(session, membership, released))

    async def _release(self, session: MemberSession, membership: Membership, released: list[int]) -> None:
        """When shard 0 cannot be told, the timeout of the hand-over moves the partitions."""
        with contextlib.suppress(ShardError):
            await self._ask(messages.Released(ref_of(membership), session.key, released))

    # ---- life of a connection ----

    def _left(self, session: MemberSession) -> None:
        """The connection is gone, or no client any more, and leaves its groups; joins that are still at work too."""
        if session.memberships:
            self._spawn(self._tell(messages.Leave(self._refs(session), session.key)))
        for incarnation in session.memberships:  # the connection may stay open
            self._engine.seat_take(session.connection, incarnation)

    def moved_in(self, session: MemberSession) -> None:
        """The connection came from another shard with its memberships."""
        if session.memberships:
            self._forget_gone(session, self._metadata.state)
            moved = messages.Moved(self._refs(session), session.key, self._bus.shard, session.moves)
            self._spawn(self._tell(moved))

    @staticmethod
    def _refs(session: MemberSession) -> list[GroupRef]:
        return [ref_of(membership) for membership in session.memberships.values()]

    async def _tell(self, question: messages.Question) -> None:
        with contextlib.suppress(ShardError):
            await self._ask(question)

    # ---- the hub ----

    async def _ask(self, question: messages.Question) -> messages.Answer:
        """`ShardError` with the status of a refusal, 11001 when shard 0 does not answer."""
        payload = messages.encode(question)
        reason = ""
        for _ in range(HUB_ATTEMPTS_MAX):
            try:
                reply = await self._bus.request(CONTROL_SHARD, messages.METHOD_HUB, payload, HUB_TIMEOUT_S)
            except (PeerLost, RemoteError) as error:
                reason = str(error)
                await asyncio.sleep(ANNOUNCE_RETRY_S)
            except BusError as error:
                raise ShardError(Status.SHARD_COMMUNICATION_ERROR, str(error)) from error
            else:
                answer = messages.decode_answer(reply)
                if answer.status != Status.OK:
                    raise ShardError(Status(answer.status))
                return answer
        raise ShardError(Status.SHARD_COMMUNICATION_ERROR, reason)

    async def _on_assign(self, sender: int, payload: bytes) -> bytes:
        releases: messages.Releases = []

        def assign(assignments: messages.Assignments) -> Iterator[None]:
            for each in assignments:
                releases.append(self._assign(each))
                yield

        await self._assigning.run(assign(messages.decode_assignments(payload)))
        return messages.encode(releases)

    def _assign(self, told: messages.Assignment) -> list[int] | None:
        """What the member lets go of; None: it is not here."""
        session = self._sessions.by_key(told.key)
        membership = None if session is None else session.memberships.get(told.group)
        if session is None or membership is None:
            return None
        self._take_back(session, membership)
        membership.assign(told.generation, told.member_id, told.place, told.partitions, told.pending)
        return membership.release_idle()

    def _peer_changed(self, shard: int, up: bool) -> None:
        if shard == CONTROL_SHARD and up:
            self._start_announcing()

    def _start_announcing(self) -> None:
        if self._announcing is not None:
            self._announcing.cancel()
        self._announcing = self._spawn(self._announce())

    async def _announce(self) -> None:
        """Until shard 0 has heard of every membership here; it may not serve yet."""
        while True:
            try:
                for piece in self._pieces():
                    payload = messages.encode(piece)
                    await self._bus.request(CONTROL_SHARD, messages.METHOD_HUB, payload, HUB_TIMEOUT_S)
            except BusError as error:
                _log.debug("shard 0 does not take the memberships yet: %s", error)
                await asyncio.sleep(ANNOUNCE_RETRY_S)
            else:
                return

    def _pieces(self) -> Iterator[messages.Announce]:
        """Every membership as it is now; lists of partitions are replaced, never changed in place."""
        announced = [
            messages.Announced(
                ref_of(each),
                session.key,
                each.member_id,
                each.place,
                each.partitions,
                each.generation,
                session.moves,
            )
            for session in self._sessions
            for each in session.memberships.values()
            if each.confirmed
        ]
        first, begin, size = True, 0, 0
        for number, each in enumerate(announced):
            size += 1 + len(each.partitions)
            if size >= ANNOUNCED_AT_ONCE:
                yield messages.Announce(self._bus.shard, announced[begin : number + 1], first, last=False)
                first, begin, size = False, number + 1, 0
        yield messages.Announce(self._bus.shard, announced[begin:], first)

    # ---- metadata ----

    def _applied(self, old: State, new: State, record: Record) -> None:
        """Memberships of deleted groups end, and so do the offsets of these; a purge ends what was polled."""
        if isinstance(record.command, DeleteConsumerGroup):
            self._deletions.append(self._delete_offsets(old, record.command))
        if old.streams is new.streams:
            return
        for session in self._sessions:
            if session.memberships:
                self._forget_gone(session, new)
                self._forget_purged(session, old, new)

    async def _follow(self, old: State, new: State) -> None:
        """What `_applied` has left to do, before the record is acknowledged."""
        while self._deletions:
            await self._deleting.run(self._deletions.pop())

    def _delete_offsets(self, old: State, command: DeleteConsumerGroup) -> Iterator[None]:
        topic = old.streams[command.stream.id].topics[command.topic.id]
        offsets_id = topic.groups[command.group.id].offsets_id
        for partition in topic.partitions:
            packed = namespace(command.stream.id, topic.id, partition.id)
            if owner(packed, self._bus.shards) == self._bus.shard:
                with contextlib.suppress(KeyError):
                    self._engine.offset_delete(packed, partition.incarnation, ConsumerKind.GROUP, offsets_id)
                self._engine.fence_drop(packed, partition.incarnation, offsets_id)
            yield

    def _forget_gone(self, session: MemberSession, state: State) -> None:
        for incarnation, membership in list(session.memberships.items()):
            if topic_of_group(state, ref_of(membership)) is None:
                self._drop(session, incarnation)

    def _forget_purged(self, session: MemberSession, old: State, new: State) -> None:
        for membership in session.memberships.values():
            before = topic_of_group(old, ref_of(membership))
            after = topic_of_group(new, ref_of(membership))
            if before is after or before is None or after is None:
                continue
            self._take_back(session, membership)
            for partition in [each for each in membership.marks if _is_gone(each, before, after)]:
                membership.forget(partition)
            self._release_later(session, membership)


def _is_gone(partition: int, before: Topic, after: Topic) -> bool:
    """Whether a partition was deleted or purged."""
    if partition >= len(after.partitions):
        return True
    known = partition < len(before.partitions)
    return known and before.partitions[partition].incarnation != after.partitions[partition].incarnation
