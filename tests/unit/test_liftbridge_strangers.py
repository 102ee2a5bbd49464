"""How many calls without a login an address may have, and which connections end."""

from __future__ import annotations

import asyncio

import pytest

from shardd.doors.liftbridge.strangers import (
    LOUD_S,
    OF_ADDRESS_FEW,
    OF_ADDRESS_MAX,
    OF_ALL_MAX,
    OF_CONNECTION_MAX,
    OF_USER_CONNECTION_MAX,
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


def test_share_of_an_address_is_used_up_its_busy_connection_ends_and_a_new_one_stays(clock: Clock) -> None:
    told = Told()
    for _ in range(OF_ADDRESS_MAX):
        told.strangers.count("a:1", HOST)
    assert not told.ended and not told.beyond
    told.strangers.count("a:2", HOST)
    assert told.beyond == {HOST} and not told.ended, "a newcomer has a call of its own"
    for _ in range(2):
        told.strangers.count("a:1", HOST)
    assert told.ended == ["a:1"] and told.strangers.is_ended("a:1")
    for _ in range(OF_CONNECTION_MAX):
        told.strangers.count("a:2", HOST)
    assert told.ended == ["a:1", "a:2"]
    told.strangers.count("b:1", "127.0.0.2")
    assert told.beyond == {HOST}, "another address has its own share"


def test_line_is_slow_its_connections_end_while_their_address_is_loud(clock: Clock) -> None:
    """Few calls are taken in a second where the machine has other work."""
    told = Told()
    for _ in range(OF_ADDRESS_MAX + 1):
        told.strangers.count("a:0", HOST)
    for _ in range(OF_CONNECTION_MAX + 1):
        clock.now_s += 2.0
        for number in range(3):
            told.strangers.count(f"a:{number}", HOST)
    assert told.ended == ["a:0", "a:1", "a:2"]
    clock.now_s += LOUD_S + 1
    for _ in range(OF_CONNECTION_MAX + 1):
        told.strangers.count("a:1", HOST)
    assert len(told.ended) == 3 and not told.strangers.is_ended("a:1"), "it is quiet again"


def test_second_is_over_counts_begin_anew(clock: Clock) -> None:
    told = Told()
    for _ in range(5):
        for _ in range(OF_ADDRESS_MAX):
            told.strangers.count("a:1", HOST)
        clock.now_s += 1.5
    assert not told.ended


def test_many_addresses_have_less_each(clock: Clock) -> None:
    told = Told()
    for number in range(OF_ALL_MAX // OF_ADDRESS_MAX):
        for _ in range(OF_ADDRESS_MAX):
            told.strangers.count(f"a:{number}", str(number))
    assert not told.ended
    for _ in range(OF_ADDRESS_FEW):
        told.strangers.count("b:1", HOST)
    assert not told.ended
    told.strangers.count("b:1", HOST)
    assert told.ended == ["b:1"]


def test_connection_that_has_had_a_login_may_carry_many_refused_calls(clock: Clock) -> None:
    told = Told()
    told.users.add("a:1")
    for _ in range(OF_USER_CONNECTION_MAX):
        told.strangers.count("a:1", HOST)
    assert not told.ended
    told.strangers.count("a:1", HOST)
    assert told.ended == ["a:1"]
