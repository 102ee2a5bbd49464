"""The hub of consumer groups and words that come late: real hub, members, bus and metadata of three shards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from shardd.config.loader import load_settings
from shardd.groups import messages
from shardd.groups.hub import GroupHub
from shardd.groups.members import GroupMembers, ref_of
from shardd.groups.messages import GroupRef
from shardd.groups.surroundings import HubSurroundings, MembersSurroundings, SeatEngine
from shardd.metadata import commands
from shardd.metadata.commands import Ref
from shardd.protocol import requests
from shardd.protocol.errors import Status
from shardd.runtime.channel import CONTROL_SHARD, Senders
from shardd.service.groups import GroupEngine, GroupService
from shardd.service.identity import Identity
from shardd.service.long_answers import LongAnswers
from shardd.service.sessions import Session, SessionTable
from tests.unit.test_metadata_replication import ROOT, Cluster, cluster, run


class _NoSeats:
    """The part of the engine that groups use when it lends nothing."""

    def seat_take(self, connection: int, group: int) -> None:
        return None


class _Groups:
    """Of one shard."""

    def __init__(self, shards: Cluster, shard: int) -> None:
        metadata, bus = shards.nodes[shard], shards.buses[shard]
        settings = load_settings(None, {}, {}).settings.consumer_group
        self.sessions = SessionTable()
        self.hub = GroupHub(HubSurroundings(1, metadata, bus, settings)) if shard == CONTROL_SHARD else None
        self.members = GroupMembers(MembersSurroundings(cast(SeatEngine, _NoSeats()), metadata, bus, self.sessions))

    def close(self) -> None:
        self.members.close()
        if self.hub is not None:
            self.hub.close()


async def _create_group(shards: Cluster) -> None:
    """The group g of a topic t with two partitions."""
    for command in (
        commands.CreateStream("s"),
        commands.CreateTopic(Ref(0, 2), "t", 2, 1, 0, 0, 1),
        commands.CreateConsumerGroup(Ref(0, 2), Ref(0, 3), "g"),
    ):
        assert (await shards.writer.submit(ROOT, command)).status == Status.OK


async def _move(session: Session, source: _Groups, target: _Groups) -> Session:
    """As a socket between two workers; returns when the hub knows."""
    state = source.sessions.export(session.connection)
    source.sessions.close(session.connection, moved=True)
    arrived = target.sessions.admit(session.connection + 1, session.address, state)
    target.members.moved_in(arrived)
    await asyncio.gather(*target.members._tasks)
    return arrived


def _moved(ref: GroupRef, session: Session, shard: int) -> messages.Question:
    return messages.Moved([ref], session.key, shard, session.moves - 1)


def _announced(ref: GroupRef, session: Session, shard: int) -> messages.Question:
    membership = session.memberships[ref.incarnation]
    known = (membership.member_id, membership.place, [*membership.partitions], membership.generation)
    return messages.Announce(shard, [messages.Announced(ref, session.key, *known, session.moves - 1)])


def _joined(ref: GroupRef, session: Session, shard: int) -> messages.Question:
    return messages.Join(ref, session.key, shard, session.moves - 1)


@pytest.mark.parametrize("word", [_moved, _announced, _joined])
def test_a_late_word_of_a_shard_that_a_member_has_left_does_not_bring_it_back(
    tmp_path: Path, word: Callable[[GroupRef, Session, int], messages.Question]
) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as shards:
            await _create_group(shards)
            groups = [_Groups(shards, shard) for shard in range(3)]
            try:
                await _scene(shards, groups, word)
            finally:
                for each in groups:
                    each.close()

    run(scenario)


async def _scene(
    shards: Cluster, groups: list[_Groups], word: Callable[[GroupRef, Session, int], messages.Question]
) -> None:
    topic = shards.writer.state.streams[0].topics[0]
    ref = GroupRef(0, topic.id, 0, topic.groups[0].incarnation)
    first = groups[1].sessions.open(10, "10.0.0.1:1", 1)
    await groups[1].members.join(first, ref)
    first = await _move(first, groups[1], groups[2])
    first = await _move(first, groups[2], groups[1])
    assert ref_of(first.memberships[ref.incarnation]) == ref
    late = messages.encode(word(ref, first, 2))
    await shards.buses[2].request(0, messages.METHOD_HUB, late)
    second = groups[0].sessions.open(20, "10.0.0.2:1", 2)
    await groups[0].members.join(second, ref)
    had = [session.memberships[ref.incarnation].partitions for session in (first, second)]
    assert sorted(len(each) for each in had) == [1, 1], "shard 1 has not heard of the second member"
    assert groups[0].hub is not None
    assert not groups[0].hub._groups[ref.incarnation].suspects


def test_a_group_is_shown_when_all_its_members_can_poll_what_it_shows(tmp_path: Path) -> None:
    """Who reads the members on one connection and polls on another finds what it has read."""

    async def scenario() -> None:
        async with cluster(tmp_path, 3) as shards:
            await _create_group(shards)
            groups = [_Groups(shards, shard) for shard in range(3)]
            try:
                await _show(shards, groups)
            finally:
                for each in groups:
                    each.close()

    run(scenario)


async def _show(shards: Cluster, groups: list[_Groups]) -> None:
    topic = shards.writer.state.streams[0].topics[0]
    ref = GroupRef(0, topic.id, 0, topic.groups[0].incarnation)
    members, told, may_hear = groups[2].members, asyncio.Event(), asyncio.Event()
    hear = members._on_assign

    async def hear_late(sender: int, payload: bytes) -> bytes:
        told.set()
        await may_hear.wait()
        return await hear(sender, payload)

    shards.buses[2]._handlers[messages.METHOD_ASSIGN] = Senders.CONTROL_SHARD, hear_late
    session = groups[2].sessions.open(10, "10.0.0.1:1", 1)
    joining = asyncio.create_task(members.join(session, ref))
    await asyncio.wait_for(told.wait(), 10)
    service = GroupService(shards.nodes[1], groups[1].members, cast(GroupEngine, None), 3, cast(LongAnswers, None))
    asked = requests.GroupRequest("s", "t", "g")
    showing = asyncio.create_task(service.get_group(Identity(ROOT.id, ROOT.incarnation), asked))
    done, _ = await asyncio.wait([showing], timeout=0.2)
    assert not done, "shown before shard 2 has heard of it"
    may_hear.set()
    shown = await showing
    await joining
    assert shown is not None
    assert [each.partitions for each in shown.members] == [session.memberships[ref.incarnation].partitions] == [[0, 1]]
