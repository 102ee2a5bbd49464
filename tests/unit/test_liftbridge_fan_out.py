"""A message that many streams get: all of them, in turns, and one publisher's messages keep their order."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from shardd.doors.door import DoorClient
from shardd.doors.liftbridge import publishing
from shardd.doors.liftbridge.fan_out import TARGETS_AT_ONCE_MAX, submit_all
from shardd.doors.liftbridge.publish_batches import Outcome
from shardd.doors.liftbridge.publishing import Publisher
from shardd.doors.liftbridge.router import Router, Target
from shardd.protocol.liftbridge.records import LiftbridgeMessage
from shardd.protocol.liftbridge.requests import StreamInfo
from tests.support.on_loop import on_loop
from tests.unit.liftbridge_clients import FakeClient

STREAMS = 4_096


def streams() -> list[StreamInfo]:
    return [StreamInfo(f"s{number}", "wide.*", "", 1, number, number, 1, 1, {}) for number in range(STREAMS)]


class Worker(FakeClient):
    def __init__(self) -> None:
        super().__init__()
        self.stored: list[int] = []

    async def command(self, name: str, request: Any) -> Any:
        self.stored.append(request.topic_id)
        return {"base_offset": 0, "timestamp_us": 1}


@on_loop
async def test_a_message_for_4096_streams_gives_others_their_turn() -> None:
    all_streams = streams()
    router, worker, publisher = Router(), Worker(), Publisher(1 << 20)
    router.replace(all_streams)
    by_name = {each.name: each for each in all_streams}
    client, submitted, told = cast(DoorClient, worker), 0, 0

    def hear(_: Outcome) -> None:
        nonlocal told
        told += 1

    def submit(target: Target) -> None:
        nonlocal submitted
        submitted += 1
        publisher.submit(client, by_name[target.stream], target.partition, LiftbridgeMessage(b"x"), done=hear)

    rest = submit_all(publisher, client, router.matches("wide.a"), submit)
    assert submitted == TARGETS_AT_ONCE_MAX and rest is not None
    task, turns = asyncio.ensure_future(rest), 0
    while not task.done():
        before = submitted
        await asyncio.sleep(0)
        turns += 1
        assert submitted - before <= TARGETS_AT_ONCE_MAX
    assert turns >= STREAMS // TARGETS_AT_ONCE_MAX - 1
    await asyncio.wait_for(publisher.drained(), 30)
    assert sorted(worker.stored) == [*range(STREAMS)] and told == STREAMS
    assert submit_all(publisher, client, router.matches("narrow"), submit) is None


@on_loop
async def test_what_each_message_costs_whoever_hears_of_it_is_told_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock: here a turn has no time at all, and tells of one message all the same."""
    monkeypatch.setattr(publishing, "TURN_S", 0.0)
    publisher, worker, told = Publisher(1 << 20, gather_s=0.0), Worker(), 0

    def hear(_: Outcome) -> None:
        nonlocal told
        told += 1

    for _ in range(200):
        publisher.submit(cast(DoorClient, worker), streams()[0], 0, LiftbridgeMessage(b"x"), done=hear)
    most = 0
    while publisher.pending_messages:
        before = told
        await asyncio.sleep(0)
        most = max(most, told - before)
    assert told == 200 and most == 1
