"""Consumer groups inside a simulated shard: the real hub, members and services; only the engine is a model.

The engine's part is small here: it lends no seats, so every request of a member comes to Python, and it keeps fences
(the real ones, native/src/core/fence.c) and offsets of the partitions that the shard owns.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from shardd.config.loader import load_settings
from shardd.config.schema import Settings
from shardd.engine import StatsSlot
from shardd.engine.calls import EngineCalls
from shardd.groups.hub import GroupHub
from shardd.groups.members import GroupMembers
from shardd.groups.surroundings import HubSurroundings, MembersSurroundings
from shardd.metadata import State, Topic
from shardd.protocol.errors import Status
from shardd.protocol.namespaces import namespace
from shardd.runtime.channel import CONTROL_SHARD, BusError, Senders
from shardd.service.given_up import GivenUpCalls
from shardd.service.groups import GroupService
from shardd.service.lease_table import Leases
from shardd.service.long_answers import LongAnswers
from shardd.service.offsets import OffsetService
from shardd.service.partition_calls import PartitionCalls
from shardd.service.partition_requests import PartitionRequests
from shardd.service.sessions import SessionTable
from shardd.service.statistics import Statistics
from tests.sim.log_library import Fences
from tests.sim.store import GroupPartition

if TYPE_CHECKING:
    from tests.sim.cluster import Shard

METHOD_POLL = "sim.poll"
READ_S = 0.002
HAND_OVER_MS = 400


@cache
def settings() -> Settings:
    values = {
        "consumer_group.rebalancing_timeout": f"{HAND_OVER_MS} ms",
        "consumer_group.rebalancing_check_interval": "50 ms",
    }
    return load_settings(None, {}, values).settings


class _Poll(msgspec.Struct, array_like=True, frozen=True):
    namespace: int
    incarnation: int
    group: int
    assignment: int
    count: int
    auto_commit: bool


class _Polled(msgspec.Struct, array_like=True, frozen=True):
    count: int
    last_offset: int


class SimEngine:
    """What the group code asks of `shardd.engine.Engine`."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._store = shard.cluster.store
        self._fences: dict[tuple[int, int], Fences] = {}
        self._streams: object = None
        self._by_slot: dict[int, int] = {}
        self._by_namespace: dict[int, int] = {}
        self.waiting: dict[int, asyncio.Future[None]] = {}

    def seat_put(self, *_: object) -> bool:
        return False

    def seat_take(self, connection: int, group: int) -> None:
        return None

    def stats(self, slot: int) -> StatsSlot:
        """Incarnation of the partition with this slot, as far as the shard knows."""
        self._look()
        return StatsSlot((self._by_slot.get(slot, 0), *[0] * 8))

    def _look(self) -> None:
        streams = self._shard.node.state.streams
        if self._streams is streams:
            return
        self._streams = streams
        self._by_slot.clear()
        self._by_namespace.clear()
        for stream in streams.values():
            for topic in stream.topics.values():
                for partition in topic.partitions:
                    self._by_slot[partition.slot] = partition.incarnation
                    self._by_namespace[namespace(stream.id, topic.id, partition.id)] = partition.incarnation

    def _place(self, packed: int, group: int) -> GroupPartition:
        self._look()
        return packed, self._by_namespace.get(packed, 0), group

    def partition_is_durable(self, packed: int) -> bool:
        return False

    def fence_drop(self, packed: int, incarnation: int, group: int) -> None:
        place = self._place(packed, group)
        if place[:2] in self._fences:
            self._fences[place[:2]].drop(group)
        self._store.forget(place)

    def offset_get(self, packed: int, kind: int, group: int) -> int | None:
        return self._store.offsets.get(self._place(packed, group))

    def offset_delete(self, packed: int, incarnation: int, kind: int, group: int, assignment: int = 0) -> int:
        known = self._store.offsets.pop(self._place(packed, group), None) is not None
        return Status.OK if known else Status.CONSUMER_OFFSET_NOT_FOUND

    def offset_store(
        self, packed: int, incarnation: int, kind: int, group: int, offset: int, assignment: int = 0, user: int = 0
    ) -> int:
        place = self._place(packed, group)
        known = self._store.has_heard(place) and self._store.has_polled(place, assignment)
        if not self._passes(place, assignment):
            return Status.NOT_RESOLVED_CONSUMER
        self._store.committed(place, offset, known=known)
        return Status.OK

    def _passes(self, place: GroupPartition, assignment: int) -> bool:
        fences = self._fences.setdefault(place[:2], Fences())
        passes = fences.passes(place[2], assignment) or not self._shard.cluster.planted.fences
        if passes:
            self._store.accepted(self._shard.identity, place, assignment)
        return passes

    def execute_poll(self, connection: int, owner: int, packed: int, incarnation: int, *rest: Any) -> None:
        """As the engine's: GroupPolledEvent follows."""
        _strategy, _value, count, group, assignment, _user, auto_commit = rest
        poll = _Poll(packed, incarnation, group, assignment, count, auto_commit)
        work = self._execute(connection, owner, poll)
        asyncio.get_running_loop().create_task(work)

    async def _execute(self, connection: int, owner: int, poll: _Poll) -> None:
        shard = self._shard
        try:
            answer = await shard.bus.request(owner, METHOD_POLL, msgspec.msgpack.encode(poll))
            polled = msgspec.msgpack.decode(answer, type=_Polled)
        except BusError:  # its connection ends, or it is refused; nothing was polled
            polled = _Polled(0, 0)
        groups = shard.groups
        assert groups is not None
        groups.members.polled(connection, polled.count, polled.last_offset)
        waiting = self.waiting.pop(connection, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def serve_poll(self, sender: int, payload: bytes) -> bytes:
        """On the owner of the partition."""
        poll = msgspec.msgpack.decode(payload, type=_Poll)
        polled = await self._poll(poll)
        return msgspec.msgpack.encode(polled)

    async def _poll(self, poll: _Poll) -> _Polled:
        rng, place = self._shard.cluster.rng, self._place(poll.namespace, poll.group)
        if place[1] != poll.incarnation or not self._passes(place, poll.assignment):
            return _Polled(0, 0)
        end = self._store.end(poll.namespace, poll.incarnation, rng.randrange(4))
        first = self._store.offsets.get(place, -1) + 1
        count = max(0, min(poll.count, end - first))
        if count:
            self._store.polled(place, poll.assignment)
        await asyncio.sleep(rng.random() * READ_S)
        if count and poll.auto_commit:
            if self._place(poll.namespace, poll.group) != place or not self._passes(place, poll.assignment):
                return _Polled(0, 0)
            self._store.committed(place, first + count - 1, known=True)
        return _Polled(count, first + count - 1)


async def _check_forever(hub: GroupHub) -> None:
    """As the job of a worker."""
    while True:
        await asyncio.sleep(settings().consumer_group.rebalancing_check_interval_ms / 1000)
        await hub.check()


class ShardGroups:
    """Made when the shard starts to serve, as its dispatcher."""

    def __init__(self, shard: Shard) -> None:
        self.engine = SimEngine(shard)
        engine: Any = self.engine  # has the parts that the services of groups use
        bus: Any = shard.bus
        metadata, shards = shard.node, shard.cluster.shards_count
        self.sessions = SessionTable()
        around_hub = HubSurroundings(shard.incarnation, metadata, bus, settings().consumer_group)
        self.hub = GroupHub(around_hub) if shard.number == CONTROL_SHARD else None
        if self.hub is not None:
            self._checks = asyncio.get_running_loop().create_task(_check_forever(self.hub))
        self.members = GroupMembers(MembersSurroundings(engine, metadata, bus, self.sessions))
        self.service = GroupService(metadata, self.members, engine, shards, LongAnswers(engine))
        calls = PartitionCalls(metadata, engine, bus, settings().system.data_directory, Leases(engine))
        asked = PartitionRequests(metadata, EngineCalls(engine), GivenUpCalls(1 << 30), shards, timeout_s=60)
        self.offsets = OffsetService(metadata, Statistics(engine), calls, self.service, asked)
        shard.bus.serve(METHOD_POLL, Senders.ANY_SHARD, self.engine.serve_poll)

    def memberships(self) -> dict[int, dict[str, list[int]]]:
        """Group -> member -> partitions, as this worker knows."""
        found: dict[int, dict[str, list[int]]] = {}
        for session in self.sessions:
            for incarnation, membership in session.memberships.items():
                found.setdefault(incarnation, {})[session.key] = membership.partitions
        return found


def group_topics(state: State) -> dict[int, Topic]:
    """By incarnation of the group."""
    return {
        group.incarnation: topic
        for stream in state.streams.values()
        for topic in stream.topics.values()
        for group in topic.groups.values()
    }
