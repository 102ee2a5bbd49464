"""How many calls without a login an address may have, and which connections end."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from shardd.doors.liftbridge.strangers import (
    GIVEN_UP_MAX,
    OF_ADDRESS_MAX,
    OF_ALL_MAX,
    OF_CONNECTION_MAX,
    OF_CONNECTION_PER_S,
    PROBED_COST,
    REFUSED_COST,
    Strangers,
)

HOST = "127.0.0.1"


class Clock:
    now_s = 100.0

    def time(self) -> float:
        return self.now_s


class Told:
    def __init__(self) -> None:
        self.ended: list[str] = []
        self.beyond: set[str] = set()
        self.users: set[str] = set()
        self.strangers = Strangers(self.ended.append, self.beyond.add, self.users.__contains__)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: found)
    return found


def make_loud(told: Told, host: str = HOST) -> None:
    """By connections that have one call each."""
    for number in range(OF_ADDRESS_MAX // REFUSED_COST + 1):
        told.strangers.refused(f"loud:{number}", host)
    assert host in told.beyond


def test_connection_goes_on_and_its_address_is_loud_it_ends_and_others_of_it_stay(clock: Clock) -> None:
    told = Told()
    make_loud(told)
    assert not told.ended, "newcomers have some calls of their own"
    for _ in range(OF_CONNECTION_MAX // REFUSED_COST):
        told.strangers.refused("a:1", HOST)
    assert not told.ended
    told.strangers.refused("a:1", HOST)
    assert told.ended == ["a:1"]
    told.strangers.refused("b:1", "127.0.0.2")
    assert told.beyond == {HOST}, "another address has its own share"


def test_nothing_is_short_no_connection_ends(clock: Clock) -> None:
    told = Told()
    for _ in range(1_000):
        told.strangers.refused("a:1", HOST)
        clock.now_s += REFUSED_COST / OF_ADDRESS_MAX * 1.1
    assert not told.ended and not told.beyond


def test_new_connection_from_the_port_of_one_that_ended_is_judged_anew(clock: Clock) -> None:
    told = Told()
    make_loud(told)
    for _ in range(2):
        for _ in range(OF_CONNECTION_MAX // REFUSED_COST):
            told.strangers.refused("a:1", HOST)
        count = len(told.ended)
        told.strangers.refused("a:1", HOST)
        assert len(told.ended) == count + 1
    told.users.add("a:1")
    assert told.strangers.is_at_work("a:1")
    for _ in range(1_000):
        told.strangers.refused("a:1", HOST)
    assert told.ended == ["a:1", "a:1"]


def test_hostile_addresses_and_a_load_balancer_looks_at_health_go_on(clock: Clock) -> None:
    """Forty looks a second on one connection, for minutes, while a hostile address has more than all may."""
    told = Told()
    for _ in range(100):
        for number in range(OF_ALL_MAX // REFUSED_COST + 1):
            told.strangers.refused(f"h:{number}", "10.0.0.1")
        for _ in range(40):
            told.strangers.probed("balancer:1", HOST)
        clock.now_s += 1.01
    assert "balancer:1" not in told.ended and HOST not in told.beyond


def test_many_addresses_have_more_than_all_may_none_is_loud_connections_that_go_on_end(clock: Clock) -> None:
    told = Told()
    for number in range(OF_ALL_MAX // REFUSED_COST + 1):
        told.strangers.refused(f"h:{number}", f"10.0.{number // 32}.1")
    for _ in range(OF_CONNECTION_MAX // REFUSED_COST):
        told.strangers.refused("a:1", HOST)
    assert not told.ended and not told.beyond
    told.strangers.refused("a:1", HOST)
    assert told.ended == ["a:1"]


def test_looks_at_health_without_end_end_their_connection(clock: Clock) -> None:
    told = Told()
    for _ in range(OF_ADDRESS_MAX // PROBED_COST + 1):
        told.strangers.probed("a:1", HOST)
    assert told.beyond == {HOST} and "a:1" in told.ended


def test_clients_that_begin_with_more_calls_than_may_wait_stay(clock: Clock) -> None:
    """Two connections of one address with 400 calls each: 288 find no place to wait."""
    told = Told()
    with ExitStack() as waiting:
        for number in range(400):
            waiting.enter_context(told.strangers.waiting("a:1"))
            if number < 112:
                waiting.enter_context(told.strangers.waiting("a:2"))
        for _ in range(288):
            told.strangers.in_vain("a:2", HOST)
        for _ in range(400):
            told.strangers.in_vain("a:3", HOST)
        for _ in range(10_000):
            told.strangers.in_vain("a:2", HOST)
        assert told.strangers.is_at_work("a:2") and not told.strangers.is_at_work("a:3")
    assert not told.ended


def test_calls_given_up_without_end_end_their_connection(clock: Clock) -> None:
    told = Told()
    for _ in range(OF_CONNECTION_MAX):
        told.strangers.given_up("a:1", HOST)
    assert not told.ended, "a client may give up all it has begun with"
    told.strangers.given_up("a:1", HOST)
    assert told.ended == ["a:1"]


def test_calls_given_up_without_end_while_one_waits_end_their_connection(clock: Clock) -> None:
    """Otherwise each could be given up before it is refused, with another one behind it."""
    told = Told()
    with told.strangers.waiting("a:1"), told.strangers.waiting("b:1"):
        for _ in range(GIVEN_UP_MAX):
            told.strangers.given_up("a:1", HOST)
        assert not told.ended and told.strangers.is_at_work("a:1")
        told.strangers.given_up("a:1", HOST)
        assert told.ended == ["a:1"] and not told.strangers.is_at_work("a:1")
        assert told.strangers.is_at_work("b:1")
        told.users.add("a:1")
        assert told.strangers.is_at_work("a:1"), "a login has come after all"


def test_calls_that_wait_protect_no_connection_that_was_refused(clock: Clock) -> None:
    told = Told()
    with told.strangers.waiting("a:1"):
        for _ in range(2 * OF_CONNECTION_MAX):
            told.strangers.in_vain("a:1", HOST)
        assert not told.ended
        told.strangers.refused("a:1", HOST)
        assert not told.strangers.is_at_work("a:1") and told.strangers.was_refused("a:1")
        told.strangers.in_vain("a:1", HOST)
    assert told.ended == ["a:1"]


def test_what_is_over_is_forgotten(clock: Clock) -> None:
    told = Told()
    for number in range(100):
        told.strangers.refused(f"a:{number}", HOST)
    clock.now_s += OF_CONNECTION_MAX / OF_CONNECTION_PER_S + 2
    told.strangers.refused("b:1", HOST)
    assert set(told.strangers._connections) == {"b:1"} and not told.strangers.was_refused("a:1")
