"""Cursors over a log that forgets its oldest records: whatever is alive is written again in time."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from shardd.doors.liftbridge import cursors as module
from shardd.doors.liftbridge.cursors import Cursor, Cursors, NoRoomError
from shardd.protocol.liftbridge.requests import InternalPoll, InternalPublish
from shardd.protocol.record_layout import INDEX_ENTRY, RECORD_HEAD


class ForgetfulDoor:
    """Its workers keep so many records of a partition."""

    def __init__(self, kept: int) -> None:
        self.logs: dict[int, deque[tuple[int, bytes]]] = {}
        self._kept = kept
        self._ends: dict[int, int] = {}

    async def task(self, name: str, request: InternalPublish | InternalPoll, **_more: object) -> Any:
        await asyncio.sleep(0)
        log = self.logs.setdefault(request.partition, deque(maxlen=self._kept))
        if isinstance(request, InternalPoll):
            found = [each for each in log if each[0] >= request.offset][: request.count]
            newest = log[-1][0] if log else 0
            return {"count": len(found), "current_offset": newest, "records": b"".join(data for _, data in found)}
        at = INDEX_ENTRY.size * request.count
        for _ in range(request.count):
            checksum, id_, _, timestamp, origin, headers, payload, reserved = RECORD_HEAD.unpack_from(request.batch, at)
            end = at + RECORD_HEAD.size + headers + payload
            offset = self._ends.get(request.partition, 0)
            self._ends[request.partition] = offset + 1
            head = RECORD_HEAD.pack(checksum, id_, offset, timestamp, origin, headers, payload, reserved)
            log.append((offset, head + request.batch[at + RECORD_HEAD.size : end]))
            at = end
        return None


@pytest.mark.parametrize("partitions", [1, 3])
def test_cursors_that_are_alive_outlive_the_records_that_set_them(
    monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    monkeypatch.setattr(module, "REWRITE_RECORDS", 50)

    async def scenario() -> None:
        door: Any = ForgetfulDoor(kept=300)
        cursors = Cursors(door, partitions)
        expected = {}
        for number in range(3_000):
            cursor = Cursor("s", number % 7, "often") if number >= 20 else Cursor("s", number, "once")
            await cursors.set(cursor, number)
            expected[cursor] = number
        again = Cursors(door, partitions)
        await again.load()
        assert {cursor: again.get(cursor) for cursor in expected} == expected
        assert len(again) == len(expected) and again.get(Cursor("s", 0, "never")) == -1

    asyncio.run(scenario())


def test_a_log_that_is_not_written_again_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other test would find."""
    monkeypatch.setattr(module, "REWRITE_RECORDS", 10**9)

    async def scenario() -> None:
        door: Any = ForgetfulDoor(kept=300)
        cursors = Cursors(door, 1)
        for number in range(1_000):
            await cursors.set(Cursor("s", 0, "once" if number == 0 else "often"), number)
        again = Cursors(door, 1)
        await again.load()
        assert again.get(Cursor("s", 0, "once")) == -1

    asyncio.run(scenario())


def test_there_is_room_for_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CURSORS_MAX", 3)

    async def scenario() -> None:
        door: Any = ForgetfulDoor(kept=300)
        cursors = Cursors(door, 1)
        for number in range(3):
            await cursors.set(Cursor("s", number, "c"), 1)
        with pytest.raises(NoRoomError):
            await cursors.set(Cursor("s", 3, "c"), 1)
        await cursors.set(Cursor("s", 0, "c"), 2)
        assert cursors.get(Cursor("s", 0, "c")) == 2

    asyncio.run(scenario())
