"""Cursors: positions that clients keep at the server. The truth is the log of the stream `__cursors`, which clients may
read; this door reads it when it starts, and appends to it whatever is set.

    key of a record    "cursorId,stream,partition"
    its value          protobuf: 1 stream string, 2 partition int32, 3 cursorId string, 4 offset int64

    its headers        of a cursor that a user has set: shardd.owner, shardd.used_us, decimal

The parts of a key are not escaped, so it names nothing: a cursor is known by the three parts in the value. A record
with the offset -1 removes its cursor: clients get -1 for a cursor that there is not. The log is kept by number of
messages; when far more records than cursors have been written, those that are alive are written again, so that the
oldest records may go.

Cursors have owners, and users have shares (docs/adr/0137-cursors-have-owners.md).
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from google.protobuf.message import DecodeError

from shardd.doors.door import Door
from shardd.doors.liftbridge.cursor_table import NO_OWNER, UNSET, Cursor, CursorTable, Kept
from shardd.doors.liftbridge.delivery import varint
from shardd.doors.liftbridge.internal import InternalLog
from shardd.doors.liftbridge.live_users import LiveUsers
from shardd.doors.liftbridge.turns import Turns
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge.api_messages import SetCursorRequest
from shardd.protocol.liftbridge.records import LiftbridgeMessage

STREAM: Final = "__cursors"
CURSORS_MAX: Final = 65_536
NAME_BYTES_MAX: Final = 1_024  # of a stream and a cursor, each
# Written to a partition since all that are alive were: then they are written again. What is alive is always among the
# newest (4 + 1 + 1) * CURSORS_MAX records; CURSOR_RECORDS_MAX (shardd/protocol/liftbridge/requests.py) are kept.
REWRITE_RECORDS: Final = 65_536
_REWRITE_FACTOR: Final = 4
_BATCH: Final = 512
_USE_WRITTEN_US: Final = 86_400 * 10**6  # a fetch is written when what is written is older
_REPORT_INTERVAL_S: Final = 10.0
_OWNER: Final = "shardd.owner"
_USED_US: Final = "shardd.used_us"
_DIGITS_MAX: Final = 20  # of a number of 64 bits
_log = logging.getLogger(__name__)


class NoRoomError(Exception):
    """There is no room for another cursor; a sentence."""


class Cursors:
    """Loop thread only. `partitions` 0: there are none, the stream does not exist."""

    def __init__(self, door: Door, partitions: int) -> None:
        self.partitions = partitions
        self._table = CursorTable(CURSORS_MAX)
        self._users = LiveUsers(door, lambda users, index: self._table.settle(users, index))
        self._removals = _Removals()
        self._logs = [InternalLog(door, STREAM, number) for number in range(partitions)]
        self._written = [0] * partitions  # since all that are alive were written
        self._turns = [Turns() for _ in range(partitions)]
        self._newest_us = 0  # of all uses: times never go back

    def __len__(self) -> int:
        return len(self._table)

    async def load(self) -> None:
        """ShardError, WorkerLostError."""
        self._table = CursorTable(CURSORS_MAX)
        without_place: list[Cursor] = []
        for number, log in enumerate(self._logs):
            self._written[number] = 0
            async for message in log.read():
                self._written[number] += 1
                said = decoded(message.value)
                if said is None:
                    continue
                if said[1] == UNSET:
                    self._table.drop(said[0])
                    continue
                kept = _kept(said[1], message.headers)
                self._table.put(said[0], kept)
                self._newest_us = max(self._newest_us, kept.used_us)
                if len(self._table) > 2 * CURSORS_MAX:
                    await self._users.look()
                    without_place += self._table.trim()
        await self._users.look()
        without_place += self._table.trim()
        unset = {cursor for cursor in without_place if cursor not in self._table}
        if unset:
            _log.warning("%d cursors in the log have no place: those of users that have the most", len(unset))
            await self._write_unset(unset)
        if len(self._table):
            _log.info("%d cursors", len(self._table))

    async def _write_unset(self, cursors: Collection[Cursor]) -> None:
        """A later start finds none of them, however much room it has. The cursors that are kept are written again
        when that is due, as these records push them towards the end of the log, too."""
        for number in range(self.partitions):
            try:
                for some in _batches([each for each in cursors if partition_of(each, self.partitions) == number]):
                    await self._append(some[0], [encoded(each, UNSET) for each in some])
                    await self._rewrite_when_due(some[0])
            except (ShardError, WorkerLostError) as error:
                _log.warning("cursors without a place stay in the log: %s", error)

    async def get(self, cursor: Cursor) -> int:
        """-1: it was never set, or there is no such cursor any more."""
        kept = self._table.get(cursor)
        if kept is None:
            return UNSET
        self._table.use(cursor, self._now_us())
        if kept.owner != NO_OWNER and kept.used_us - kept.written_us > _USE_WRITTEN_US:
            await self._write_use(cursor, kept)
        return kept.offset

    async def set(self, cursor: Cursor, offset: int, owner: int) -> None:
        """When it is in the log. The cursor counts for `owner`; -1 removes it. NoRoomError, ShardError,
        WorkerLostError."""
        if offset == UNSET:
            await self._remove(cursor)
            return
        while not await self._is_set(cursor, offset, owner):
            """It was removed for another one meanwhile, and is a new one now."""

    async def _is_set(self, cursor: Cursor, offset: int, owner: int) -> bool:
        turns = self._turns[partition_of(cursor, self.partitions)]  # what is set later is later in the log
        if cursor in self._table:
            return await turns.take(lambda: self._put(cursor, offset, owner, is_new=False))
        await self._take_place(owner)
        return await turns.take(
            lambda: self._put(cursor, offset, owner, is_new=True), lambda: self._table.release(owner)
        )

    async def _put(self, cursor: Cursor, offset: int, owner: int, *, is_new: bool) -> bool:
        """In a turn."""
        if not is_new and cursor not in self._table:
            return False
        now_us = self._now_us()
        kept = Kept(offset, owner, now_us, now_us)
        await self._append(cursor, [_record(cursor, kept)])
        self._table.put(cursor, kept)
        await self._rewrite_when_due(cursor)
        return True

    async def _take_place(self, owner: int) -> None:
        """For one cursor more, until it is released. Cursors of users that are gone make room. NoRoomError, ShardError,
        WorkerLostError."""
        for looked in (False, True):
            while self._table.has_share(owner):
                if self._table.reserve(owner):
                    return
                longest_unused = self._table.take_longest_unused()
                if longest_unused is None:
                    break
                await self._make_room(longest_unused)
            if not looked:
                await self._users.look()
        has = f"there are {len(self._table)}"
        if count := self._table.count_of(owner):
            has = f"this user has {count}, and may have as many as are left free"
        raise NoRoomError(f"There is no room for another cursor: {has}. Set one that is not needed to -1")

    async def _make_room(self, cursor: Cursor) -> None:
        kept = self._table.get(cursor)
        try:
            if await self._remove(cursor, only=kept):
                self._removals.count()
        finally:
            self._table.give_back(cursor)

    async def _remove(self, cursor: Cursor, only: Kept | None = None) -> bool:
        """Whether it was there. `only`: nothing happens when it has been set since. ShardError, WorkerLostError."""
        return await self._turns[partition_of(cursor, self.partitions)].take(lambda: self._drop(cursor, only))

    async def _drop(self, cursor: Cursor, only: Kept | None) -> bool:
        """In a turn. A cursor that is not there has a record, too: one that could not be set may be in the log."""
        kept = self._table.get(cursor)
        if only is not None and kept is not only:
            return False
        await self._append(cursor, [encoded(cursor, UNSET)])
        self._table.drop(cursor)
        await self._rewrite_when_due(cursor)
        return kept is not None

    async def _write_use(self, cursor: Cursor, kept: Kept) -> None:
        """A restart knows it then. Without that the fetch is as good."""
        try:
            await self._turns[partition_of(cursor, self.partitions)].take(lambda: self._put_use(cursor, kept))
        except (ShardError, WorkerLostError) as error:
            _log.debug("the use of a cursor is written with the next fetch: %s", error)

    async def _put_use(self, cursor: Cursor, kept: Kept) -> None:
        """In a turn."""
        if self._table.get(cursor) is kept and kept.used_us - kept.written_us > _USE_WRITTEN_US:
            await self._append(cursor, [_record(cursor, kept)])
            kept.written_us = kept.used_us
            await self._rewrite_when_due(cursor)

    async def _append(self, cursor: Cursor, records: list[LiftbridgeMessage]) -> None:
        """In a turn. `records` are of one partition, as `cursor` is. Records whose append fails may be in the log all
        the same, and count."""
        number = partition_of(cursor, self.partitions)
        self._written[number] += len(records)
        await self._logs[number].append(records)

    async def _rewrite_when_due(self, cursor: Cursor) -> None:
        """In a turn."""
        number = partition_of(cursor, self.partitions)
        if self._written[number] >= max(REWRITE_RECORDS, _REWRITE_FACTOR * len(self._table)):
            try:
                await self._write_again(number)
            except (ShardError, WorkerLostError) as error:
                _log.warning("cursors are written again with the next one: %s", error)

    async def _write_again(self, number: int) -> None:
        """All cursors of a partition, behind whatever it has."""
        alive = [each for each, _ in self._table.items() if partition_of(each, self.partitions) == number]
        for some in _batches(alive):
            kept = [(each, found) for each in some if (found := self._table.get(each)) is not None]
            await self._logs[number].append([_record(*each) for each in kept])
            for _, found in kept:
                found.written_us = found.used_us
        self._written[number] = len(alive)

    def _now_us(self) -> int:
        """A clock that is set back makes no use older than one before."""
        self._newest_us = max(self._newest_us, time.time_ns() // 1000)
        return self._newest_us


class _Removals:
    """A line of the log now and then, not one for each cursor. Loop thread only."""

    def __init__(self) -> None:
        self._new = 0
        self._next_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def count(self) -> None:
        self._new += 1
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time(), self._next_at_s), self._report)

    def _report(self) -> None:
        self._timer = None
        self._next_at_s = asyncio.get_running_loop().time() + _REPORT_INTERVAL_S
        words = "%d cursors of deleted users removed, the longest unused first: others needed the places"
        _log.warning(words, self._new)
        self._new = 0


def key_of(cursor: Cursor) -> bytes:
    return f"{cursor.id},{cursor.stream},{cursor.partition}".encode()


def partition_of(cursor: Cursor, partitions: int) -> int:
    """As clients compute it."""
    return zlib.crc32(key_of(cursor)) % partitions


def encoded(cursor: Cursor, offset: int, headers: Mapping[str, bytes] | None = None) -> LiftbridgeMessage:
    parts = [_text(b"\x0a", cursor.stream)] if cursor.stream else []
    if cursor.partition:
        parts.append(b"\x10" + varint(cursor.partition))
    parts.append(_text(b"\x1a", cursor.id))
    if offset:
        parts.append(b"\x20" + varint(offset))
    return LiftbridgeMessage(b"".join(parts), key=key_of(cursor), headers=headers or {})


def decoded(value: bytes) -> tuple[Cursor, int] | None:
    """None: no cursor. A SetCursorRequest has the same fields."""
    try:
        said = SetCursorRequest.FromString(value)
    except DecodeError:
        return None
    return (Cursor(said.stream, said.partition, said.cursorId), said.offset) if said.stream and said.cursorId else None


def _record(cursor: Cursor, kept: Kept) -> LiftbridgeMessage:
    if kept.owner == NO_OWNER:
        return encoded(cursor, kept.offset)
    return encoded(cursor, kept.offset, {_OWNER: b"%d" % kept.owner, _USED_US: b"%d" % kept.used_us})


def _kept(offset: int, headers: Mapping[str, bytes]) -> Kept:
    """What earlier versions and imports have written has no owner."""
    used_us = _number(headers.get(_USED_US, b""))
    return Kept(offset, _number(headers.get(_OWNER, b"")), used_us, used_us)


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) <= _DIGITS_MAX else 0


def _batches(cursors: list[Cursor]) -> Iterator[list[Cursor]]:
    for at in range(0, len(cursors), _BATCH):
        yield cursors[at : at + _BATCH]


def _text(tag: bytes, text: str) -> bytes:
    data = text.encode()
    return tag + varint(len(data)) + data
