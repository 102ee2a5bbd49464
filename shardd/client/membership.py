"""Which partitions a consumer has, and where it begins in each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from shardd.client import commands, statuses
from shardd.client.command_codes import ANNOUNCE_HEARTBEAT
from shardd.client.commands import Command
from shardd.client.errors import (
    AlreadyExistsError,
    GroupDeletedError,
    NotFoundError,
    PermissionDeniedError,
    RightNeededError,
    ServerError,
)
from shardd.client.heartbeat import Heartbeat
from shardd.client.history import Histories
from shardd.client.link import Link
from shardd.client.messages import History
from shardd.client.polls import Polls
from shardd.client.positions import Place
from shardd.client.session import Session
from shardd.client.wire import Identifier

_LEFT = frozenset({statuses.MEMBER_NOT_FOUND, statuses.GROUP_NOT_FOUND})
_NOT_ITS_OWN = _LEFT | {statuses.OFFSET_NOT_RESOLVED, statuses.PARTITION_NOT_FOUND}


class Source(NamedTuple):
    """What a consumer reads, and as who. `fixed`: partitions that it was given, None: all of the topic or group."""

    stream: Identifier
    topic: Identifier
    name: Identifier
    is_group: bool
    fixed: tuple[int, ...] | None


def is_no_member(error: ServerError) -> bool:
    """Of a member whose session or group is gone: it joins again."""
    return error.status in _LEFT


def is_not_its_own(error: ServerError) -> bool:
    """Of a commit for a partition that another member has, or that is gone."""
    return error.status in _NOT_ITS_OWN


class Membership:
    """Of one consumer. `rejoined`: places of before belong to another membership."""

    def __init__(
        self,
        session: Session,
        polls: Polls,
        histories: Histories,
        source: Source,
        start: tuple[int, int],
        heartbeat: Heartbeat,
    ) -> None:
        self._heartbeat = heartbeat
        self._session, self._polls, self._histories, self._of = session, polls, histories, source
        self._start = start
        # Of the partitions that there were when it began at the latest: their ends and, where told, histories.
        self._ends: dict[int, tuple[int, History | None]] | None = None
        self._topic_made_at_us: int | None = None  # when it joined on this connection, else None
        self.rejoined = False

    async def opened(self, link: Link) -> None:
        """A new connection is a new member, and may be of a server with other files."""
        self._histories.connected()
        if not self._of.is_group:
            return
        self._topic_made_at_us = None  # a group may be missing because a directory of before it was put back
        until = self._session.until(None)

        async def ask(command: Command[Any]) -> Any:
            return command.read(await link.ask(command.code, command.payload, until))

        self._polls.connected()
        if await self._polls.offers(ANNOUNCE_HEARTBEAT.code, ask):
            await self._heartbeat.begin(link, ask, self._session.settings.patience_s)
        await self._join(ask)

    async def join(self) -> None:
        await self._join(self._session.call)

    async def _join(self, ask: Callable[[Command[Any]], Awaitable[Any]]) -> None:
        """A group that is missing is made, but for one that was deleted under its member: GroupDeletedError. It ends
        with its topic, too, so it is told from a topic that was made again."""
        of = self._of
        join = commands.join_group(of.stream, of.topic, of.name)
        try:
            topic = await ask(commands.topic(of.stream, of.topic))
            await ask(join)
        except PermissionDeniedError as error:
            needs = f"a member of a group of topic {of.stream}/{of.topic} needs the rights read_topic and poll_messages"
            raise RightNeededError(needs, error) from None
        except NotFoundError as error:
            if error.status != statuses.GROUP_NOT_FOUND:
                raise
            if topic is not None and topic.created_at_us == self._topic_made_at_us:
                self._topic_made_at_us = None
                raise GroupDeletedError(f"group {of.name} of topic {of.stream}/{of.topic} was deleted") from None
            if not isinstance(of.name, str):
                raise
            create = commands.create_group(of.stream, of.topic, of.name)
            with contextlib.suppress(AlreadyExistsError):
                await ask(create._replace(repeatable=True))  # a cut connection may have lost its answer
            await ask(join)
        self._topic_made_at_us = None if topic is None else topic.created_at_us
        self.rejoined = True

    async def wanted(self) -> dict[int, History | None]:
        """The partitions it has now, with their histories where these are told. What it says with `rejoined` set
        is void."""
        if self._start[0] == commands.LAST and self._ends is None:
            self._ends = await self._ends_now()
        return await (self._of_group() if self._of.is_group else self._of_topic())

    async def _ends_now(self) -> dict[int, tuple[int, History | None]]:
        """A partition that comes later begins at its first message."""
        of = self._of
        if await self._polls.offers(commands.POLL_POSITION):
            found = await self._session.call(commands.bounds(of.stream, of.topic, of.fixed or ()))
            ends = {each.id: (each.end, History(each.incarnation)) for each in found.partitions}
            for number, (_, history) in ends.items():
                self._histories.know(number, history)
            return dict(ends)
        topic = await self._session.call(commands.topic(of.stream, of.topic))
        if topic is None:
            raise NotFoundError(statuses.TOPIC_NOT_FOUND)
        return {
            each.id: (each.current_offset + 1 if each.messages_count or each.current_offset else 0, None)
            for each in topic.partitions
        }

    async def _of_topic(self) -> dict[int, History | None]:
        if self._of.fixed is not None:
            return dict.fromkeys(self._of.fixed)
        try:
            topic = await self._session.call(commands.topic(self._of.stream, self._of.topic))
        except PermissionDeniedError:
            if not await self._polls.offers(commands.POLL_POSITION):
                raise
            # For bounds the right to poll is enough. They are asked of each partition, so one that fails hides all.
            found = await self._session.call(commands.bounds(self._of.stream, self._of.topic))
            return dict.fromkeys(each.id for each in found.partitions)
        if topic is None:
            raise NotFoundError(statuses.TOPIC_NOT_FOUND)
        return dict.fromkeys(range(topic.partitions_count))

    async def _of_group(self) -> dict[int, History | None]:
        """Polls without a partition take those of the member in turn: one of no message tells which it would be."""
        found: dict[int, History | None] = {}
        while True:
            try:
                polled = await self._polls.ask(None, commands.NEXT, 0, 0)
            except ServerError as error:
                if not is_no_member(error):
                    raise
                await self.join()
                return {}
            if polled.partition in found or (polled.history is not None and not polled.history.incarnation):
                return found if polled.history is not None or set(found) != {0} else await self._or_none(found)
            found[polled.partition] = polled.history

    async def _or_none(self, found: dict[int, History | None]) -> dict[int, History | None]:
        """Partition 0, or none at all: the answer is the same where histories are not told."""
        group = await self._session.call(commands.group(self._of.stream, self._of.topic, self._of.name))
        me = await self._session.call(commands.me())
        has_it = group is not None and any(each.id == me.id and 0 in each.partitions for each in group.members)
        return found if has_it else {}

    async def placed(self, number: int, history: History | None) -> Place:
        """Where it begins. The history is asked for before the stored offset, so an offset of a later one is never
        taken for one of an earlier one."""
        of = self._of
        if history is None and await self._polls.offers(commands.POLL_POSITION):
            history = (await self._polls.ask(number, commands.NEXT, 0, 0)).history
        command = commands.stored_offset(of.name, of.stream, of.topic, number, group=of.is_group)
        found = await self._session.call(command)
        if found is not None:
            place = Place(number, commands.OFFSET, found.stored + 1, found.stored + 1, is_kept=True)
        elif self._ends is None:
            place = Place(number, *self._start)
        else:
            place = self._at_its_end(number)
        return self._histories.place(place, history)

    async def may_store(self, place: Place, offset: int) -> bool:
        """Whether the stored offset is still where the consumer left it, or at `offset`, as a store whose answer was
        lost has left it. A membership that has begun anew asks: another member may have had the partition meanwhile,
        and stored more."""
        if not self.rejoined:
            return True
        of = self._of
        command = commands.stored_offset(of.name, of.stream, of.topic, place.partition, group=of.is_group)
        found = await self._session.call(command)
        return (0 if found is None else found.stored + 1) in (place.resumes, offset + 1)

    def _at_its_end(self, number: int) -> Place:
        """Where it began at the latest. A partition that came later has no such end, nor has a history that came later
        and was told, over however many connections: it is read from its first message."""
        end, history = (self._ends or {}).get(number, (None, None))
        if end is None or (history is not None and self._histories.has_ended(number, history)):
            return Place(number, commands.FIRST, 0)
        return Place(number, commands.OFFSET, end, is_kept=True)
