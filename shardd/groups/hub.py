"""Shard 0 decides who has which partition in every consumer group (docs/protocol/groups.md; rules:
`shardd.groups.machine`).

Members and assignments are in memory only. When shard 0 starts, the workers announce the members of their connections;
nothing is decided until all have done so or `GRACE_S` is over, so a restart of shard 0 moves nothing.

Before a command is answered, the workers of all members that it concerns know their new assignment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from shardd.groups import GroupMachine, Member, messages
from shardd.groups.messages import Answer, Assignment, GroupRef, MemberEntry
from shardd.groups.surroundings import HubSurroundings
from shardd.metadata import Record, State, Topic
from shardd.protocol.errors import Status
from shardd.runtime.channel import BusError, Senders
from shardd.runtime.slices import Slices

GRACE_S: Final = 2.0
PUSH_TIMEOUT_S: Final = 1.0
SUSPECT_S: Final = 2.0  # a member whose worker does not know it: it moves, or is gone

_log = logging.getLogger(__name__)
_OK: Final = Answer(Status.OK)
_NO_GROUP: Final = Answer(Status.CONSUMER_GROUP_ID_NOT_FOUND)


class _Home(NamedTuple):
    """Of a member. `moves`: how often it had moved when it came to this shard."""

    shard: int
    moves: int


class _Group(msgspec.Struct):
    """`homes`: where each member is; `told`: the version that its worker has; `lock`: one teller at a time.
    `unbalanced`: members or partitions have changed, and nobody has shared them since. `used_us`: when a member came or
    went last."""

    ref: GroupRef
    machine: GroupMachine
    lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    homes: dict[str, _Home] = msgspec.field(default_factory=dict)
    told: dict[str, int] = msgspec.field(default_factory=dict)
    suspects: dict[str, int] = msgspec.field(default_factory=dict)
    unbalanced: bool = False
    used_us: int = 0

    def news(self) -> list[Member]:
        """Members whose worker does not know their assignment."""
        return [member for member in self.machine.members() if member.version > self.told.get(member.key, -1)]

    def enter(self, key: str, shard: int, moves: int) -> bool:
        """False: the member has moved on since. Words of two shards may come in any order: both waited for shard 0."""
        known = self.homes.get(key)
        if known is not None and moves < known.moves:
            return False
        self.homes[key] = _Home(shard, moves)
        self.used_us = _now_us()
        return True

    def forget(self, key: str) -> None:
        self.used_us = _now_us()
        for known in (self.homes, self.told, self.suspects):
            known.pop(key, None)


def topic_of_group(state: State, ref: GroupRef) -> Topic | None:
    """The topic of a group; None when the group does not exist any more."""
    stream = state.streams.get(ref.stream_id)
    topic = None if stream is None else stream.topics.get(ref.topic_id)
    group = None if topic is None else topic.groups.get(ref.group_id)
    return topic if group is not None and group.incarnation == ref.incarnation else None


def _now_us() -> int:
    return int(asyncio.get_running_loop().time() * 1_000_000)  # monotonic


class GroupHub:
    """All groups of the server. Lives on the loop thread of shard 0; made inside the running loop."""

    def __init__(self, around: HubSurroundings) -> None:
        self._metadata = around.metadata
        self._bus = around.bus
        settings = around.settings
        self._timeout_us = settings.rebalancing_timeout_ms * 1000
        self._groups: dict[int, _Group] = {}
        self._began_us = _now_us()
        # Of no group ever below that of an earlier one with the same offsets, or of an earlier worker of shard 0.
        self._generation = around.generation << 32
        self._announced: dict[int, list[messages.Announced]] = {}  # by shard
        self._complete_words: set[int] = set()  # shards whose last piece has come
        self._deciding = Slices()
        self._ready = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._bus.serve(messages.METHOD_HUB, Senders.ANY_SHARD, self._serve)
        self._bus.watch(self._peer_changed)
        self._metadata.subscribe(self._applied)
        self._begun = False
        self._grace = asyncio.get_running_loop().call_later(GRACE_S, lambda: self._spawn(self._begin()))

    def close(self) -> None:
        self._grace.cancel()
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- questions ----

    async def _serve(self, sender: int, payload: bytes) -> bytes:
        question = messages.decode_question(payload)
        if isinstance(question, messages.Join | messages.Moved | messages.Announce) and question.shard != sender:
            raise ValueError(f"shard {sender} speaks for shard {question.shard}")
        return messages.encode(await self._answer(question))

    async def _answer(self, question: messages.Question) -> Answer:
        if isinstance(question, messages.Announce):
            return await self._announce(question)
        await self._ready.wait()
        match question:
            case messages.Join():
                return await self._join(question)
            case messages.Leave():
                for ref in question.groups:
                    await self._leave(self._groups.get(ref.incarnation), question.key)
                return _OK
            case messages.Moved():
                return await self._moved(question)
            case messages.Released():
                return await self._released(question)
            case messages.Members():
                return await self._members(question)

    async def _join(self, question: messages.Join) -> Answer:
        group = self._group(question.group)
        if group is None:
            return _NO_GROUP
        async with group.lock:
            if not self._exists(group):
                return _NO_GROUP
            if group.enter(question.key, question.shard, question.moves):
                if group.machine.enter(question.key):
                    await self._share(group)
                await self._tell(group)
        return _OK

    async def _leave(self, group: _Group | None, key: str) -> None:
        """In the order of arrival: after a join of the same connection that is still at work."""
        if group is None:
            return
        async with group.lock:
            group.forget(key)
            if group.machine.drop(key):
                await self._share(group)
                await self._tell(group)

    async def _moved(self, question: messages.Moved) -> Answer:
        for ref in question.groups:
            group = self._groups.get(ref.incarnation)
            if group is None or question.key not in group.machine:
                continue  # it has left meanwhile
            if not group.enter(question.key, question.shard, question.moves):
                continue
            group.suspects.pop(question.key, None)
            async with group.lock:
                group.told.pop(question.key, None)
                await self._tell(group)
        return _OK

    async def _released(self, question: messages.Released) -> Answer:
        group = self._groups.get(question.group.incarnation)
        if group is None:
            return _NO_GROUP
        async with group.lock:
            self._complete(group, question.key, question.partitions)
            await self._tell(group)
        return _OK

    async def _members(self, question: messages.Members) -> Answer:
        answer, used_us = list[list[MemberEntry]](), list[int]()
        for ref in question.groups:
            group = self._groups.get(ref.incarnation)
            if group is not None and question.settled:
                async with group.lock:
                    await self._tell(group)
            members: Iterable[Member] = () if group is None else group.machine.members()
            listed = question.partitions
            answer.append([MemberEntry(member.id, list(member.partitions) if listed else []) for member in members])
            used_us.append(0 if group is None else group.used_us)
        now_us = _now_us()
        return Answer(Status.OK, answer, used_us, [now_us - max(each, self._began_us) for each in used_us])

    # ---- start ----

    async def _announce(self, question: messages.Announce) -> Answer:
        shard = question.shard
        if question.first:
            self._announced[shard] = []
        self._announced.setdefault(shard, []).extend(question.members)
        if not question.last:
            return _OK
        if self._ready.is_set():
            await self._restore([(member, shard) for member in self._announced.pop(shard)])
        else:
            self._complete_words.add(shard)
            if len(self._complete_words) == self._bus.shards:
                await self._begin()
        return _OK

    async def _begin(self) -> None:
        """Everybody has announced, or had the time to."""
        if self._begun:
            return
        self._begun = True
        self._grace.cancel()
        while words := self._complete_words & self._announced.keys():
            await self._restore([(member, shard) for shard in words for member in self._announced.pop(shard)])
        self._ready.set()  # who has not said everything by now is late

    async def _restore(self, announced: list[tuple[messages.Announced, int]]) -> None:
        """Members with the shards that know them; then their groups are shared."""
        restored: dict[int, _Group] = {}

        def enter() -> Iterator[None]:
            for member, shard in sorted(announced, key=lambda each: -each[0].generation):  # the latest word counts
                group = self._group(member.group)
                if group is not None and group.enter(member.key, shard, member.moves):
                    known = (member.key, member.member_id, member.place, member.partitions, member.generation)
                    group.told.pop(member.key, None)
                    group.machine.restore(*known)
                    restored[member.group.incarnation] = group
                yield

        await self._deciding.run(enter())
        for group in restored.values():
            async with group.lock:
                await self._share(group)
            self._spawn(self._settle(group))

    def _expire(self, group: _Group) -> None:
        group.machine.expire(_now_us(), self._timeout_us)

    async def _share(self, group: _Group) -> None:
        """Under the group's lock. When whoever waits for it gives up, `check` does it again."""
        group.unbalanced = True
        await self._deciding.run(group.machine.rebalancing(_now_us()))
        group.unbalanced = False

    # ---- what happens around ----

    def _applied(self, old: State, new: State, record: Record) -> None:
        """Groups of deleted topics end; more or fewer partitions are shared anew."""
        if old.streams is new.streams:
            return
        for incarnation, group in list(self._groups.items()):
            topic = topic_of_group(new, group.ref)
            if topic is None:
                self._generation = max(self._generation, group.machine.generation)
                del self._groups[incarnation]
            elif len(topic.partitions) != group.machine.partitions_count:
                self._spawn(self._resize(group))

    def _peer_changed(self, shard: int, up: bool) -> None:
        """The connections of a worker die with it."""
        if up:
            return
        self._announced.pop(shard, None)
        self._complete_words.discard(shard)
        for group in self._groups.values():
            for key in [key for key, home in group.homes.items() if home.shard == shard]:
                self._spawn(self._leave_if(group, key, shard))

    async def _leave_if(self, group: _Group, key: str, shard: int) -> None:
        home = group.homes.get(key)
        if home is not None and home.shard == shard:
            await self._leave(group, key)

    async def check(self) -> None:
        """Ends hand-overs that take too long, does what was given up, tells what could not be told. For a job."""
        for group in list(self._groups.values()):
            if group.unbalanced:
                async with group.lock:
                    await self._share(group)
            if group.machine.pending_count:
                await self._deciding.call(partial(self._expire, group))
            if group.news():
                await self._settle(group)

    # ---- telling ----

    def _group(self, ref: GroupRef) -> _Group | None:
        known = self._groups.get(ref.incarnation)
        if known is not None:
            return known
        topic = topic_of_group(self._metadata.state, ref)
        if topic is None:
            return None
        group = self._groups[ref.incarnation] = _Group(ref, GroupMachine(len(topic.partitions), self._generation))
        return group

    def _exists(self, group: _Group) -> bool:
        return self._groups.get(group.ref.incarnation) is group

    async def _resize(self, group: _Group) -> None:
        """To what the topic has now."""
        async with group.lock:
            topic = topic_of_group(self._metadata.state, group.ref)
            if topic is not None and len(topic.partitions) != group.machine.partitions_count:
                count = len(topic.partitions)
                group.machine.cut(count)
                await self._share(group)
            await self._tell(group)

    async def _settle(self, group: _Group) -> None:
        async with group.lock:
            await self._tell(group)

    def _complete(self, group: _Group, key: str, partitions: Iterable[int]) -> None:
        """A release of what is not pending any more was answered too late: the worker is told again that it has it."""
        if group.machine.complete_all(key, partitions):
            group.told.pop(key, None)

    async def _tell(self, group: _Group) -> None:
        """Until the workers of all members know; what they let go of moves at once. Under the group's lock."""
        failed: set[int] = set()
        while self._exists(group):
            by_shard: dict[int, list[Assignment]] = {}
            for member in group.news():
                home = group.homes[member.key].shard
                if home not in failed:
                    by_shard.setdefault(home, []).append(_assignment(group, member))
            if not by_shard:
                return
            answers = await asyncio.gather(*(self._push(shard, sent) for shard, sent in by_shard.items()))
            for (shard, sent), releases in zip(by_shard.items(), answers, strict=True):
                if releases is None:
                    failed.add(shard)
                    continue
                for assignment, released in zip(sent, releases, strict=True):
                    self._told(group, assignment, released)

    async def _push(self, shard: int, assignments: list[Assignment]) -> messages.Releases | None:
        """What the worker lets go of; None when it does not answer (told again later)."""
        payload = messages.encode(assignments)
        try:
            answer = await self._bus.request(shard, messages.METHOD_ASSIGN, payload, PUSH_TIMEOUT_S, patience_s=None)
        except BusError as error:
            _log.warning("shard %d does not hear of its consumer groups: %s", shard, error)
            return None
        return messages.decode_releases(answer)

    def _told(self, group: _Group, assignment: Assignment, released: list[int] | None) -> None:
        if assignment.key not in group.machine:
            return
        group.told[assignment.key] = assignment.generation
        if released is None:
            group.suspects[assignment.key] = assignment.generation
            self._spawn(self._remove_suspect(group, assignment.key))
        else:
            group.suspects.pop(assignment.key, None)
            self._complete(group, assignment.key, released)

    async def _remove_suspect(self, group: _Group, key: str) -> None:
        await asyncio.sleep(SUSPECT_S)
        if key in group.suspects:
            _log.warning("a member of a consumer group is on no shard and is removed")
            await self._leave(group, key)


def _assignment(group: _Group, member: Member) -> Assignment:
    return Assignment(
        group=group.ref.incarnation,
        key=member.key,
        generation=member.version,
        member_id=member.id,
        place=member.place,
        partitions=list(member.partitions),
        pending=sorted(member.pending),
    )
