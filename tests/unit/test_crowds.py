"""Room that a crowd shares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardd.runtime.crowds import FullError, Member, Room
from tests.support.on_loop import on_loop


class Crowd:
    """Members by owner, and those that gave way, in order."""

    def __init__(self, size_max: int, of_address_max: int) -> None:
        self.room = Room(size_max, of_address_max)
        self.inside: list[Member] = []
        self.gave_way: list[Member] = []

    def enter(self, owner: str, address: str = "a") -> Member:
        def give_way() -> None:
            self.gave_way.append(made)
            self.inside.remove(made)

        made = self.room.enter(owner, address, give_way)
        self.inside.append(made)
        return made

    def leave(self, member: Member) -> None:
        self.room.leave(member)
        if member in self.inside:
            self.inside.remove(member)

    def count(self, owner: str) -> int:
        return sum(each.owner == owner for each in self.inside)


def test_newcomer_takes_the_newest_place_of_the_owner_with_most() -> None:
    crowd = Crowd(6, 6)
    made = [crowd.enter("many") for _ in range(6)]
    few = [crowd.enter("few") for _ in range(3)]
    assert crowd.gave_way == made[:2:-1] and crowd.count("few") == 3
    with pytest.raises(FullError) as refused:
        crowd.enter("few")
    assert not refused.value.of_address and crowd.inside == [*made[:3], *few]


def test_one_owner_may_have_all_room_while_no_other_needs_them() -> None:
    crowd = Crowd(4, 2)
    for address in ("a", "b"):
        for _ in range(2):
            crowd.enter("one", address)
        with pytest.raises(FullError) as refused:
            crowd.enter("one", address)
        assert refused.value.of_address
    assert crowd.room.used == 4


def test_stranger_gets_a_place_whatever_number_of_addresses_is_full() -> None:
    crowd = Crowd(2_048, 512)
    for address in range(4):
        for _ in range(512):
            crowd.enter(f"127.0.0.{address}", "x")
    for _ in range(8):
        crowd.enter("127.0.0.9", "x")
    assert crowd.count("127.0.0.9") == 8 and len(crowd.gave_way) == 8


@on_loop
async def test_waiting_owners_take_turns_and_a_cancelled_one_passes_its_turn_on() -> None:
    room, came = Room(2, 2), list[str]()
    inside = [room.enter("x", "", lambda: None), room.enter("y", "", lambda: None)]

    async def come(owner: str) -> None:
        member = await room.take(owner, "", lambda: None)
        came.append(owner)
        room.leave(member)

    tasks = [asyncio.create_task(come(owner)) for owner in ("x", "x", "x", "y", "x")]
    await asyncio.sleep(0)
    assert not came and room.used == 2
    room.leave(inside.pop())
    tasks[0].cancel()  # it has its turn, and has not come in
    await asyncio.gather(*tasks, return_exceptions=True)
    assert came == ["y", "x", "x", "x"] and room.used == 1


@on_loop
async def test_newcomer_is_not_overtaken_by_those_that_wait() -> None:
    room, gone = Room(3, 3), list[Member]()
    many = [room.enter("many", "", lambda: gone.append(many[-1])) for _ in range(3)]
    waiting = asyncio.create_task(room.take("many", "", lambda: None))
    await asyncio.sleep(0)
    room.enter("few", "", lambda: None)
    assert gone == many[-1:] and room.used == 3 and not waiting.done()
    room.leave(many[0])
    await waiting
    assert room.used == 3


@on_loop
async def test_large_newcomer_waits_for_enough_room_and_small_ones_do_not_overtake_it() -> None:
    room, came = Room(10, 10), list[str]()
    inside = [room.enter("x", "", lambda: None, 5), room.enter("y", "", lambda: None, 5)]

    async def come(owner: str, size: int) -> None:
        await room.take(owner, "", lambda: None, size)
        came.append(owner)

    tasks = [asyncio.create_task(come("x", 5)), asyncio.create_task(come("y", 3)), asyncio.create_task(come("y", 2))]
    await asyncio.sleep(0)
    room.leave(inside[1])
    room.leave(inside[0])
    await asyncio.gather(*tasks)
    assert sorted(came) == ["x", "y", "y"] and room.used == 10


def test_newcomer_takes_no_more_room_than_it_needs_and_none_where_that_is_not_enough() -> None:
    room, gone = Room(10, 10), list[Member]()
    members = list[Member]()

    def leaving(at: int) -> Callable[[], None]:
        return lambda: gone.append(members[at])

    for at, size in enumerate((4, 1, 1, 1, 1, 1, 1)):
        members.append(room.enter("many", "", leaving(at), size))
    room.enter("few", "", lambda: None, 2)
    assert gone == [members[6], members[5]]
    with pytest.raises(FullError):
        room.enter("few", "", lambda: None, 4)  # it would have 6 then, and the others 4
    assert len(gone) == 2 and room.used == 10


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xy"), st.booleans()), max_size=80))
def test_room_are_counted_whatever_happens(steps: list[tuple[str, str, bool]]) -> None:
    crowd = Crowd(7, 3)
    for owner, address, enters in steps:
        mine = [each for each in crowd.inside if (each.owner, each.address) == (owner, address)]
        if enters:
            before = {each: crowd.count(each) for each in "abcd"}
            try:
                crowd.enter(owner, address)
            except FullError as error:
                if error.of_address:
                    assert len(mine) == 3
                else:
                    assert len(crowd.inside) == 7 and max(before.values()) <= before[owner] + 1
        elif mine:
            crowd.leave(mine[0])
            crowd.leave(mine[0])  # twice is once
        assert crowd.room.used == len(crowd.inside) <= 7
