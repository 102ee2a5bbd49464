"""Which subscriptions a NATS server gets, and what becomes of a flood that nobody stores."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from shardd.doors.door import Door, DoorClient
from shardd.doors.liftbridge import publishing
from shardd.doors.liftbridge.ingest import Ingest
from shardd.doors.liftbridge.losses import Loss, Losses
from shardd.doors.liftbridge.nats import link as nats_link
from shardd.doors.liftbridge.nats import subscriptions as nats_subscriptions
from shardd.doors.liftbridge.nats.link import NatsLink
from shardd.doors.liftbridge.nats.subscriptions import ALL_BUT_FIRST, AllWanted, Wanted
from shardd.doors.liftbridge.publishing import Publisher
from shardd.protocol.liftbridge.requests import StreamInfo
from tests.doors.nats_peers import linked
from tests.support.on_loop import on_loop
from tests.unit.liftbridge_clients import FakeClient
from tests.unit.test_liftbridge_ingest import View


def stream(name: str, subject: str, partitions: int = 1, group: str = "", paused: tuple[int, ...] = ()) -> StreamInfo:
    return StreamInfo(name, subject, group, 1, 1, 1, partitions, 1, {}, paused)


def wanted(*streams: StreamInfo) -> set[Wanted]:
    all_wanted = AllWanted()
    for _ in all_wanted.finding(streams):
        pass
    assert not all_wanted.left_out
    return all_wanted.wanted


def test_a_subject_and_a_group_have_one_subscription_whoever_has_them() -> None:
    assert wanted(stream("a", "x", 2), stream("b", "x"), stream("c", "x", 2, "g"), stream("d", "x.*", 9)) == {
        Wanted("x", "", 0),
        Wanted("x", "", 1),
        Wanted("x", "g", 0),
        Wanted("x", "g", 1),
        Wanted("x.*", "", 0),
        Wanted("x.*", "", ALL_BUT_FIRST),
    }
    assert len(wanted(stream("e", "y", 1_000))) == 2 and len(wanted(stream("f", "y", 1_000, "g"))) == 1_000


def test_what_is_paused_does_not_listen() -> None:
    assert wanted(stream("a", "x", 3, paused=(0, 2))) == {Wanted("x", "", 1)}
    assert wanted(stream("a", "x", 20, paused=tuple(range(20)))) == set()
    assert wanted(stream("a", "x", 20, paused=tuple(range(1, 20)))) == {Wanted("x", "", 0)}
    assert wanted(stream("a", "x", 20, paused=(0, 1))) == {Wanted("x", "", ALL_BUT_FIRST)}


def test_a_wide_subscription_tells_partitions_by_their_names() -> None:
    wide = Wanted("x", "", ALL_BUT_FIRST)
    assert wide.pattern == "x.*" and Wanted("x", "", 3).pattern == "x.3" and Wanted("x", "", 0).pattern == "x"
    assert [wide.partition_of(f"x.{token}") for token in ("7", "0", "07", "y", "-1")] == [7, None, None, None, None]
    assert Wanted("x", "", 3).partition_of("x.3") == 3


def test_too_many_subscriptions_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_subscriptions, "SUBSCRIPTIONS_MAX", 10)
    all_wanted, steps = AllWanted(), 0
    for _ in all_wanted.finding([stream(f"s{n}", f"s{n}", 8) for n in range(3)]):
        steps += 1
    assert len(all_wanted.wanted) == 10 and all_wanted.left_out == 14 and steps >= 3


class Silent(FakeClient):
    """A worker that answers nothing until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()
        self.stored = 0

    async def command(self, name: str, request: Any) -> Any:
        await self.goes_on.wait()
        self.stored += request.count
        return {"base_offset": 0, "timestamp_us": 1}


@on_loop
async def test_a_flood_is_dropped_and_counted_when_nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "PENDING_BYTES_MAX", 400 * (publishing.MESSAGE_OVERHEAD_BYTES + 1))
    monkeypatch.setattr(nats_link, "ROOM_S", 0.05)
    losses, worker, publisher = Losses(), Silent(), Publisher(1_000)
    ingest = Ingest(View(stream("s", "sub")), publisher, 1_000, losses)
    link = NatsLink(cast(Door, None), linked("nats://127.0.0.1:1").nats, ingest)
    link._wanted[1] = Wanted("sub", "", 0)
    link._client = cast(DoorClient, worker)
    link._has_client.set()
    began_s = asyncio.get_running_loop().time()
    for _ in range(1_000):
        await link._deliver(1, b"sub", b"", b"x")
    taken = publisher.pending_messages
    assert 80 <= taken <= 100 and losses.counts == {Loss.NO_ROOM: 1_000 - taken}
    assert asyncio.get_running_loop().time() - began_s < 900 * 0.05, "each of them has waited"
    worker.goes_on.set()
    await asyncio.wait_for(publisher.drained(), 10)
    await link._deliver(1, b"sub", b"", b"x")
    await asyncio.wait_for(publisher.drained(), 10)
    assert worker.stored == taken + 1 and losses.counts == {Loss.NO_ROOM: 1_000 - taken}
    link._client = None
    link._has_client.clear()
    await link._deliver(1, b"sub", b"", b"x")
    assert losses.counts[Loss.NO_WORKER] == 1


@on_loop
async def test_others_have_their_turn_between_messages() -> None:
    link = NatsLink(cast(Door, None), linked("nats://x:1").nats, Ingest(View(), Publisher(9), 9, Losses()))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    for _ in range(nats_link.STEP_MESSAGES * 10):
        await link._deliver(1, b"sub", b"", b"x")
    counting.cancel()
    assert turns >= 8
