"""Consumer groups of Liftbridge (Lb 1.8): the rights of members, and their partitions. A member needs the right to poll
all its streams; any user with this right sees the member and may remove it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardd.config.liftbridge import Liftbridge as Settings
from shardd.metadata import Metadata
from shardd.metadata.commands import JoinLiftbridgeGroup, LeaveLiftbridgeGroup
from shardd.metadata.liftbridge_groups import assigned
from shardd.metadata.liftbridge_state import LiftbridgeGroup
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge import requests
from shardd.protocol.liftbridge.requests import GroupInfo, GroupMember
from shardd.security import Rule
from shardd.security.permissions import may_be_member
from shardd.service import base
from shardd.service.identity import Identity
from shardd.service.liftbridge.lookup import require_permitted
from shardd.service.long_answers import LongAnswers
from shardd.service.topics import Keep, Kept


class LiftbridgeGroupService:
    """Lives on the loop thread."""

    def __init__(self, metadata: Metadata, settings: Settings, answers: LongAnswers) -> None:
        self._metadata = metadata
        self._settings = settings
        self._answers = answers

    async def join_group(self, identity: Identity, request: requests.JoinGroup) -> GroupInfo:
        """3, 41, 2010, 5004, 5. The group as it is then, without what its members have."""
        if not 1 <= len(request.streams) <= requests.NAMES_MAX:
            raise ShardError(Status.INVALID_COMMAND, f"{len(request.streams)} streams")
        state = self._metadata.state
        _ = identity.user  # 40
        found = [
            require_permitted(state, self._settings, identity, name, Rule.POLL_MESSAGES) for name in request.streams
        ]
        places = tuple((base.stream_ref(each.stream), base.topic_ref(each.topic)) for each in found)
        command = JoinLiftbridgeGroup(identity.ref, request.group, request.consumer, places)
        result = await base.submit(self._metadata, identity, command)
        return without_assignments(result.state.liftbridge.groups[request.group])

    async def leave_group(self, identity: Identity, request: requests.LeaveGroup) -> None:
        """5000, 5006, 41."""
        _ = identity.user  # 40
        await base.submit(self._metadata, identity, LeaveLiftbridgeGroup(request.group, request.consumer))

    async def get_groups(
        self, identity: Identity, request: requests.GetGroups, keep: Keep[GroupInfo, Kept]
    ) -> list[Kept]:
        """With the members that the user could be; groups without one are left out. 3 for too many names."""
        if len(request.names) > requests.NAMES_MAX:
            raise ShardError(Status.INVALID_COMMAND, f"{len(request.names)} names")
        state, user, kept = self._metadata.state, identity.user, list[Kept]()

        def steps() -> Iterator[None]:
            for name in dict.fromkeys(request.names):
                yield
                group = state.liftbridge.groups.get(name)
                if group is None:
                    continue
                members = list[str]()
                for consumer in group.members:
                    if may_be_member(state, user, name, consumer):
                        members.append(consumer)
                    yield
                if members:
                    made = list[GroupInfo]()
                    yield from describe_group(group, members, made)
                    kept.append(keep(made[0]))

        await self._answers.take(identity, steps())
        return kept


def describe_group(group: LiftbridgeGroup, members: Iterable[str], made: list[GroupInfo]) -> Iterator[None]:
    """Adds the group with these members and what they have, in steps."""
    has: dict[str, dict[str, list[int]]] = {consumer: {} for consumer in members}
    for stream in sorted({stream for consumer in has for stream in group.members[consumer]}):
        yield
        for consumer, partitions in assigned(group.streams[stream]):
            if consumer in has:
                has[consumer].setdefault(stream, []).extend(partitions)
            yield
    described = dict[str, GroupMember]()
    for consumer, streams in has.items():
        described[consumer] = GroupMember(
            group.members[consumer], {stream: tuple(partitions) for stream, partitions in streams.items()}
        )
        yield
    made.append(GroupInfo(group.name, group.epoch, described))
    yield


def without_assignments(group: LiftbridgeGroup) -> GroupInfo:
    members = {consumer: GroupMember(streams, {}) for consumer, streams in group.members.items()}
    return GroupInfo(group.name, group.epoch, members)
