"""Leases of readers: who may hold what for how long, and when they end before their time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shardd.protocol.errors import Status
from shardd.protocol.leases import LeaseFiles
from shardd.security import ROOT_USER_ID
from shardd.service import base
from shardd.service.identity import Identity
from shardd.service.lease_table import (
    LEASED_BYTES_MAX,
    LEASES_OF_PARTITION_MAX,
    LEASES_OF_SHARD_MAX,
    NOTHING,
    Leases,
)
from shardd.service.leases import LeaseService

INCARNATION = 5


class Engine:
    """What the table tells the engine of each partition."""

    def __init__(self) -> None:
        self.leased: dict[int, int] = {}
        self.gone: set[int] = set()

    def partition_lease(self, namespace: int, incarnation: int, offset: int) -> None:
        assert incarnation == INCARNATION
        if namespace in self.gone:
            raise KeyError(namespace)
        self.leased[namespace] = offset


class World:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.engine = Engine()
        self.leases = Leases(self.engine, lambda: self.now_s)  # type: ignore[arg-type]

    def take(self, namespace: int = 1, user: int = 7, offset: int = 50, seconds: int = 10) -> Status:
        return self.leases.take((namespace, INCARNATION), user, offset, seconds)


def test_the_lowest_offset_counts_until_its_time() -> None:
    w = World()
    assert [w.take(), w.take(offset=20, seconds=5), w.take(user=8, offset=30, seconds=20)] == [Status.OK] * 3
    assert w.engine.leased == {1: 20}
    for passed_s, left in ((5, 30), (5, 30), (10, NOTHING)):
        w.now_s += passed_s
        w.leases.look(short=False)
        assert w.engine.leased == {1: left}
    assert w.leases.gauges() == {"leases": 0, "leased_bytes": 0}


def test_a_lease_is_renewed_and_given_back() -> None:
    w = World()
    w.take()
    w.now_s += 8
    w.take()
    w.now_s += 8
    w.leases.look(short=False)
    assert w.engine.leased == {1: 50} and w.leases.gauges()["leases"] == 1
    assert w.take(seconds=0) is Status.OK and w.engine.leased == {1: NOTHING}
    assert w.take(seconds=0) is Status.OK, "there is none"


def test_lease_is_renewed_where_its_user_would_get_no_further_one() -> None:
    w = World()
    half = LEASES_OF_PARTITION_MAX // 2
    for offset in range(half):
        assert w.take(offset=offset) is Status.OK
    for offset in range(2):
        assert w.take(user=8, offset=offset) is Status.OK
    w.now_s += 8
    assert [w.take(offset=offset) for offset in range(half)] == [Status.OK] * half
    assert w.take(offset=half) is Status.FEATURE_UNAVAILABLE
    w.now_s += 8
    w.leases.look(short=False)
    assert w.leases.gauges()["leases"] == half


def test_lease_is_not_renewed_while_the_disk_is_short() -> None:
    w = World()
    w.take()
    w.leases.look(short=True)
    assert w.take() is Status.FEATURE_UNAVAILABLE and w.leases.gauges()["leases"] == 0


def test_nobody_has_all_the_room() -> None:
    w = World()
    for n in range(LEASES_OF_SHARD_MAX // 2):
        assert w.take(n) is Status.OK
    assert w.take(10_000) is Status.FEATURE_UNAVAILABLE
    for at, user in enumerate((8, 9)):  # each further user has as many as are left free
        count = LEASES_OF_SHARD_MAX // (4 << at)
        for n in range(count):
            assert w.take(20_000 + at * 10_000 + n, user=user) is Status.OK
        assert w.take(20_000 + at * 10_000 + count, user=user) is Status.FEATURE_UNAVAILABLE
    assert w.take(40_000, user=10) is Status.OK
    w.now_s += 11
    assert w.take(40_001, user=7) is Status.OK, "what has ended has no room"
    assert w.leases.gauges()["leases"] == 1


def test_nobody_has_all_the_places_of_a_partition() -> None:
    w = World()
    for n in range(LEASES_OF_PARTITION_MAX // 2):
        assert w.take(offset=n) is Status.OK
    assert w.take(offset=99) is Status.FEATURE_UNAVAILABLE
    for n in range(LEASES_OF_PARTITION_MAX // 4):
        assert w.take(user=8, offset=n) is Status.OK
    assert w.take(user=8, offset=99) is Status.FEATURE_UNAVAILABLE
    assert w.take(user=8, offset=3, seconds=0) is Status.OK and w.take(user=8, offset=99) is Status.OK
    assert w.take(user=9, offset=3) is Status.OK
    w.now_s += 11
    assert w.take(offset=99) is Status.OK, "what has ended has no place"
    assert w.leases.gauges()["leases"] == 1


def test_without_room_on_the_disk_there_are_none() -> None:
    w = World()
    w.take()
    w.leases.look(short=True)
    assert w.engine.leased == {1: NOTHING} and w.leases.counters() == {"leases_ended": 1}
    assert w.take() is Status.FEATURE_UNAVAILABLE
    w.leases.look(short=False)
    assert w.take() is Status.OK


def test_what_they_keep_is_bounded() -> None:
    """The partition of which most is kept loses its own."""
    w = World()
    for namespace in (1, 2, 3):
        w.take(namespace)
    w.leases.cleaned((1, INCARNATION), LEASED_BYTES_MAX // 4)
    w.leases.cleaned((2, INCARNATION), LEASED_BYTES_MAX // 2)
    w.leases.cleaned((4, INCARNATION), LEASED_BYTES_MAX)  # has none
    assert w.leases.gauges() == {"leases": 3, "leased_bytes": LEASED_BYTES_MAX // 4 * 3}
    w.leases.cleaned((3, INCARNATION), LEASED_BYTES_MAX // 4 + 1)
    assert w.engine.leased == {1: 50, 2: NOTHING, 3: 50}
    assert w.leases.gauges() == {"leases": 2, "leased_bytes": LEASED_BYTES_MAX // 4 * 2 + 1}


def test_the_user_for_whom_most_is_kept_loses_leases() -> None:
    """Its many partitions keep more than the one of another user, each of them less. Those of the others at the same
    partition stay."""
    w = World()
    count, part = 8, LEASED_BYTES_MAX // 15
    for namespace in range(count):
        w.take(namespace, user=7, offset=10)
        w.take(namespace, user=9, offset=20)
        w.leases.cleaned((namespace, INCARNATION), part)
    w.take(100, user=8)
    w.leases.cleaned((100, INCARNATION), LEASED_BYTES_MAX // 2)
    assert w.engine.leased == {0: 20} | dict.fromkeys(range(1, count), 10) | {100: 50}
    assert w.leases.counters() == {"leases_ended": 1}
    assert w.leases.gauges()["leased_bytes"] == part * (count - 1) + LEASED_BYTES_MAX // 2


def test_a_partition_that_is_gone_costs_nothing() -> None:
    w = World()
    w.take()
    w.engine.gone = {1, 2}
    w.now_s += 10
    w.leases.look(short=False)
    assert w.leases.gauges()["leases"] == 0
    try:
        w.take(2)
    except KeyError:
        assert w.leases.gauges()["leases"] == 0
    else:
        raise AssertionError("nobody is told")


def test_a_lease_counts_for_the_incarnation_of_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of users are used again."""
    asked: list[int] = []

    async def lease(_home: object, user: int, _offset: int, _seconds: int) -> None:
        asked.append(user)

    calls: Any = SimpleNamespace(home=lambda *_: None, lease=lease)
    metadata: Any = SimpleNamespace(state=None)
    monkeypatch.setattr(base, "require", lambda *_: None)
    monkeypatch.setattr(base, "topic_of", lambda *_: (None, None))
    monkeypatch.setattr(base, "partition_of", lambda *_: None)
    service = LeaseService(metadata, calls)
    for identity in (Identity(2, 11), Identity(2, 12), Identity(ROOT_USER_ID, 1)):
        asyncio.run(service.lease_files(identity, LeaseFiles("s", "t", 0, 0, 1)))
    assert asked == [11, 12, 0]
