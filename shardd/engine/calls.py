"""Calls of Python on partitions, here or on any other shard: `append`, `read` and `store_offset` are awaited on the
loop thread; their ends come with the events of a turn (native/src/engine/calls.h).

Statuses are the numbers of the one error taxonomy. Nothing here decides who may do what: `shardd.service` does.
Cancelling what is awaited gives everything back; what was begun may still be carried out. What the owner has not
answered by then keeps its place and its memory until it has: `GiveUp` is told, and told when that is over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import msgspec

from shardd.engine._native import (
    CALL_AGAIN,
    CALL_GONE,
    CALL_LAST_WINDOW,
    CALL_LET_GO,
    CALL_STATUS,
    CALL_WINDOW,
    OFFSET_CONSUMER,
    CallEvent,
)

ANSWERS_BYTES_MAX: Final = 268_435_456  # of answers of more than one window that are being put together
ENDS_PER_PASS: Final = 64  # of the loop
WAIT_MAX_MS: Final = 60_000  # of one wait
POLL_OFFSET: Final = 1  # the strategy
_NO_OFFSET: Final = (1 << 63) - 1  # no partition ever goes on there
COPIED_AT_ONCE_BYTES: Final = 262_144  # of a batch: the memory of the pool may be new, which costs more than the copy


class CallEngine(Protocol):
    """The part of the engine that carries calls out."""

    def call_append(
        self,
        owner: int,
        namespace: int,
        incarnation: int,
        count: int,
        batch: bytes,
        expected_offset: int,
        distinct_timestamps: bool,
        /,
    ) -> int: ...
    def call_prepare(
        self,
        owner: int,
        namespace: int,
        incarnation: int,
        count: int,
        batch: bytes,
        expected_offset: int,
        distinct_timestamps: bool,
        /,
    ) -> int: ...
    def call_fill(self, token: int, batch: bytes, bytes_max: int, /) -> bool: ...
    def call_read(
        self,
        owner: int,
        namespace: int,
        incarnation: int,
        strategy: int,
        value: int,
        count: int,
        kind: int,
        consumer: int,
        assignment: int,
        user: int,
        name: int,
        auto_commit: bool,
        /,
    ) -> int: ...
    def call_store(
        self,
        owner: int,
        namespace: int,
        incarnation: int,
        kind: int,
        consumer: int,
        offset: int,
        assignment: int,
        user: int,
        name: int,
        /,
    ) -> int: ...
    def call_wait(self, owner: int, namespace: int, incarnation: int, user_id: int, wait_ms: int, /) -> int: ...
    def call_next(self, token: int, /) -> None: ...
    def call_cancel(self, token: int, /) -> bool: ...


class TooManyCallsError(Exception):
    """Over a limit: of calls under way, of the bytes of their records, of answers. Nothing has happened."""


class OutcomeUnknownError(Exception):
    """The owner died, or the engine is closed: the call may have been carried out."""


class PlaceUnknownError(Exception):
    """The partition is not where it was looked for (any more, or yet). Nothing has happened."""


class Place(NamedTuple):
    """A partition and the shard that owns it: a later one in the same place is another incarnation."""

    shard: int
    namespace: int
    incarnation: int


class Reader(NamedTuple):
    """Whose stored offset a read goes on from and moves: kind and id as in `Engine.offset_get`. `assignment`: as a
    member of a group in that generation. `user`: the incarnation of the user for whom the entry counts, 0: for nobody.
    `name`: hash of the consumer's name, 0: it has none."""

    kind: int
    consumer: int
    assignment: int = 0
    user: int = 0
    name: int = 0


class Appended(msgspec.Struct, frozen=True):
    """What became of an append; everything but `status` only when that is 0.

    `messages_count`: less than were sent, or 0, where a topic stores each id once. `timestamp_us`: of the message at
    `base_offset`; with distinct timestamps the i-th behind it has `timestamp_us + i`.
    """

    status: int
    base_offset: int = 0
    timestamp_us: int = 0
    messages_count: int = 0


class Answer(msgspec.Struct, frozen=True):
    """What a read found. `records`: whole ones as they are stored, verified."""

    status: int
    current_offset: int = 0
    messages_count: int = 0
    records: bytes = b""


GiveUp = Callable[[int, int], Callable[[], None]]
"""A call of this task to a shard, with so many bytes of records, is cancelled and keeps its place. What it returns is
called when the place is free."""


def _count_nothing(_shard: int, _batch_bytes: int) -> Callable[[], None]:
    return lambda: None


class EngineCalls:
    """Lives on the loop thread."""

    def __init__(self, engine: CallEngine, give_up: GiveUp = _count_nothing) -> None:
        self._engine = engine
        self._give_up = give_up
        self._given_up: dict[int, Callable[[], None]] = {}
        self._waiting: dict[int, asyncio.Future[CallEvent]] = {}
        self._answers_bytes = 0
        self._closed = False
        self._told = 0  # ends in this pass of the loop
        self._late: deque[CallEvent] = deque()
        self._copying = asyncio.Lock()

    async def append(
        self,
        place: Place,
        count: int,
        batch: bytes,
        *,
        expected_offset: int | None = None,
        distinct_timestamps: bool = False,
    ) -> Appended:
        """Appends `count` messages, all or none; the answer comes at level durable when the device has them.

        `batch`: index entries and records (docs/protocol/messages.md#batch, behind the metadata); they are checked as
        those of every client. A large one is copied in slices: small ones that were begun later may be appended first.
        `expected_offset`: status 4102, and nothing is stored, when the partition goes on at another offset.
        `distinct_timestamps`: each message has one of its own, later than that of the message before it; it is its
        origin timestamp, too, where that is 0.
        """
        expected = -1
        if expected_offset is not None:
            expected = expected_offset if 0 <= expected_offset < _NO_OFFSET else _NO_OFFSET
        what = *place, count, batch, expected, distinct_timestamps
        if len(batch) <= COPIED_AT_ONCE_BYTES:
            event = await self._end(self._begun(self._engine.call_append(*what)), place.shard, len(batch))
        else:
            event = await self._end(self._begun(self._engine.call_prepare(*what)), place.shard, len(batch), batch)
        return Appended(event.status, event.current_offset, event.timestamp_us, event.messages_count)

    async def store_offset(self, place: Place, reader: Reader, offset: int) -> int:
        """Stores an offset; the status, at level durable when the device has it."""
        token = self._engine.call_store(
            *place, reader.kind, reader.consumer, offset, reader.assignment, reader.user, reader.name
        )
        return (await self._end(self._begun(token), place.shard)).status

    async def read(
        self,
        place: Place,
        reader: Reader,
        strategy: int,
        value: int,
        count: int,
        *,
        auto_commit: bool,
        bytes_max: int,
    ) -> Answer:
        """At most `count` messages and `bytes_max` bytes of records, but one message, however large it is.

        The engine tells the size of the whole answer with its first window. One that is too large is given up before
        anything is committed, and half of it is asked for.
        """
        while True:
            token = self._engine.call_read(*place, strategy, value, count, *reader, auto_commit)
            first = await self._end(self._begun(token), place.shard)
            if first.outcome in (CALL_STATUS, CALL_LAST_WINDOW):
                return Answer(first.status, first.current_offset, first.messages_count, first.records)
            if first.total_bytes > bytes_max and first.messages_count > 1:
                self._cancel(token, place.shard)
                count = min(first.messages_count // 2, max(1, first.messages_count * bytes_max // first.total_bytes))
                continue
            return await self._put_together(token, place.shard, first)

    async def wait(self, place: Place, user_id: int, offset: int, timeout_s: float) -> Answer:
        """Whether the partition has a message at or behind `offset`: `messages_count` is 1, or 0 and nothing was found
        when something happened there, what the user may do has changed, or the time is over. The records are not here.

        It waits as polls of connections do (docs/adr/0057-polls-that-wait.md) and is one of them for their limits.
        """
        waiting = self._begun(self._engine.call_wait(*place, user_id, min(int(timeout_s * 1000), WAIT_MAX_MS)))
        woken = self._expect(waiting, place.shard)
        try:
            found = await self._look(place, offset)  # after the wait has begun: a message in between ends it
            if found.status != 0 or found.messages_count:
                return found
            await self._outcome(waiting, woken, place.shard)
        finally:
            if self._waiting.pop(waiting, None) is not None:
                self._cancel(waiting, place.shard)
        return await self._look(place, offset)

    async def _look(self, place: Place, offset: int) -> Answer:
        token = self._begun(self._engine.call_read(*place, POLL_OFFSET, offset, 1, OFFSET_CONSUMER, 0, 0, 0, 0, False))
        first = await self._end(token, place.shard)
        if first.outcome == CALL_WINDOW:
            self._cancel(token, place.shard)
        return Answer(first.status, first.current_offset, first.messages_count)

    async def _put_together(self, token: int, shard: int, first: CallEvent) -> Answer:
        """The windows one after the other: the engine reads the next one when it is asked for it."""
        if self._answers_bytes + first.total_bytes > ANSWERS_BYTES_MAX and self._answers_bytes > 0:
            self._cancel(token, shard)
            raise TooManyCallsError
        self._answers_bytes += first.total_bytes
        try:
            event, records = first, [first.records]
            while event.outcome != CALL_LAST_WINDOW:
                try:
                    self._engine.call_next(token)
                except MemoryError:
                    self._cancel(token, shard)
                    raise
                event = await self._end(token, shard)
                if event.outcome == CALL_STATUS:
                    return Answer(event.status)
                records.append(event.records)
        finally:
            self._answers_bytes -= first.total_bytes
        return Answer(0, first.current_offset, first.messages_count, b"".join(records))

    def _begun(self, token: int) -> int:
        if token == 0:
            raise TooManyCallsError
        return token

    async def _copy(self, token: int, batch: bytes) -> None:
        """In slices, one batch after the other: the loop goes on between two of them."""
        async with self._copying:
            while self._engine.call_fill(token, batch, COPIED_AT_ONCE_BYTES):  # noqa: ASYNC110 - it is no wait
                await asyncio.sleep(0)

    def _cancel(self, token: int, shard: int, batch_bytes: int = 0) -> None:
        if self._engine.call_cancel(token):
            self._given_up[token] = self._give_up(shard, batch_bytes)

    async def _end(self, token: int, shard: int, batch_bytes: int = 0, batch: bytes = b"") -> CallEvent:
        """The next event of a call, which begins when `batch` is copied."""
        return await self._outcome(token, self._expect(token, shard), shard, batch_bytes, batch)

    def _expect(self, token: int, shard: int) -> asyncio.Future[CallEvent]:
        if self._closed:
            self._cancel(token, shard)
            raise OutcomeUnknownError
        waiting: asyncio.Future[CallEvent] = asyncio.get_running_loop().create_future()
        self._waiting[token] = waiting
        return waiting

    async def _outcome(
        self,
        token: int,
        waiting: asyncio.Future[CallEvent],
        shard: int,
        batch_bytes: int = 0,
        batch: bytes = b"",
    ) -> CallEvent:
        try:
            if batch:
                await self._copy(token, batch)
            event = await waiting
        except BaseException:
            self._cancel(token, shard, batch_bytes)  # it is unknown when it has ended
            raise
        finally:
            del self._waiting[token]
        if event.outcome == CALL_GONE:
            raise OutcomeUnknownError
        if event.outcome == CALL_AGAIN:
            raise PlaceUnknownError
        return event

    def ended(self, event: CallEvent) -> None:
        """One turn of the engine may end thousands of calls: who awaits them hears of it in slices."""
        if event.outcome == CALL_LET_GO:
            self._given_up.pop(event.token)()
            return
        if self._told < ENDS_PER_PASS:
            self._tell(event)
        else:
            self._late.append(event)
        if self._told == 1:
            asyncio.get_running_loop().call_soon(self._next_pass)

    def _tell(self, event: CallEvent) -> None:
        self._told += 1
        waiting = self._waiting.get(event.token)
        if waiting is not None and not waiting.done():  # otherwise it was cancelled meanwhile
            waiting.set_result(event)

    def _next_pass(self) -> None:
        self._told = 0
        while self._late and self._told < ENDS_PER_PASS:
            self._tell(self._late.popleft())
        if self._told:
            asyncio.get_running_loop().call_soon(self._next_pass)

    def close(self) -> None:
        """The worker stops: nobody hears how calls under way end."""
        self._closed = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(OutcomeUnknownError())

    def figures(self) -> dict[str, int]:
        return {
            "waiting": len(self._waiting),
            "given_up": len(self._given_up),
            "late_ends": len(self._late),
            "answers_bytes": self._answers_bytes,
        }
