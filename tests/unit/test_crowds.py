"""Room that a crowd shares."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardd.runtime.crowds import FullError, Member, Room, SharedRoom
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
    inside = [room.enter(owner, "", lambda: None, at_work=True) for owner in "xy"]

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
async def test_room_that_is_left_in_the_moment_of_a_cancellation_goes_to_the_next() -> None:
    room = Room(1, 1)
    inside = room.enter("x", "", lambda: None, at_work=True)
    waiting = [asyncio.create_task(room.take(owner, "", lambda: None)) for owner in ("x", "x", "y")]
    await asyncio.sleep(0)
    for each in waiting[:2]:
        each.cancel()
    room.leave(inside)  # before the cancelled ones have run
    assert (await waiting[2]).owner == "y" and room.used == 1
    await asyncio.gather(*waiting, return_exceptions=True)


@on_loop
async def test_nothing_is_lost_and_no_owner_starves() -> None:
    """Whatever sizes come, wait, are cancelled and leave, in whatever order."""

    async def scenario(seed: int) -> None:
        chance, room = random.Random(seed), Room(64, 32)

        async def one(owner: str) -> None:
            member = await room.take(owner, chance.choice("pq"), lambda: None, chance.randint(1, 32), at_work=True)
            try:
                assert 0 < room.used <= 64
                for _ in range(chance.randint(0, 3)):
                    await asyncio.sleep(0)
            finally:
                room.leave(member)

        tasks = [asyncio.create_task(one(chance.choice("abc"))) for _ in range(300)]
        for each in chance.sample(tasks, 100):
            await asyncio.sleep(0)
            each.cancel()
        async with asyncio.timeout(60):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in results} <= {type(None), asyncio.CancelledError}
        assert room.used == 0

    for seed in range(20):
        await scenario(seed)


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


def test_member_at_work_does_not_give_way_until_it_waits_for_its_client() -> None:
    room, gone = Room(2, 2), list[str]()
    older, newer = (room.enter("x", "", partial(gone.append, name), at_work=True) for name in ("1", "2"))
    with pytest.raises(FullError):
        room.enter("y", "", lambda: None)
    room.may_give_way(older)
    room.enter("y", "", lambda: None)
    assert gone == ["1"] and room.used == 2
    room.leave(newer)
    assert room.used == 1


def test_owner_with_less_gives_way_where_the_one_with_most_is_at_work() -> None:
    gave_way: list[str] = []
    room = Room(64, 64)
    room.enter("most", "a", partial(gave_way.append, "most at work"), 40, at_work=True)
    room.enter("most", "a", partial(gave_way.append, "most"), 1)
    for _ in range(2):
        room.enter("less", "a", partial(gave_way.append, "less"), 11)
    room.enter("newcomer", "a", partial(gave_way.append, "newcomer"), 4)
    assert gave_way == ["most", "less"] and room.used == 40 + 11 + 4


@on_loop
async def test_owner_that_waits_comes_in_as_soon_as_another_with_more_may_give_way() -> None:
    room, gone = Room(4, 4), list[str]()
    many = [room.enter("many", "", lambda: gone.append("many"), at_work=True) for _ in range(4)]
    waiting = [asyncio.create_task(room.take(owner, "", lambda: None)) for owner in ("many", "few")]
    await asyncio.sleep(0)
    assert not any(each.done() for each in waiting)
    room.may_give_way(many[0])
    assert (await waiting[1]).owner == "few"
    assert gone == ["many"] and room.used == 4 and not waiting[0].done()
    room.leave(many[1])
    await waiting[0]


@on_loop
async def test_address_with_its_share_waits_and_holds_nobody_up() -> None:
    room = Room(4, 2)
    first = [room.enter("x", "a", lambda: None, at_work=True) for _ in range(2)]
    waiting = asyncio.create_task(room.take("x", "a", lambda: None))
    await asyncio.sleep(0)
    await room.take("x", "b", lambda: None)
    assert not waiting.done() and room.used == 3
    room.leave(first[0])
    await waiting


def test_member_that_turns_out_larger_is_not_refused_and_no_newcomer_gets_in_beside_it() -> None:
    room, gone = Room(10, 10), list[str]()
    large = room.enter("x", "", lambda: gone.append("x"), 2)
    room.enter("y", "", lambda: gone.append("y"), 4)
    room.resize(large, 9)
    with pytest.raises(FullError):
        room.enter("x", "", lambda: None, 1)
    room.enter("z", "", lambda: None, 4)
    assert gone == ["x"] and room.used == 8
    room.resize(large, 5)  # it has left
    assert room.used == 8


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


@on_loop
async def test_member_at_work_for_a_moment_gives_way_after_it() -> None:
    room, gone = Room(4, 2), list[str]()
    members = [room.enter("many", address, partial(gone.append, address), at_work=True) for address in "aabb"]
    for member in members:
        room.works_for(member, 0.0)
    with pytest.raises(FullError):
        room.enter("few", "", lambda: None)
    room.works(members[3])  # without an end
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(0.001, over.set)
    await over.wait()
    room.enter("few", "", lambda: None)
    assert gone == ["b"] and members[2].size == 0 and members[3].at_work
    for member in members:
        room.leave(member)
        room.works_for(member, 0.0)  # it has left
    assert all(member.grace is None for member in members) and room.used == 1


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


def test_owner_of_a_shared_room_leaves_as_much_as_it_has_and_an_address_half_of_the_rest() -> None:
    room = SharedRoom(64)

    def fill(owner: str | None, address: str) -> int:
        count = 0
        while True:
            try:
                room.enter(owner, address, lambda: None, at_work=True)
            except FullError:
                return count
            count += 1

    assert [fill("a", "x"), fill("a", "y")] == [16, 8]
    assert [fill("b", "x"), fill("b", "y")] == [10, 5]
    assert fill(None, "") == 64 - 16 - 8 - 10 - 5, "the server itself has no share"


@on_loop
async def test_newcomer_of_a_shared_room_does_not_wait_for_an_owner_beyond_its_share() -> None:
    room = SharedRoom(16)
    crowd = [asyncio.create_task(room.take("many", f"{number}", lambda: None, at_work=True)) for number in range(32)]
    await asyncio.sleep(0)
    assert room.used == 8
    async with asyncio.timeout(10):
        other = await room.take("few", "", lambda: None, at_work=True)
    room.leave(other)
    assert room.used == 8
    for _ in range(32):
        room.leave(next(each.result() for each in crowd if each.done() and each.result().size))
        await asyncio.sleep(0)
    assert room.used == 0 and all(each.done() for each in crowd)


def test_each_owner_finds_some_of_a_shared_room_without_shares_of_addresses() -> None:
    room = SharedRoom(64, of_addresses=False)
    had = []
    for owner in ("greedy", "second", "third", "fourth"):
        count = 0
        while room.has_room(owner, "one address", 1):
            room.enter(owner, "one address", lambda: None, at_work=True)
            count += 1
        with pytest.raises(FullError):
            room.enter(owner, "one address", lambda: None, at_work=True)
        had.append(count)
    assert had == [32, 16, 8, 4]


def test_member_that_counts_what_has_come_is_not_refused_and_keeps_no_owner_out() -> None:
    room = Room(100, 50)
    greedy, other = (Member(owner, "", lambda: None, at_work=True) for owner in ("greedy", "other"))
    room.count(greedy, 30)
    assert room.has_room("greedy", "", 20) and not room.has_room("greedy", "", 21)
    room.count(greedy, 80)  # has come already
    assert room.used == 80 and not room.has_room("greedy", "", 0)
    assert room.has_room("other", "", 20) and not room.has_room("other", "", 21)
    room.count(other, 40)
    assert not room.has_room("other", "", 0), "all have more than there is"
    room.count(greedy, 0)
    assert room.used == 40 and room.has_room("greedy", "", 50)
    room.count(greedy, 10)
    room.count(other, 0)
    assert room.used == greedy.size == 10


@pytest.mark.parametrize("room", [Room(4, 2), SharedRoom(4)])
def test_place_that_is_free_is_taken_without_a_wait_nor_a_loop(room: Room) -> None:
    taking = room.take("a", "x", lambda: None, at_work=True)
    with pytest.raises(StopIteration) as taken:
        taking.send(None)
    member = taken.value.value
    assert room.used == member.size == 1 and member.at_work
    room.leave(member)
    assert room.used == 0
