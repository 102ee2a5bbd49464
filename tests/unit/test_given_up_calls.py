"""Calls that the engine has still when their askers have gone: they count for a user, and within it for an address, at
the shard that does not answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from shardd.protocol.errors import ShardError, Status
from shardd.runtime.asker import ASKER, SERVER, Asker
from shardd.service.given_up import GIVEN_UP_MAX, RECORDS_POOL_PART, GivenUpCalls
from tests.unit.calls_harness import workers_with_stream
from tests.unit.test_calls_under_way import Inside, StandingStill

MOST: Final = 32
USER: Final = Asker("user", "1.1.1.1")
OTHER: Final = Asker("other", "1.1.1.1")
LATE: Final = Status.TASK_TIMEOUT
REFUSED: Final = Status.SHARD_COMMUNICATION_ERROR


async def ends(inside: Inside, asker: Asker, shard: int, count: int = 1) -> set[Status | None]:
    """How sends of `asker` end, that are begun at once."""
    ASKER.set(asker)
    found = await asyncio.gather(*(inside.sending(shard) for _ in range(count)), return_exceptions=True)
    return {each.status if isinstance(each, ShardError) else None for each in found}


def test_sends_of_a_user_to_a_shard_that_stands_still_leave_calls_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late answers give the calls back, and a call of then has its own answer."""
    monkeypatch.setattr("shardd.service.given_up.GIVEN_UP_MAX", MOST)
    with workers_with_stream(tmp_path / "data", settings={"server.request_timeout": "1 s"}) as workers:
        inside = Inside(workers, "given-up")
        before = workers.call(inside.before())

        async def ask() -> None:
            assert await ends(inside, USER, 1, MOST // 4) == {LATE}
            assert inside.calls.figures()["given_up"] == MOST // 4
            assert await ends(inside, USER, 1) == {REFUSED}, "its address has half of what it may have"
            assert await ends(inside, USER, 0) == {None}, "the other shard answers"
            assert await ends(inside, USER._replace(host="2.2.2.2"), 1, MOST // 4) == {LATE}
            assert await ends(inside, USER._replace(host="3.3.3.3"), 1) == {REFUSED}, "it has as many as are left"
            assert await ends(inside, OTHER, 1) == {LATE}
            assert await ends(inside, SERVER, 1) == {LATE}

        with StandingStill(workers):
            workers.call(ask())
        workers.call(inside.until_as(before))
        assert workers.call(ends(inside, USER, 1)) == {None}
        assert inside.count(1) == MOST // 2 + 3


def test_a_call_counts_for_its_records_until_it_is_over() -> None:
    given_up = GivenUpCalls(pool_bytes=1 << 30)
    token = ASKER.set(USER)
    try:
        over = given_up.given_up(1, (1 << 30) // RECORDS_POOL_PART // 2)
        with pytest.raises(ShardError) as refused:
            given_up.require_room(1)
        assert refused.value.status is REFUSED
        given_up.require_room(0)
        ASKER.set(OTHER)
        given_up.require_room(1)
        over()
        ASKER.set(USER)
        given_up.require_room(1)
    finally:
        ASKER.reset(token)


def test_where_all_calls_are_given_up_nobody_begins_another_there() -> None:
    given_up = GivenUpCalls(pool_bytes=1 << 30)
    overs = [given_up.given_up(1, 0) for _ in range(GIVEN_UP_MAX)]
    token = ASKER.set(OTHER)
    try:
        with pytest.raises(ShardError):
            given_up.require_room(1)
        given_up.require_room(0)
        overs.pop()()
        given_up.require_room(1)
    finally:
        ASKER.reset(token)
