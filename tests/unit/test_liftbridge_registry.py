"""What the door knows of streams, and when it asks again for a name that it does not know."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from shardd.doors.door import Door
from shardd.doors.liftbridge import registry
from shardd.doors.liftbridge.registry import Registry
from shardd.protocol.liftbridge.requests import StreamInfo
from tests.support.on_loop import on_loop

STREAM = StreamInfo("s", "sub", "", 1, 2, 3, 4, 1, {})


class Worker:
    """Says which streams there are; `takes_s` until it does."""

    def __init__(self, *streams: StreamInfo) -> None:
        self.streams = [*streams]
        self.takes_s = 0.0
        self.asked = 0

    async def task(self, name: str, request: object, *, shard: int, kind: Any) -> Any:
        assert name == registry.ALL_STREAMS
        self.asked += 1
        await asyncio.sleep(self.takes_s)
        return [msgspec.Raw(msgspec.msgpack.encode(each)) for each in self.streams]


@on_loop
async def test_a_look_that_took_long_keeps_nobody_waiting_for_as_many_times_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker was stopped, or the machine was: a name that is gone since is told of as gone soon all the same."""
    monkeypatch.setattr(registry, "_FIND_MAX_S", 0.05)
    worker = Worker(STREAM)
    known = Registry(cast(Door, worker))
    worker.takes_s = 0.2
    await known.refresh()
    assert known._look_again_at_s - asyncio.get_running_loop().time() <= 0.05
    worker.takes_s, worker.streams = 0.0, []
    assert await known.find("s") is known.get("s") and worker.asked == 1, "it is known, so nobody is asked"
    await known.refresh()
    asked = worker.asked
    assert await known.find("s") is None and worker.asked == asked + 1


@on_loop
async def test_names_that_nobody_has_share_looks() -> None:
    worker = Worker(STREAM)
    known = Registry(cast(Door, worker))
    await known.refresh()
    found = await asyncio.gather(*(known.find(f"none{number}") for number in range(100)))
    assert found == [None] * 100 and worker.asked <= 3
    worker.streams.append(msgspec.structs.replace(STREAM, name="new", topic_id=9))
    assert (await known.find("new")) is known.get("new") is not None
