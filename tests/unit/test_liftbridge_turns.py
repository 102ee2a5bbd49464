"""Questions of the door for Liftbridge that few may ask at a time: users take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardd.doors.liftbridge.calls import Call
from shardd.doors.liftbridge.partitions import POLLS_MAX, Partitions
from shardd.protocol.liftbridge.requests import StreamInfo
from shardd.protocol.primitives import PollingKind
from tests.support.on_loop import on_loop

STREAM = cast(StreamInfo, SimpleNamespace(stream_id=1, topic_id=1, incarnation=1))


class Caller:
    """A user whose calls are answered one after the other; `asked`: by user, in the order of their turns."""

    def __init__(self, owner: int, asked: list[int]) -> None:
        self.owner = owner
        self.line = str(owner), "127.0.0.1"
        self._asked = asked

    async def ask(self, name: str, _request: object) -> Any:
        self._asked.append(self.owner)
        await asyncio.sleep(0)
        return (
            [{"partitions": []}]
            if name == "get_partition_bounds"
            else {
                "count": 0,
                "records": b"",
                "incarnation": 1,
                "first_offset": 0,
                "end": 0,
            }
        )


def bounds(partitions: Partitions, call: Call) -> Awaitable[object]:
    return partitions.bounds(call, [(STREAM, (0,))])


def poll(partitions: Partitions, call: Call) -> Awaitable[object]:
    return partitions.poll(call, STREAM, 0, PollingKind.OFFSET, 0, 1)


@pytest.mark.parametrize("question", [bounds, poll])
@on_loop
async def test_user_that_asks_much_is_waited_for_once_by_another_user(
    question: Callable[[Partitions, Call], Awaitable[object]],
) -> None:
    asked: list[int] = []
    partitions = Partitions()
    many, one = Caller(1, asked), Caller(2, asked)
    calls = [cast(Call, many)] * 200 + [cast(Call, one)]
    await asyncio.gather(*(question(partitions, call) for call in calls))
    assert len(asked) == len(calls)
    assert asked.index(2) <= 2 * POLLS_MAX
