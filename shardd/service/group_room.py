"""Room for one more consumer group: those of deleted accounts make room, when no place is left
(docs/adr/0130-shares-of-stored-things.md)."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator
from operator import itemgetter
from typing import Final

from shardd.groups.members import GroupMembers
from shardd.groups.messages import GroupRef
from shardd.metadata import Metadata
from shardd.metadata.commands import DeleteConsumerGroup, Ref
from shardd.metadata.group_shares import GROUPS_MAX, has_share
from shardd.metadata.state import ConsumerGroup, State, Stream, Topic
from shardd.protocol.errors import Status
from shardd.runtime.aside import beside
from shardd.runtime.channel import BusError
from shardd.runtime.slices import Slices
from shardd.security import ROOT_USER_ID

_FOUND_MAX: Final = 256  # by one walk over all groups
_ASKED_AT_ONCE: Final = 1_000
_log = logging.getLogger(__name__)

_Place = tuple[Stream, Topic, ConsumerGroup]
_Unused = tuple[int, int, _Place]
"""When it was used, its incarnation, where it is."""


class GroupRoom:
    """Lives on the loop thread. Uses are known since shard 0 began: of groups without one, the oldest goes first."""

    def __init__(self, metadata: Metadata, members: GroupMembers) -> None:
        self._metadata = metadata
        self._members = members
        self._slices = Slices()
        self._found: list[_Unused] = []  # the last one is the next to go

    async def make(self, owner: int) -> None:
        """Deletes a group without members of a user that is gone, the longest unused first, where that lets `owner` in.
        Nothing happens where the bound is not reached, or where the share of `owner` is used up: the change says so."""
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
            with beside():
                result = await self._metadata.submit(Ref(root.id, root.incarnation), command)
        except BusError:
            return  # the change that wants the place meets the same, and tells it
        if result.status == Status.OK:
            words = (
                "consumer group %s of stream %s, topic %s is removed: its account is deleted and others need the place"
            )
            _log.warning(words, ascii(group.name), ascii(stream.name), ascii(topic.name))

    async def _next(self) -> _Place | None:
        for look in (False, True):
            if look:
                await self._look()
            while self._found:
                used_us, _, place = self._found.pop()
                if self._is_there(*place):
                    [now_us] = await self._members.used([_ref(place)])
                    if now_us == used_us:  # a later one is found by the next look, in its turn
                        return place
        return None

    async def _look(self) -> None:
        """Finds the longest unused ones."""
        places = list[_Place]()

        def walk() -> Iterator[None]:
            for place in _groups(self._metadata.state):
                if place is not None and place[2].owner:
                    places.append(place)
                yield

        await self._slices.run(walk())
        found = list[_Unused]()
        for at in range(0, len(places), _ASKED_AT_ONCE):
            some = places[at : at + _ASKED_AT_ONCE]
            used = await self._members.used([_ref(place) for place in some])
            found += [(us, place[2].incarnation, place) for us, place in zip(used, some, strict=True) if us is not None]
            found = heapq.nsmallest(_FOUND_MAX, found, key=itemgetter(0, 1))
        self._found = found[::-1]

    def _is_there(self, stream: Stream, topic: Topic, group: ConsumerGroup) -> bool:
        now = self._metadata.state.streams.get(stream.id)
        at = None if now is None else now.topics.get(topic.id)
        found = None if at is None else at.groups.get(group.id)
        return found is not None and found.incarnation == group.incarnation


def _ref(place: _Place) -> GroupRef:
    stream, topic, group = place
    return GroupRef(stream.id, topic.id, group.id, group.incarnation)


def _groups(state: State) -> Iterator[_Place | None]:
    """Those of users that are gone; None for each other one."""
    for stream in state.streams.values():
        for topic in stream.topics.values():
            yield None
            for group in topic.groups.values():
                yield (stream, topic, group) if group.owner not in state.groups.of else None
