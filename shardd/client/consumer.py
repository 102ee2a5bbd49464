"""Reads messages and commits what was processed."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Literal, Self

from shardd.client import commands, statuses
from shardd.client.client import Client
from shardd.client.errors import AlreadyExistsError, ClientError, ClosedError, NotFoundError, ServerError, SettingsError
from shardd.client.link import Link
from shardd.client.messages import Message
from shardd.client.polls import Polls, is_gone
from shardd.client.positions import Place, Start, strategy_of
from shardd.client.session import Session
from shardd.client.wire import Identifier

Commit = Literal["after", "each", "manual"]
Changed = Callable[[tuple[int, ...]], None]
_PAUSE_MIN_S: Final = 0.005  # between rounds that brought nothing


class Consumer:
    """`async with Consumer(client, "stream", "topic", group="g") as consumer: async for message in consumer: ...`

    As a member of a `group` it reads the partitions that the group gives it; with a `name` all of the topic, or
    `partitions`. A message is done when the next one is asked for. `commit`: "after" stores what is done when the
    batch of the poll is through, "each" after each message, "manual" at `commit()`. So a message may come again after
    a crash, and none is left out. `start`: where nothing is stored (`positions.Start`). `on_assigned`, `on_revoked`:
    called with partitions of a group that came and went; of those that went nothing is handed out any more.

    Used by one task. Cancelling what waits loses nothing."""

    def __init__(
        self,
        client: Client,
        stream: Identifier,
        topic: Identifier,
        *,
        group: Identifier | None = None,
        name: Identifier | None = None,
        partitions: Iterable[int] | None = None,
        commit: Commit = "after",
        start: Start = "earliest",
        batch_messages: int = 1000,
        poll_interval_ms: float = 100.0,
        assignment_interval_ms: float = 1000.0,
        on_assigned: Changed | None = None,
        on_revoked: Changed | None = None,
    ) -> None:
        """`poll_interval_ms`: the longest pause while there is nothing, where the server cannot wait for all of it;
        `assignment_interval_ms`: how often it is asked which partitions there are."""
        if (group is None) == (name is None):
            raise SettingsError("a consumer has either a group or a name")
        if group is not None and partitions is not None:
            raise SettingsError("the group gives the partitions")
        if commit not in ("after", "each", "manual"):
            raise SettingsError(f"commit is after, each or manual, not {commit!r}")
        if batch_messages < 1 or poll_interval_ms <= 0 or assignment_interval_ms <= 0:
            raise SettingsError("batch_messages, poll_interval_ms or assignment_interval_ms is out of range")
        self._session = Session(client.settings, self._opened)
        self._stream, self._topic = stream, topic
        self._group = group is not None
        self._name: Identifier = group if group is not None else name if name is not None else ""
        self._polls = Polls(self._session, self._name, stream, topic, group=self._group)
        self._fixed = None if partitions is None else tuple(partitions)
        self._commit: Commit = commit
        self._start = strategy_of(start)
        self._count = batch_messages
        self._poll_interval_s, self._assignment_interval_s = poll_interval_ms / 1000, assignment_interval_ms / 1000
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._places: dict[int, Place] = {}
        self._turn: deque[int] = deque()
        self._asked_at = float("-inf")  # which partitions there are
        self._rejoined = False
        self._batch: deque[Message] = deque()
        self._current: Message | None = None  # handed out, not done
        self._paused: set[int] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        else:
            self._current = None  # it was not processed
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Never ends by itself. ClientError."""
        if self._closed:
            raise StopAsyncIteration
        return await self.get()

    # ---- messages ----

    async def get(self) -> Message:
        """The next message; the one before is done."""
        self._finish()
        if self._commit == "each" or (self._commit == "after" and not self._batch):
            await self.commit()
        while not self._batch:
            found = await self._poll_some()  # `_lose` makes another deque meanwhile
            self._batch.extend(found)
        self._current = self._batch.popleft()
        return self._current

    async def get_batch(self) -> list[Message]:
        """The next messages of one partition, at least one; those before are done. They are done together."""
        self._finish()
        if self._commit != "manual":
            await self.commit()
        while not self._batch:
            found = await self._poll_some()  # `_lose` makes another deque meanwhile
            self._batch.extend(found)
        batch = list(self._batch)
        self._batch.clear()
        self._current = batch[-1]
        return batch

    def _finish(self) -> None:
        """What was handed out last is done."""
        if self._current is not None:
            place = self._places.get(self._current.partition)
            if place is not None:
                place.done = self._current.offset
            self._current = None

    async def commit(self) -> None:
        """Stores what is done. A message that was handed out last is not: `done()` says that it is."""
        for place in list(self._places.values()):
            offset = place.to_store()
            if offset is None:
                continue
            command = commands.store_offset(
                self._name, self._stream, self._topic, place.partition, offset, group=self._group
            )
            try:
                await self._session.call(command)
                place.store(offset)
            except ServerError as error:
                if error.status == statuses.OFFSET_BEHIND_THE_END:
                    place.done = place.stored  # a purge took what was done
                elif error.status in (
                    statuses.OFFSET_NOT_RESOLVED,
                    statuses.MEMBER_NOT_FOUND,
                    statuses.PARTITION_NOT_FOUND,
                ):
                    self._lose([place.partition])  # another member has it, and gets what was not stored again
                else:
                    raise

    def done(self) -> None:
        """The message that was handed out last is processed; the next `commit` stores it."""
        self._finish()

    async def commit_to(self, message: Message) -> None:
        """Stores that its partition is done up to this message. Those of a batch behind it are not, and do not come
        again before another consumer reads."""
        place = self._places.get(message.partition)
        if place is not None:
            self._current, place.done = None, message.offset
            await self.commit()

    # ---- where it reads ----

    @property
    def partitions(self) -> tuple[int, ...]:
        """Those it reads, by id."""
        return tuple(sorted(self._places))

    def pause(self, *partitions: int) -> None:
        """Nothing more of these (none given: of all that it has) until `resume`. What is read already still comes."""
        self._paused |= set(partitions or self._places)

    def resume(self, *partitions: int) -> None:
        self._paused -= set(partitions or self._paused)

    async def seek(self, start: Start, *partitions: int) -> None:
        """Reads on at `start` in these partitions (none given: in all that it has). What was read and not handed out
        is dropped. SettingsError."""
        strategy, value = strategy_of(start)
        await self._assign()
        for number in partitions or tuple(self._places):
            place = self._places.get(number)
            if place is None:
                raise SettingsError(f"this consumer does not have partition {number}")
            place.seek(strategy, value)
        self._batch = deque(each for each in self._batch if partitions and each.partition not in partitions)

    # ---- polling ----

    async def _poll_some(self) -> list[Message]:
        """One round over the partitions, until one of them brings something; behind one that does not it waits."""
        pause = _PAUSE_MIN_S
        while True:
            if self._closed:
                raise ClosedError("this consumer is closed")
            await self._assign()
            for _ in range(len(self._turn)):
                number = self._turn[0]
                self._turn.rotate(-1)
                place = self._places.get(number)
                if place is None or number in self._paused:
                    continue
                messages = await self._poll(place)
                if messages:
                    return messages
                if self._rejoined:
                    break
            messages = await self._wait(pause)
            if messages:
                return messages
            pause = min(2 * pause, self._poll_interval_s)

    async def _wait(self, pause_s: float) -> list[Message]:
        """At the server, where it can wait, else here. What ends too early is followed by the rest of the pause."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        left_s = min(self._polls.wait_max_s, self._asked_at + self._assignment_interval_s - began_s)
        self._turn.rotate(-1)
        places = [self._places[number] for number in self._turn if number not in self._paused]
        found: list[Message] = []
        if places and left_s > 0 and not self._rejoined and await self._polls.may_wait():
            try:
                found = await self._wait_there(places, left_s, pause_s)
            except ServerError as error:
                if not self._polls.may_not_wait(error):
                    raise
        if not found:
            await asyncio.sleep(max(0.0, began_s + pause_s - loop.time()))
        return found

    async def _wait_there(self, places: list[Place], left_s: float, pause_s: float) -> list[Message]:
        """For all partitions of a member at once, or for the only one, where the server's book says what is next. Else
        for one after the other, and not so long that a purge could be missed."""
        all_next = all(place.is_next for place in places)
        if all_next and len(places) == 1:
            return await self._poll_next(places[0].partition, left_s)
        if all_next and self._group and len(places) == len(self._places):
            return await self._poll_next(None, left_s)
        return await self._poll(places[0], min(left_s, self._poll_interval_s if len(places) == 1 else pause_s))

    async def _poll_next(self, partition: int | None, wait_s: float) -> list[Message]:
        try:
            polled = await self._polls.ask(partition, commands.NEXT, 0, self._count, wait_s)
        except ServerError as error:
            if error.status not in (statuses.MEMBER_NOT_FOUND, statuses.PARTITION_NOT_FOUND):
                raise
            return []  # as the next round will see
        place, messages = self._places.get(polled.partition), polled.messages
        if self._rejoined or not messages:
            return []
        if place is None:
            self._asked_at = float("-inf")  # it has just come
            return []
        if messages[0].offset < place.value:
            return []  # a purge, or somebody else has changed the book: the next round sees what it is
        place.read_to(messages[-1].offset)
        return messages

    async def _poll(self, place: Place, wait_s: float = 0.0) -> list[Message]:
        if place.strategy == commands.LAST:
            place.read_to(await self._polls.last_offset(place.partition))
        try:
            polled = await self._polls.ask(place.partition, place.strategy, place.value, self._count, wait_s)
        except ServerError as error:
            if self._group and error.status == statuses.MEMBER_NOT_FOUND:
                self._rejoined = True
                return []
            if error.status == statuses.PARTITION_NOT_FOUND and self._fixed is None:
                self._lose([place.partition])
                return []
            raise
        if self._rejoined:
            return []  # the answer of another membership
        if self._group and is_gone(place, polled):
            self._lose([place.partition])
            self._asked_at = float("-inf")
            return []
        if polled.messages:
            place.read_to(polled.messages[-1].offset)
        elif place.was_read and polled.current_offset + 1 < place.value:
            place.seek(commands.FIRST, 0)  # a purge: offsets begin anew
        return polled.messages

    # ---- which partitions ----

    async def _opened(self, link: Link) -> None:
        """A new connection is a new member. A group that is missing is made."""
        if not self._group:
            return
        until = self._session.until(None)
        join = commands.join_group(self._stream, self._topic, self._name)
        try:
            await link.ask(join.code, join.payload, until)
        except NotFoundError as error:
            if error.status != statuses.GROUP_NOT_FOUND or not isinstance(self._name, str):
                raise
            create = commands.create_group(self._stream, self._topic, self._name)
            with contextlib.suppress(AlreadyExistsError):
                await link.ask(create.code, create.payload, until)
            await link.ask(join.code, join.payload, until)
        self._rejoined = True

    async def _assign(self) -> None:
        """Asks for the partitions when it is time; a member of a new connection begins at what is stored."""
        loop = asyncio.get_running_loop()
        if self._rejoined:
            self._rejoined = False
            self._lose(list(self._places))
            self._asked_at = float("-inf")
        if loop.time() - self._asked_at < self._assignment_interval_s:
            return
        wanted = await (self._of_group() if self._group else self._of_topic())
        if self._rejoined:
            return  # on the way; asked again by the next round
        self._asked_at = loop.time()
        if not self._group:  # a member keeps what it is about to hand over, until a poll or a commit says otherwise
            self._lose([number for number in self._places if number not in wanted])
        come = sorted(wanted - set(self._places))
        for number in come:
            place = await self._placed(number)
            if self._rejoined:
                return
            self._places[number] = place
            self._turn.append(number)
        if come and self._group and self._on_assigned is not None:
            self._on_assigned(tuple(come))

    async def _of_topic(self) -> set[int]:
        if self._fixed is not None:
            return set(self._fixed)
        topic = await self._session.call(commands.topic(self._stream, self._topic))
        if topic is None:
            raise NotFoundError(statuses.TOPIC_NOT_FOUND)
        return set(range(topic.partitions_count))

    async def _of_group(self) -> set[int]:
        """Polls without a partition take those of the member in turn: one of no message tells which it would be."""
        found: set[int] = set()
        while True:
            try:
                polled = await self._polls.ask(None, commands.NEXT, 0, 0)
            except ServerError as error:
                if error.status != statuses.MEMBER_NOT_FOUND:
                    raise
                await self._session.call(commands.join_group(self._stream, self._topic, self._name))
                self._rejoined = True
                return set()
            if polled.partition in found:
                break
            found.add(polled.partition)
        if found == {0}:  # or none at all: the answer is the same
            group = await self._session.call(commands.group(self._stream, self._topic, self._name))
            if group is None or not any(member.partitions == (0,) for member in group.members):
                return set()
        return found

    async def _placed(self, number: int) -> Place:
        command = commands.stored_offset(self._name, self._stream, self._topic, number, group=self._group)
        found = await self._session.call(command)
        if found is None:
            return Place(number, *self._start)
        return Place(number, commands.OFFSET, found.stored + 1, found.stored + 1)

    def _lose(self, numbers: list[int]) -> None:
        """What was read of them and not handed out is dropped: another member gets it."""
        gone = set(numbers) & set(self._places)
        if not gone:
            return
        for number in gone:
            del self._places[number]
            self._turn.remove(number)
        self._batch = deque(each for each in self._batch if each.partition not in gone)
        if self._group and self._on_revoked is not None:
            self._on_revoked(tuple(sorted(gone)))

    async def close(self) -> None:
        """Commits what is done unless that is manual, leaves the group and closes the connection."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._commit != "manual":
                with contextlib.suppress(ClientError):  # what was not stored comes again
                    await self.commit()
        finally:
            await self._session.close()
