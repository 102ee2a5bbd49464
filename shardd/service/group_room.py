"""Room for one more consumer group: those of deleted accounts make room, when no place is left
(docs/adr/0130-shares-of-stored-things.md)."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator
from typing import Final

from shardd.groups.members import GroupMembers
from shardd.groups.messages import GroupRef
from shardd.metadata import Metadata
from shardd.metadata.commands import DeleteConsumerGroup, Ref
from shardd.metadata.group_shares import GROUPS_MAX, has_share
from shardd.metadata.state import ConsumerGroup, State, Stream, Topic
from shardd.protocol.errors import Status
from shardd.runtime.channel import BusError
from shardd.runtime.slices import Slices
from shardd.security import ROOT_USER_ID

_FOUND_MAX: Final = 256  # by one walk over all groups
_log = logging.getLogger(__name__)

_Place = tuple[Stream, Topic, ConsumerGroup]


class GroupRoom:
    """Lives on the loop thread."""

    def __init__(self, metadata: Metadata, members: GroupMembers) -> None:
        self._metadata = metadata
        self._members = members
        self._slices = Slices()
        self._found: list[_Place] = []  # the last one is the next to go

    async def make(self, owner: int) -> None:
        """Deletes a group without members of a user that is gone, the oldest first, where that lets `owner` in. Nothing
        happens where the bound is not reached, or where the share of `owner` is used up: the change says so."""
        state = self._metadata.state
        if state.groups.total < GROUPS_MAX or not state.groups.gone or not has_share(state, owner):
            return
        place = await self._next()
        if place is None:
            return
        stream, topic, group = place
        command = DeleteConsumerGroup(
            Ref(stream.id, stream.incarnation), Ref(topic.id, topic.incarnation), Ref(group.id, group.incarnation)
        )
        root = self._metadata.state.users[ROOT_USER_ID]
        try:
            result = await self._metadata.submit(Ref(root.id, root.incarnation), command)
        except BusError:
            return  # the change that wants the place meets the same, and tells it
        if result.status == Status.OK:
            words = (
                "consumer group %s of stream %s, topic %s is removed: its account is deleted and others need the place"
            )
            _log.warning(words, ascii(group.name), ascii(stream.name), ascii(topic.name))

    async def _next(self) -> _Place | None:
        for walk in (False, True):
            if walk:
                await self._slices.run(self._walk())
            while self._found:
                stream, topic, group = self._found.pop()
                if not self._is_there(stream, topic, group):
                    continue
                ref = GroupRef(stream.id, topic.id, group.id, group.incarnation)
                [members] = await self._members.members([ref], partitions=False)
                if not members:
                    return stream, topic, group
        return None

    def _is_there(self, stream: Stream, topic: Topic, group: ConsumerGroup) -> bool:
        now = self._metadata.state.streams.get(stream.id)
        at = None if now is None else now.topics.get(topic.id)
        found = None if at is None else at.groups.get(group.id)
        return found is not None and found.incarnation == group.incarnation

    def _walk(self) -> Iterator[None]:
        """The oldest ones; a yield for each group."""
        oldest = list[tuple[int, _Place]]()
        for place in _groups(self._metadata.state):
            if place is not None and place[2].owner:
                heapq.heappush(oldest, (-place[2].incarnation, place))
                if len(oldest) > _FOUND_MAX:
                    heapq.heappop(oldest)
            yield
        self._found = [place for _, place in sorted(oldest)]


def _groups(state: State) -> Iterator[_Place | None]:
    """Those of users that are gone; None for each other one."""
    for stream in state.streams.values():
        for topic in stream.topics.values():
            yield None
            for group in topic.groups.values():
                yield (stream, topic, group) if group.owner not in state.groups.of else None
