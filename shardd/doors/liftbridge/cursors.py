"""Cursors: positions that clients keep at the server. The truth is the log of the stream `__cursors`, which clients may
read; this door reads it when it starts, and appends to it whatever is set.

    key of a record    "cursorId,stream,partition"
    its value          protobuf: 1 stream string, 2 partition int32, 3 cursorId string, 4 offset int64

The parts of a key are not escaped, so it names nothing: a cursor is known by the three parts in the value. The log is
kept by number of messages; when far more records than cursors have been written, those that are alive are written
again, so that the oldest records may go.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from shardd.doors.door import Door
from shardd.doors.liftbridge.delivery import varint
from shardd.doors.liftbridge.internal import InternalLog
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge import api
from shardd.protocol.liftbridge.records import NewMessage

STREAM: Final = "__cursors"
CURSORS_MAX: Final = 65_536
NAME_BYTES_MAX: Final = 1_024  # of a stream and a cursor, each
# Written to a partition since all that are alive were: then they are written again. What is alive is always among the
# newest (4 + 1 + 1) * CURSORS_MAX records; CURSOR_RECORDS_MAX (shardd/protocol/liftbridge/requests.py) are kept.
REWRITE_RECORDS: Final = 65_536
_REWRITE_FACTOR: Final = 4
_BATCH: Final = 512
_log = logging.getLogger(__name__)


class Cursor(NamedTuple):
    """What a cursor is known by."""

    stream: str
    partition: int
    id: str


class NoRoomError(Exception):
    """There are CURSORS_MAX."""


class Cursors:
    """Loop thread only. `partitions` 0: there are none, the stream does not exist."""

    def __init__(self, door: Door, partitions: int) -> None:
        self.partitions = partitions
        self._offsets: dict[Cursor, int] = {}
        self._logs = [InternalLog(door, STREAM, number) for number in range(partitions)]
        self._written = [0] * partitions  # since all that are alive were written
        self._writing = [asyncio.Lock() for _ in range(partitions)]

    def __len__(self) -> int:
        return len(self._offsets)

    async def load(self) -> None:
        """ShardError, WorkerLostError."""
        for number, log in enumerate(self._logs):
            async for message in log.read():
                self._written[number] += 1
                found = decoded(message.value)
                if found is not None and (len(self._offsets) < CURSORS_MAX or found[0] in self._offsets):
                    self._offsets[found[0]] = found[1]
        if self._offsets:
            _log.info("%d cursors", len(self._offsets))

    def get(self, cursor: Cursor) -> int:
        """-1: it was never set."""
        return self._offsets.get(cursor, -1)

    async def set(self, cursor: Cursor, offset: int) -> None:
        """When it is in the log. NoRoomError, ShardError, WorkerLostError."""
        if cursor not in self._offsets and len(self._offsets) >= CURSORS_MAX:
            raise NoRoomError
        number = partition_of(cursor, self.partitions)
        async with self._writing[number]:  # what is set later is later in the log
            await self._logs[number].append([encoded(cursor, offset)])
            self._offsets[cursor] = offset
            self._written[number] += 1
            if self._written[number] >= max(REWRITE_RECORDS, _REWRITE_FACTOR * len(self._offsets)):
                try:
                    await self._write_again(number)
                except (ShardError, WorkerLostError) as error:
                    _log.warning("cursors are written again with the next one: %s", error)

    async def _write_again(self, number: int) -> None:
        """All cursors of a partition, behind whatever it has."""
        alive = [each for each in self._offsets if partition_of(each, self.partitions) == number]
        for some in _batches(alive):
            await self._logs[number].append([encoded(each, self._offsets[each]) for each in some])
        self._written[number] = len(alive)


def key_of(cursor: Cursor) -> bytes:
    return f"{cursor.id},{cursor.stream},{cursor.partition}".encode()


def partition_of(cursor: Cursor, partitions: int) -> int:
    """As clients compute it."""
    return zlib.crc32(key_of(cursor)) % partitions


def encoded(cursor: Cursor, offset: int) -> NewMessage:
    parts = [_text(b"\x0a", cursor.stream)] if cursor.stream else []
    if cursor.partition:
        parts.append(b"\x10" + varint(cursor.partition))
    parts.append(_text(b"\x1a", cursor.id))
    if offset:
        parts.append(b"\x20" + varint(offset))
    return NewMessage(b"".join(parts), key=key_of(cursor))


def decoded(value: bytes) -> tuple[Cursor, int] | None:
    """None: no cursor. A SetCursorRequest has the same fields."""
    try:
        said: Any = api.message_class("SetCursorRequest").FromString(value)
    except DecodeError:
        return None
    return (Cursor(said.stream, said.partition, said.cursorId), said.offset) if said.stream and said.cursorId else None


def _batches(cursors: list[Cursor]) -> Iterator[list[Cursor]]:
    for at in range(0, len(cursors), _BATCH):
        yield cursors[at : at + _BATCH]


def _text(tag: bytes, text: str) -> bytes:
    data = text.encode()
    return tag + varint(len(data)) + data
