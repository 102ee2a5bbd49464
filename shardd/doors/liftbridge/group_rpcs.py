"""JoinConsumerGroup, LeaveConsumerGroup, FetchConsumerGroupAssignments and ReportConsumerGroupCoordinator: checks in
Liftbridge's order, with its texts."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from shardd.doors.liftbridge.calls import Call
from shardd.doors.liftbridge.group_clocks import GroupClocks
from shardd.doors.liftbridge.status import failed_precondition, invalid, not_found, rpc_error
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge.api_messages import (
    FetchConsumerGroupAssignmentsRequest,
    FetchConsumerGroupAssignmentsResponse,
    JoinConsumerGroupRequest,
    JoinConsumerGroupResponse,
    LeaveConsumerGroupRequest,
    PartitionAssignment,
    ReportConsumerGroupCoordinatorRequest,
)
from shardd.protocol.liftbridge.requests import NAMES_MAX, GetGroups, GroupInfo, JoinGroup, LeaveGroup

REPORTED_GROUPS_MAX: Final = 1_024
_NS_PER_MS: Final = 1_000_000
_NO_GROUP: Final = "consumer group does not exist"
_NO_MEMBER: Final = "consumer is not a member of the consumer group"
_NOT_A_MEMBER: Final = frozenset(
    {Status.CONSUMER_GROUP_ID_NOT_FOUND, Status.CONSUMER_GROUP_MEMBER_NOT_FOUND, Status.UNAUTHORIZED}
)
_DONE: Final = b""  # an answer without fields


class _Reports(msgspec.Struct):
    until_s: float
    reporters: set[str]


class GroupRpcs:
    """Loop thread only. `coordinator`: of all groups, this server."""

    def __init__(self, clocks: GroupClocks, coordinator: str, consumer_timeout_ms: int, timeout_ms: int) -> None:
        self._clocks = clocks
        self._coordinator = coordinator
        self._consumer_timeout_ms = consumer_timeout_ms
        self._coordinator_timeout_ms = timeout_ms
        self._reports: dict[str, _Reports] = {}

    async def join(self, call: Call, request: JoinConsumerGroupRequest) -> bytes:
        _require(request.groupId, request.consumerId)
        if not request.streams:
            raise invalid("No streams provided")
        if len(request.streams) > NAMES_MAX:
            raise invalid(f"more than {NAMES_MAX} streams in one request")
        group, consumer = request.groupId, request.consumerId
        try:
            said = await call.ask("liftbridge_join_group", JoinGroup(group, consumer, tuple(request.streams)))
        except (ShardError, WorkerLostError) as error:
            status = error.status if isinstance(error, ShardError) else None
            if status is Status.TOPIC_ID_NOT_FOUND:
                raise failed_precondition("stream does not exist") from None
            if status is Status.CONSUMER_GROUP_NAME_ALREADY_EXISTS:
                raise failed_precondition("consumer is already a member of the consumer group") from None
            raise rpc_error(error, call.method, group) from None
        joined = msgspec.convert(said, GroupInfo, strict=False)
        self._clocks.learn(joined)
        response = JoinConsumerGroupResponse(
            coordinator=self._coordinator,
            epoch=joined.epoch,
            consumerTimeout=self._consumer_timeout_ms * _NS_PER_MS,
            coordinatorTimeout=self._coordinator_timeout_ms * _NS_PER_MS,
        )
        return response.SerializeToString()

    async def leave(self, call: Call, request: LeaveConsumerGroupRequest) -> bytes:
        _require(request.groupId, request.consumerId)
        group, consumer = request.groupId, request.consumerId
        try:
            await call.ask("liftbridge_leave_group", LeaveGroup(group, consumer))
        except (ShardError, WorkerLostError) as error:
            if not isinstance(error, ShardError) or error.status not in _NOT_A_MEMBER:
                raise rpc_error(error, call.method, group) from None
            if await self._group(call, group) is None:  # a group of others looks as one that does not exist
                raise not_found(_NO_GROUP) from None
            raise failed_precondition(_NO_MEMBER) from None
        self._clocks.forget(group, consumer)
        return _DONE

    async def assignments(self, call: Call, request: FetchConsumerGroupAssignmentsRequest) -> bytes:
        _require(request.groupId, request.consumerId)
        group = await self._group(call, request.groupId)
        if group is None:
            raise not_found(_NO_GROUP)
        if request.epoch != group.epoch:
            raise failed_precondition("client-provided group epoch differs from broker group epoch")
        member = group.members.get(request.consumerId)
        if member is None:
            raise failed_precondition(_NO_MEMBER)
        self._clocks.heard(group.name, request.consumerId)
        response = FetchConsumerGroupAssignmentsResponse(epoch=group.epoch)
        for stream, partitions in member.assigned.items():
            response.assignments.append(PartitionAssignment(stream=stream, partitions=partitions))
        return response.SerializeToString()

    async def report(self, call: Call, request: ReportConsumerGroupCoordinatorRequest) -> bytes:
        _require(request.groupId, request.consumerId)
        if not request.coordinator:
            raise invalid("No coordinator provided")
        name, consumer = request.groupId, request.consumerId
        group = await self._group(call, name)
        if group is None:
            raise failed_precondition(f"No such consumer group {name}")
        if (request.coordinator, request.epoch) != (self._coordinator, group.epoch):
            raise failed_precondition(
                f"Coordinator generation mismatch, current coordinator: {self._coordinator} epoch: {group.epoch}, "
                f"got coordinator: {request.coordinator} epoch: {request.epoch}"
            )
        if consumer not in group.members:
            raise failed_precondition(f"Consumer {consumer} is not a member of consumer group {name}")
        if self._reported(name, consumer) > len(group.members) // 2:
            raise failed_precondition("No group coordinator candidates")
        return _DONE

    def _reported(self, group: str, consumer: str) -> int:
        """How many members have, since the last one did so."""
        now_s = asyncio.get_running_loop().time()
        known = self._reports.pop(group, None)
        if known is None or known.until_s < now_s:
            known = _Reports(0.0, set())
        known.reporters.add(consumer)
        known.until_s = now_s + self._coordinator_timeout_ms / 1000
        self._reports[group] = known
        if len(self._reports) > REPORTED_GROUPS_MAX:
            del self._reports[next(iter(self._reports))]
        return len(known.reporters)

    async def _group(self, call: Call, name: str) -> GroupInfo | None:
        said = await call.command("liftbridge_get_groups", GetGroups((name,)), name)
        for group in msgspec.convert(said, list[GroupInfo], strict=False):
            self._clocks.learn_some(group)
            return group
        return None


def _require(group: str, consumer: str) -> None:
    if not group:
        raise invalid("No groupId provided")
    if not consumer:
        raise invalid("No consumerId provided")
