"""Answers that grow with what there is leave the loop turning (shardd.service.long_answers)."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from immutables import Map

from shardd.metadata import State
from shardd.metadata.state import User
from shardd.protocol.account_replies import UserDetails
from shardd.protocol.permissions import Permissions
from shardd.protocol.requests import Empty
from shardd.service.identity import Identity
from shardd.service.long_answers import LongAnswers, ascending
from shardd.service.users import UserService

USERS = 100_000
READER = Identity(1)


def service(users: dict[int, User]) -> UserService:
    """Over a state; nothing here needs a connection or a password."""
    metadata = SimpleNamespace(state=State(users=Map(users)))
    nobody = cast(Any, None)
    return UserService(cast(Any, metadata), nobody, nobody, nobody, LongAnswers(nobody))


def user(number: int) -> User:
    return User(number, f"user {number}", 7, True, "", Permissions(read_users=True))


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 5000])
def test_ids_come_in_their_order(count: int) -> None:
    ids = random.Random(count).sample(range(1, 1 << 32), count)
    assert [each for each in ascending(ids) if each is not None] == sorted(ids)


def test_no_step_of_an_order_is_long() -> None:
    """Before the first id at most a thousand are looked at in a step."""
    looked = 0

    def ids() -> Any:
        nonlocal looked
        for each in range(10_000, 0, -1):
            looked += 1
            yield each

    before = 0
    for each in ascending(ids()):
        assert looked - before <= 1000
        before = looked
        if each == 10_000:
            break
    assert looked == 10_000


def test_the_loop_turns_while_a_hundred_thousand_users_are_listed() -> None:
    users = {number: user(number) for number in range(USERS, 0, -1)}
    listing = service(users)

    async def main() -> tuple[list[bytes], int]:
        turns = 0
        answer = asyncio.ensure_future(listing.get_users(READER, Empty(), keep=UserDetails.encode))
        while not answer.done():
            await asyncio.sleep(0)
            turns += 1
        return answer.result(), turns

    blocks, turns = asyncio.run(main())
    assert len(blocks) == USERS
    assert [int.from_bytes(block[:4], "little") for block in blocks[:3]] == [1, 2, 3]
    assert turns > 20, "a slice in each turn, not all at once"
