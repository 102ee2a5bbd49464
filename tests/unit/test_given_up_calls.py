"""Calls that the engine has still when their askers have gone: they count for a user, and within it for an address, at
the shard that does not answer."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from shardd.dispatch.door.places import Handed
from shardd.protocol.errors import ShardError, Status
from shardd.runtime.asker import ASKER, SERVER, Asker
from shardd.service.given_up import GIVEN_UP_MAX, NEWCOMER_MAX, RECORDS_POOL_PART, GivenUpCalls
from tests.unit.calls_harness import workers_with_stream
from tests.unit.test_calls_under_way import Inside, StandingStill

MOST: Final = 32
USER: Final = Asker("user", "1.1.1.1")
OTHER: Final = Asker("other", "1.1.1.1")
LATE: Final = Status.TASK_TIMEOUT
REFUSED: Final = Status.SHARD_COMMUNICATION_ERROR


def begins(given_up: GivenUpCalls, shard: int, held: ExitStack | None = None, batch_bytes: int = 0) -> bool:
    """Whether the asker of now may begin a call, which is under way until `held` ends."""
    with ExitStack() as over:
        try:
            (over if held is None else held).enter_context(given_up.begun(shard, batch_bytes))
        except ShardError as error:
            assert error.status is REFUSED
            return False
    return True


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
        with pytest.raises(ShardError) as refused, given_up.begun(1):
            pass
        assert refused.value.status is REFUSED
        assert begins(given_up, 0)
        ASKER.set(OTHER)
        assert begins(given_up, 1)
        over()
        ASKER.set(USER)
        assert begins(given_up, 1)
    finally:
        ASKER.reset(token)


def test_where_all_calls_are_given_up_a_user_without_any_has_a_few_under_way() -> None:
    given_up = GivenUpCalls(pool_bytes=1 << 30)
    overs = [given_up.given_up(1, 0) for _ in range(GIVEN_UP_MAX)]
    token = ASKER.set(OTHER)
    try:
        for batch_bytes in (0, 1 << 24):
            with ExitStack() as held:
                most = NEWCOMER_MAX if not batch_bytes else 1
                assert all(begins(given_up, 1, held, batch_bytes) for _ in range(most))
                assert not begins(given_up, 1) and begins(given_up, 0)
            assert begins(given_up, 1), "they are over"
        over = given_up.given_up(1, 0)
        assert not begins(given_up, 1), "it has one, and nothing is left"
        over()
        overs.pop()()
        assert begins(given_up, 1)
    finally:
        ASKER.reset(token)


@pytest.mark.parametrize("pool_bytes", [32 << 20, 256 << 20, 1 << 30, 16 << 30])
@pytest.mark.parametrize("is_large", [False, True])
def test_calls_of_all_that_doors_may_hand_over_leave_half_of_those_that_may_be_given_up(
    pool_bytes: int, is_large: bool
) -> None:
    """The hang is not known while they begin."""
    given_up, handed = GivenUpCalls(pool_bytes), Handed(pool_bytes)
    size = handed.of_user_bytes_max // 4 if is_large else handed.bytes_min
    token = ASKER.set(USER)
    try:
        for number in range(2):
            ASKER.set(Asker(f"greedy {number}", "1.1.1.1"))
            for _ in range(handed.of_user_bytes_max // size):
                given_up.given_up(1, size)
        with ExitStack() as held:
            for number in range(4):
                ASKER.set(Asker(f"user {number}", "1.1.1.1"))
                count = 0
                while count < GIVEN_UP_MAX and begins(given_up, 1, held):
                    count += 1
                assert GIVEN_UP_MAX >> number + 2 <= count <= GIVEN_UP_MAX // 2
    finally:
        ASKER.reset(token)
