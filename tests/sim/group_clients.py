"""Members of consumer groups: they join, poll, commit, move to another shard, leave and vanish."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from shardd.metadata import State
from shardd.protocol import requests
from shardd.protocol.errors import ShardError
from shardd.protocol.primitives import Consumer, ConsumerKind, PollingKind
from shardd.runtime.channel import PeerLost
from shardd.service.base import Caller
from shardd.service.sessions import Session
from tests.sim.clients import ConnectionLostError, call
from tests.sim.cluster import Cluster, Shard

TRANSIT_S = 0.02  # of a socket between two shards


class GroupClient:
    """One connection after the other."""

    def __init__(self, cluster: Cluster, rng: random.Random, number: int) -> None:
        self._cluster = cluster
        self._rng = rng
        self._number = number
        self._connections = 0
        self._shard: Shard | None = None
        self._session: Session | None = None
        self._place = (0, 0, 0)  # stream, topic, group

    async def run(self, stop: asyncio.Event) -> None:
        """When it is told to stop it stays connected."""
        while not stop.is_set():
            await asyncio.sleep(self._rng.random() * 0.1)
            try:
                if self._session is None:
                    await self._connect()
                else:
                    await self._act()
            except (ConnectionLostError, PeerLost):
                self._session = None
            except ShardError:
                continue
            if self._shard is not None and not self._shard.process.alive:
                self._session = None

    def _note(self, kind: str) -> None:
        self._cluster.trace.add(self._cluster.loop.time(), kind, f"client {self._number}")

    def _connection(self) -> int:
        self._connections += 1
        return self._number << 32 | self._connections

    async def _connect(self) -> None:
        serving = self._cluster.serving()
        shard = self._rng.choice(serving) if serving else None
        place = None if shard is None else _group(self._rng, shard.node.state)
        if shard is None or place is None or shard.groups is None:
            return
        connection = self._connection()
        address = f"10.0.0.{self._number}:{self._connections}"
        self._shard, self._place = shard, place
        self._session = shard.groups.sessions.open(connection, address, int(self._cluster.loop.time() * 1_000_000))
        self._note("join")
        await self._request(shard.groups.service.join_group(shard.groups.context, self._caller, self._group_request()))

    @property
    def _caller(self) -> Caller:
        assert self._session is not None
        return Caller(self._session.connection, 0)

    def _group_request(self) -> requests.GroupRequest:
        return requests.GroupRequest(*self._place)

    async def _request(self, work: Coroutine[Any, Any, object]) -> None:
        assert self._shard is not None
        await call(self._cluster, self._shard.process, work)

    async def _act(self) -> None:
        what = self._rng.randrange(20)
        if what < 10:
            await self._poll()
        elif what < 15:
            await self._commit()
        elif what == 15:
            self._note("leave")
            assert self._shard is not None and self._shard.groups is not None
            groups = self._shard.groups
            await self._request(groups.service.leave_group(groups.context, self._caller, self._group_request()))
            self._disconnect()
        elif what == 16:
            self._disconnect()
        elif what < 19:
            await self._move()

    async def _poll(self) -> None:
        self._note("poll")
        stream, topic, group = self._place
        consumer = Consumer(ConsumerKind.GROUP, group)
        count, auto_commit = self._rng.choice([1, 2, 10]), self._rng.random() < 0.4
        poll = requests.PollMessages(consumer, stream, topic, None, PollingKind.NEXT, 0, count, auto_commit)
        assert self._shard is not None
        await self._request(_polled(self._shard, self._caller, poll))

    async def _commit(self) -> None:
        """What was polled last, if anything was; the client may have taken its time."""
        stream, topic, group = self._place
        membership = next(iter(self._session.memberships.values()), None) if self._session else None
        partition = None if membership is None else membership.last_polled
        mark = None if membership is None or partition is None else membership.marks.get(partition)
        if mark is None or mark.polled is None or self._shard is None or self._shard.groups is None:
            return
        self._note("commit")
        consumer = Consumer(ConsumerKind.GROUP, group)
        store = requests.StoreOffset(consumer, stream, topic, partition, mark.polled)
        groups = self._shard.groups
        await self._request(groups.offsets.store_offset(groups.context, self._caller, store))

    def _disconnect(self) -> None:
        session, shard, self._session = self._session, self._shard, None
        if session is not None and shard is not None and shard.process.alive and shard.groups is not None:
            self._note("disconnect")
            shard.process.context.run(shard.groups.sessions.close, session.connection)

    async def _move(self) -> None:
        """As `Worker._on_move`; the socket waits in the supervisor's hands while the target is dead."""
        source, session = self._shard, self._session
        target = self._rng.randrange(self._cluster.shards_count)
        if source is None or session is None or source.groups is None or target == source.number:
            return
        if not source.process.alive or source.process.paused:
            return
        self._note("move")
        source.groups.members.moving(session.connection)
        state = source.groups.sessions.export(session.connection)
        source.process.context.run(source.groups.sessions.close, session.connection, moved=True)
        self._session = None
        await asyncio.sleep(self._rng.random() * TRANSIT_S)
        while True:
            shard = self._cluster.shards.get(target)
            if shard is not None and shard.serving and shard.groups is not None and not shard.process.paused:
                break
            await asyncio.sleep(0.01)
        self._shard, groups = shard, shard.groups
        self._session = groups.sessions.admit(self._connection(), session.address, state)
        shard.process.context.run(groups.members.moved_in, self._session)


async def _polled(shard: Shard, caller: Caller, poll: requests.PollMessages) -> None:
    groups = shard.groups
    assert groups is not None
    waiting = groups.engine.waiting[caller.connection] = asyncio.get_running_loop().create_future()
    if await groups.service.poll(groups.context, caller, poll) is None:
        await waiting


def _group(rng: random.Random, state: State) -> tuple[int, int, int] | None:
    """Few groups are chosen, so that they have several members."""
    found = [
        (stream.id, topic.id, group_id)
        for stream in state.streams.values()
        for topic in stream.topics.values()
        for group_id in topic.groups
    ]
    return rng.choice(sorted(found)[:2]) if found else None
