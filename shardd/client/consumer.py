"""Reads messages and commits what was processed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Self

from shardd.client import commands, statuses
from shardd.client.client import Client
from shardd.client.errors import ClientError, ClosedError, DeadlineError, ServerError, SettingsError
from shardd.client.heartbeat import TIMEOUT_MS, Heartbeat
from shardd.client.history import Histories, Loss, OnLoss, OnReset, Reset
from shardd.client.marks import Verdict
from shardd.client.membership import Membership, Source, is_no_member, is_not_its_own
from shardd.client.messages import Message
from shardd.client.polls import BATCH_BYTES, Polls, is_gone
from shardd.client.positions import Place, Start, strategy_of
from shardd.client.session import NewConnectionError, Session
from shardd.client.wire import Identifier

Commit = Literal["after", "each", "manual"]
Changed = Callable[[tuple[int, ...]], None]
_PAUSE_MIN_S: Final = 0.005  # between rounds that brought nothing
_TURN_S: Final = 0.1  # a loop of `get` and plain work lets the event loop turn, and so PING


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
        on_reset: OnReset = "earliest",
        on_loss: OnLoss = "skip",
        when_reset: Callable[[Reset], None] | None = None,
        when_lost: Callable[[Loss], None] | None = None,
        batch_bytes: int = BATCH_BYTES,
        heartbeat_timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """`poll_interval_ms`: the longest pause while there is nothing, where the server cannot wait for all of it;
        `assignment_interval_ms`: how often it is asked which partitions there are; `batch_bytes`: of the messages of a
        poll, but one. `on_reset`: where it goes on when a partition was purged or made again; `on_loss`: what it does
        when messages are gone that it has not read, by retention or by damage; `when_reset`, `when_lost` are called.
        `heartbeat_timeout_ms`: after a longer silence, or block of the event loop, other members get its partitions."""
        if (group is None) == (name is None):
            raise SettingsError("a consumer has either a group or a name")
        if group is not None and partitions is not None:
            raise SettingsError("the group gives the partitions")
        if commit not in ("after", "each", "manual"):
            raise SettingsError(f"commit is after, each or manual, not {commit!r}")
        if batch_messages < 1 or not 0 < batch_bytes < 1 << 32 or poll_interval_ms <= 0 or assignment_interval_ms <= 0:
            raise SettingsError(
                "batch_messages, batch_bytes, poll_interval_ms or assignment_interval_ms is out of range"
            )
        self._session = Session(client.settings, lambda link: self._membership.opened(link))
        self._stream, self._topic = stream, topic
        self._group = group is not None
        self._name: Identifier = group if group is not None else name if name is not None else ""
        self._polls = Polls(self._session, self._name, stream, topic, group=self._group, bytes_max=batch_bytes)
        self._fixed = None if partitions is None else tuple(partitions)
        self._histories = Histories(f"{stream}/{topic}", on_reset, on_loss, when_reset, when_lost)
        source = Source(stream, topic, self._name, self._group, self._fixed)
        heartbeat = Heartbeat(heartbeat_timeout_ms)
        of = self._session, self._polls, self._histories, source
        self._membership = Membership(*of, strategy_of(start), heartbeat)
        self._commit: Commit = commit
        self._count = batch_messages
        self._poll_interval_s, self._assignment_interval_s = poll_interval_ms / 1000, assignment_interval_ms / 1000
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._places: dict[int, Place] = {}
        self._told: set[int] = set()  # of its places: those that `on_assigned` has heard of
        self._turn: deque[int] = deque()
        self._asked_at = float("-inf")  # which partitions there are
        self._batch: deque[Message] = deque()
        self._in_hand: Place | None = None  # whose `handed` is not done
        self._paused: set[int] = set()
        self._turned_at = time.monotonic()  # the event loop, by `get`
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        else:
            self._in_hand = None  # it was not processed
        await self.close()

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Coroutine[Any, Any, Message]:
        """Never ends by itself. ClientError."""
        return self._end() if self._closed else self.get()

    async def _end(self) -> Message:
        raise StopAsyncIteration

    # ---- messages ----

    async def get(self) -> Message:
        """The next message; the one before is done."""
        self._finish()
        if time.monotonic() - self._turned_at > _TURN_S:
            self._turned_at = await asyncio.sleep(0, time.monotonic())
        if self._commit == "each" or (self._commit == "after" and not self._batch):
            await self.commit()
        while not self._batch:
            found = await self._poll_some()  # `_lose` makes another deque meanwhile
            self._batch.extend(found)
        message = self._batch.popleft()
        self._hand_out(message)
        return message

    async def get_batch(self) -> list[Message]:
        """The next messages of one partition, at least one; those before are done. They are done together."""
        self._finish()
        if self._commit != "manual":
            await self.commit()
        while not self._batch:
            found = await self._poll_some()  # `_lose` makes another deque meanwhile
            self._batch.extend(found)
        batch, self._batch = list(self._batch), deque()
        self._hand_out(batch[-1])
        return batch

    def _finish(self) -> None:
        """What was handed out last is done."""
        place = self._in_hand
        if place is not None:
            place.done, self._in_hand = place.handed, None

    def _hand_out(self, last: Message) -> None:
        place = self._in_hand = self._places.get(last.partition)
        if place is not None:
            place.handed = last.offset

    async def commit(self) -> None:
        """Stores what is done. A message that was handed out last is not: `done()` says that it is."""
        for place in list(self._places.values()):
            if place is not self._places.get(place.partition):
                continue  # lost meanwhile
            try:
                await self._store(place)
            except ServerError as error:
                if error.status in (statuses.OFFSET_BEHIND_THE_END, statuses.OTHER_HISTORY):
                    place.done = place.stored  # a purge took what was done: the next poll sees it
                elif is_not_its_own(error):
                    is_deleted = error.status == statuses.GROUP_NOT_FOUND  # a group that follows begins anew
                    self._lose(list(self._places) if is_deleted else [place.partition])  # others get it again
                    if is_deleted and not self._closed:
                        await self._membership.join()
                else:
                    raise

    async def _store(self, place: Place) -> None:
        """Never on a connection on which what was read is not proven: behind a directory that was put back the offset
        means messages that were not read. New connections are tried for one deadline."""
        until = self._session.until(None)
        while (offset := place.to_store()) is not None:
            verdict = await self._histories.verdict(place, partial(self._polls.first_from, place.partition))
            if verdict is Verdict.OTHER:
                place.done = place.stored  # the next poll resets it
                return
            if verdict is Verdict.UNTOLD or not await self._membership.may_store(place, offset):
                self._lose([place.partition])
                return
            at = self._name, self._stream, self._topic, place.partition
            command = commands.store_offset(*at, offset, group=self._group, history=place.history)
            try:
                await self._session.call(command, fits=partial(self._histories.is_proven, place.partition))
            except NewConnectionError:
                if asyncio.get_running_loop().time() >= until:
                    raise DeadlineError("connections ended before the server said that the offset is stored") from None
                continue
            place.store(offset)
            self._histories.committed(place.partition)
            return

    def done(self) -> None:
        """The message that was handed out last is processed; the next `commit` stores it."""
        self._finish()

    async def commit_to(self, message: Message) -> None:
        """Stores that its partition is done up to this message. Those of a batch behind it are not, and do not come
        again before another consumer reads."""
        place = self._places.get(message.partition)
        if place is not None and message.offset <= place.handed:  # else it is of an earlier history
            self._in_hand, place.done = None, message.offset
            await self.commit()

    # ---- where it reads ----

    @property
    def lost(self) -> int:
        """Messages that were gone before it could read them."""
        return self._histories.lost

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
                if messages := await self._poll(place):
                    return messages
                if self._membership.rejoined:
                    break
            if messages := await self._wait(pause):
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
        if places and left_s > 0 and not self._membership.rejoined and await self._polls.may_wait():
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
            if not is_no_member(error) and error.status != statuses.PARTITION_NOT_FOUND:
                raise
            return []  # as the next round will see
        place, messages = self._places.get(polled.partition), polled.messages
        if self._membership.rejoined or not messages:
            return []
        if place is None:
            self._asked_at = float("-inf")  # it has just come
            return []
        if messages[0].offset != place.value and polled.history == place.history:
            return []  # a gap, or somebody else has changed the book: a poll at the place tells which
        return self._histories.take(place, polled)

    async def _poll(self, place: Place, wait_s: float = 0.0) -> list[Message]:
        try:
            await self._histories.prove(place, partial(self._polls.first_from, place.partition))
            if place.strategy == commands.LAST:
                await self._polls.read_to_end(place)
            polled = await self._polls.ask(place.partition, place.strategy, place.value, self._count, wait_s)
        except ServerError as error:
            if self._group and is_no_member(error):
                self._membership.rejoined = True
                return []
            if error.status == statuses.PARTITION_NOT_FOUND and self._fixed is None:
                self._lose([place.partition])
                return []
            raise
        if self._membership.rejoined:
            return []  # the answer of another membership
        if self._group and is_gone(place, polled):
            self._lose([place.partition])
            self._asked_at = float("-inf")
            return []
        return self._histories.take(place, polled)

    # ---- which partitions ----

    async def _assign(self) -> None:
        """Asks for the partitions when it is time; a member of a new connection begins at what is stored. What a
        cancelled call has not told the next one tells."""
        self._histories.raise_pending()
        loop, member = asyncio.get_running_loop(), self._membership
        if member.rejoined:
            member.rejoined = False
            self._lose(list(self._places))
            self._asked_at = float("-inf")
        if loop.time() - self._asked_at < self._assignment_interval_s:
            return
        wanted = await member.wanted()
        if member.rejoined:
            return  # on the way; asked again by the next round
        if not self._group:  # a member keeps what it is about to hand over, until a poll or a commit says otherwise
            self._lose([number for number in self._places if number not in wanted])
        for number in sorted(wanted.keys() - self._places.keys()):
            place = await member.placed(number, wanted[number])
            if member.rejoined:
                return
            self._places[number] = place
            self._turn.append(number)
        self._asked_at = loop.time()
        if come := sorted(self._places.keys() - self._told):
            self._told.update(come)
            if self._group and self._on_assigned is not None:
                self._on_assigned(tuple(come))
        self._histories.raise_pending()

    def _lose(self, numbers: list[int]) -> None:
        """What was read of them and not handed out is dropped: another member gets it."""
        gone = set(numbers) & set(self._places)
        if not gone:
            return
        if self._in_hand is not None and self._in_hand.partition in gone:
            self._in_hand = None
        for number in gone:
            self._histories.leave(self._places.pop(number))
            self._turn.remove(number)
        self._batch = deque(each for each in self._batch if each.partition not in gone)
        told = self._told & gone
        self._told -= gone
        if told and self._group and self._on_revoked is not None:
            self._on_revoked(tuple(sorted(told)))

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
