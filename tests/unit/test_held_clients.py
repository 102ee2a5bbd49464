"""Logins that requests of a door share: who gets which, and when they end."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from shardd.doors import held_clients
from shardd.doors.door import Door, DoorClient
from shardd.doors.held_clients import HeldClients
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError, Status
from tests.support.on_loop import on_loop, until


class Client:
    is_open = True
    at_work = 0


class Clients:
    """Those of a door without workers. `raised`: what the next logins end with."""

    def __init__(self, clients_max: int = 10) -> None:
        self.opened: list[Client] = []
        self.closed: list[Client] = []
        self.raised: list[Exception] = []
        self.held = HeldClients[str](
            cast(Door, self), clients_max, lambda shown, address: (shown, address), self.log_in
        )

    async def open_client(self, _address: str) -> Client:
        await asyncio.sleep(0)
        self.opened.append(Client())
        return self.opened[-1]

    async def close_client(self, client: Client) -> None:
        client.is_open = False
        self.closed.append(client)

    async def log_in(self, _client: DoorClient, _shown: str) -> None:
        await asyncio.sleep(0)
        if self.raised:
            raise self.raised.pop(0)

    async def take(self, shown: str, address: str = "a") -> Any:
        return await self.held.take(shown, address)


@on_loop
async def test_those_with_the_same_key_share_a_login_and_nobody_else() -> None:
    door = Clients()
    same = await asyncio.gather(*[door.take("x") for _ in range(20)])
    assert {*same, await door.take("x")} == {door.opened[0]}
    assert {await door.take("x", "b"), await door.take("y")} == {*door.opened[1:]}
    assert len(door.opened) == 3 and not door.closed


@on_loop
async def test_a_refused_login_is_told_to_all_who_wait_and_kept_for_nobody() -> None:
    door = Clients()
    door.raised.append(ShardError(Status.INVALID_CREDENTIALS))
    ends = await asyncio.gather(*[door.take("x") for _ in range(5)], return_exceptions=True)
    assert [cast(ShardError, each).status for each in ends] == [Status.INVALID_CREDENTIALS] * 5
    assert door.closed == door.opened and len(door.opened) == 1
    assert await door.take("x") is door.opened[1]


@on_loop
async def test_another_worker_is_tried_when_one_is_lost() -> None:
    door = Clients()
    door.raised += [WorkerLostError("one"), WorkerLostError("two")]
    assert await door.take("x") is door.opened[2]
    door.raised += [WorkerLostError(str(number)) for number in range(3)]
    with pytest.raises(WorkerLostError):
        await door.take("y")
    assert not door.raised and door.closed == [*door.opened[:2], *door.opened[3:]]


@on_loop
async def test_a_login_that_ended_or_was_dropped_is_made_again() -> None:
    door = Clients()
    first = await door.take("x")
    first.is_open = False
    second = await door.take("x")
    await door.held.drop(second)
    assert await door.take("x") is door.opened[2]
    assert (first, second) == (door.opened[0], door.opened[1]) and second in door.closed


@on_loop
async def test_who_goes_away_while_a_login_is_made_ends_it_for_nobody() -> None:
    door = Clients()
    waiting = [asyncio.ensure_future(door.take("x")) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    assert await waiting[1] is door.opened[0]
    assert len(door.opened) == 1


@on_loop
async def test_the_one_that_was_used_least_lately_gives_way() -> None:
    door = Clients(clients_max=2)
    one, two = await door.take("1"), await door.take("2")
    await door.take("1")
    await door.take("3")
    assert door.closed == [two] and one.is_open


@on_loop
async def test_a_client_at_work_stays_while_an_idle_one_can_give_way() -> None:
    """A poll that waits was taken long ago, and others have logged in since."""
    door = Clients(clients_max=3)
    waiting, idle, other = [await door.take(shown) for shown in "123"]
    waiting.at_work = 1
    await door.take("4")
    assert door.closed == [idle] and waiting.is_open
    await door.take("5")
    assert door.closed == [idle, other] and waiting.is_open


@on_loop
async def test_a_client_at_work_gives_way_where_no_client_is_idle() -> None:
    door = Clients(clients_max=3)
    for shown in "123":
        (await door.take(shown)).at_work = 1
    await door.take("4")
    assert door.closed == [door.opened[0]]


@on_loop
async def test_a_client_at_work_is_not_closed_for_being_taken_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_clients, "_SWEEP_S", 0.01)
    monkeypatch.setattr(held_clients, "IDLE_S", 0.0)
    door = Clients()
    working, idle = await door.take("1"), await door.take("2")
    working.at_work = 1
    sweeping = asyncio.ensure_future(door.held.sweep())
    await until(lambda: door.closed == [idle])
    assert working.is_open
    working.at_work = 0
    await until(lambda: door.closed == [idle, working])
    sweeping.cancel()


@on_loop
async def test_what_nobody_uses_for_a_while_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_clients, "_SWEEP_S", 0.01)
    door = Clients()
    await door.take("x")
    sweeping = asyncio.ensure_future(door.held.sweep())
    await asyncio.sleep(0.1)
    assert not door.closed
    monkeypatch.setattr(held_clients, "IDLE_S", 0.0)
    await until(lambda: door.closed == door.opened)
    sweeping.cancel()
    assert await door.take("x") is door.opened[1]
