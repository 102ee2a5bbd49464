"""Who waits for a turn holds nothing that others need (shardd.runtime.aside, shardd.dispatch.door.places)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Final, cast

from shardd.dispatch.door.clients import ClientRecord
from shardd.dispatch.door.places import (
    ASIDE_BYTES_MAX,
    ASIDE_BYTES_MIN,
    BEGUN_OF_USER_BYTES_MAX,
    HANDED_MAX,
    HANDED_USER_SHARE,
    REQUESTS_MAX,
    Handed,
    Places,
    Work,
)
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.limits import POLLED_BYTES_MAX
from shardd.runtime.aside import HAND_OVER, STAND_BESIDE, STEP_ASIDE, beside, handed_over
from shardd.runtime.fair_turns import FairTurns
from shardd.runtime.slices import Slices
from shardd.service.sessions import Session
from tests.support.on_loop import on_loop

POOL_BYTES: Final = 256 << 20
WAITERS_MAX: Final = ASIDE_BYTES_MAX // ASIDE_BYTES_MIN
Does = Callable[[str, Work], Coroutine[Any, Any, None]]


class Crowd:
    """Requests of users under way in one connection, all for the same turns."""

    def __init__(self) -> None:
        self.freed = 0
        self.handed = Handed(POOL_BYTES)
        self.places = Places(self._free, self.handed)
        self.turns = FairTurns(1)
        self.done: list[str] = []
        self.refused: list[str] = []

    def _free(self) -> None:
        self.freed += 1

    def begin(
        self, name: str, user: int, frame_bytes: int = 100, does: Does | None = None, answer_bytes: int = 0
    ) -> Work:
        session = Session(1, 1, "192.0.2.1:1", 0)
        session.set_user(user, user)
        work = Work(
            1, frame_bytes, frame_bytes + answer_bytes, False, False, 0.0, ClientRecord(1, "192.0.2.1", session)
        )
        self.places.enter(work)
        work.task = asyncio.get_running_loop().create_task((does or self._execute)(name, work))
        return work

    async def _execute(self, name: str, work: Work) -> None:
        STEP_ASIDE.set(partial(self.places.aside, work))
        try:
            async with self.turns.turn((name[0],)):
                self.done.append(name)
        except ShardError as error:
            assert error.status is Status.DISCONNECTED
            self.refused.append(name)
        finally:
            self.places.leave(work)

    async def settle(self, *works: Work) -> None:
        for work in works:
            await cast(asyncio.Task[None], work.task)


def test_a_request_that_waits_leaves_its_place_and_takes_it_again() -> None:
    async def main() -> None:
        crowd = Crowd()
        async with crowd.turns.turn(("other",)):
            works = [crowd.begin(f"a{number}", 1) for number in range(REQUESTS_MAX)]
            assert not crowd.places.has_room(0)
            await asyncio.sleep(0)
            assert crowd.freed == REQUESTS_MAX and crowd.places.has_room(0)
        await crowd.settle(*works)
        assert len(crowd.done) == REQUESTS_MAX and not crowd.refused
        assert all(work.waiting is None for work in works)

    on_loop(main)()


def test_bytes_of_a_request_that_waits_are_free_for_others() -> None:
    async def main() -> None:
        crowd = Crowd()
        async with crowd.turns.turn(("other",)):
            works = [crowd.begin(f"a{number}", 1, ASIDE_BYTES_MAX // 4) for number in range(4)]
            await asyncio.sleep(0)
            assert crowd.places.has_room((64 << 20) - 1)
            works.append(crowd.begin("a4", 1))
            await crowd.settle(works[-1])
            assert crowd.refused == ["a4"], "its user has all the room there is"
        await crowd.settle(*works)

    on_loop(main)()


def test_the_newest_of_the_user_with_most_gives_way_and_no_turn_is_lost() -> None:
    async def main() -> None:
        crowd = Crowd()
        async with crowd.turns.turn(("other",)):
            many = [crowd.begin(f"a{number}", 1) for number in range(WAITERS_MAX + 1)]
            await asyncio.sleep(0)
            assert crowd.refused == [f"a{WAITERS_MAX}"]
            few = crowd.begin("b", 2)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert crowd.refused[1:] == [f"a{WAITERS_MAX - 1}"]
        await crowd.settle(*many, few)
        assert len(crowd.done) == WAITERS_MAX and crowd.done.index("b") < 2
        async with asyncio.timeout(60), crowd.turns.turn(("later",)):
            pass

    on_loop(main)()


def test_a_request_sent_away_in_the_moment_of_its_turn_passes_the_turn_on() -> None:
    async def main() -> None:
        crowd = Crowd()
        async with crowd.turns.turn(("other",)):
            works = [crowd.begin("a", 1), crowd.begin("b", 2)]
            await asyncio.sleep(0)
        works[0].send_away()
        await crowd.settle(*works)
        assert crowd.refused == ["a"] and crowd.done == ["b"]
        assert crowd.places.has_room(0)

    on_loop(main)()


def test_a_change_that_waits_for_the_device_leaves_its_place_and_its_user_has_a_part_of_the_room() -> None:
    async def main() -> None:
        crowd, device, begun = Crowd(), asyncio.Event(), list[str]()

        async def change(name: str, work: Work) -> None:
            STAND_BESIDE.set(partial(crowd.places.beside, work))
            try:
                with beside():
                    begun.append(name)
                    await device.wait()
                crowd.done.append(name)
            except ShardError as error:
                assert error.status is Status.DISCONNECTED
                crowd.refused.append(name)
            finally:
                crowd.places.leave(work)

        most = BEGUN_OF_USER_BYTES_MAX // ASIDE_BYTES_MIN
        many = [crowd.begin(f"a{number}", 1, does=change) for number in range(most + 1)]
        await asyncio.sleep(0)
        assert crowd.refused == [f"a{most}"] and len(begun) == most, "it is refused before it has begun"
        assert crowd.places.has_room(0)
        other = crowd.begin("b", 2, does=change)
        await asyncio.sleep(0)
        assert begun[-1] == "b"
        device.set()
        await crowd.settle(*many, other)
        assert sorted(crowd.done) == sorted(begun) and not any(work.has_begun for work in many)

    on_loop(main)()


def test_users_whose_changes_wait_for_the_device_leave_room_to_another_one() -> None:
    async def main() -> None:
        crowd, device = Crowd(), asyncio.Event()

        begun = Counter[str]()

        async def change(name: str, work: Work) -> None:
            try:
                with crowd.places.beside(work):
                    begun[name] += 1
                    await device.wait()
            except ShardError as error:
                assert error.status is Status.DISCONNECTED
            finally:
                crowd.places.leave(work)

        most, works = BEGUN_OF_USER_BYTES_MAX // ASIDE_BYTES_MIN, list[Work]()
        for user in range(1, 7):
            works += [crowd.begin(f"{user}", user, does=change) for _ in range(most)]
            await asyncio.sleep(0)
        assert [*begun.values()] == [most, most, most, most // 2, most // 4, most // 8]
        device.set()
        await crowd.settle(*works)

    on_loop(main)()


class Device:
    """What sends of a crowd wait for; `has`: those that were handed over, in their order."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd
        self.answers = asyncio.Event()
        self.has: list[str] = []

    async def send(self, name: str, work: Work) -> None:
        STEP_ASIDE.set(partial(self.crowd.places.aside, work))
        HAND_OVER.set(partial(self.crowd.places.handed_over, work))
        try:
            async with handed_over():
                self.has.append(name)
                await self.answers.wait()
            self.crowd.done.append(name)
        except ShardError as error:
            assert error.status is Status.DISCONNECTED
            self.crowd.refused.append(name)
        finally:
            self.crowd.places.leave(work)


def test_sends_of_one_user_that_wait_for_the_device_leave_places_and_half_of_their_room_to_others() -> None:
    async def main() -> None:
        crowd = Crowd()
        device, most = Device(crowd), HANDED_MAX // HANDED_USER_SHARE
        many = [crowd.begin(f"a{number}", 1, does=device.send) for number in range(most + 10)]
        await asyncio.sleep(0)
        assert len(device.has) == most and crowd.places.has_room(0)
        assert sum(work.waiting is not None for work in many) == 10 and not crowd.refused
        other = crowd.begin("b", 2, does=device.send)
        await asyncio.sleep(0)
        assert device.has[most:] == ["b"]
        device.answers.set()
        await crowd.settle(*many, other)
        mine = [name for name in device.has if name != "b"]
        assert mine == [f"a{number}" for number in range(most + 10)], "a user's sends keep their order"
        assert crowd.handed.room.used == 0 and len(crowd.done) == most + 11

    on_loop(main)()


def test_bytes_of_sends_that_wait_for_the_device_are_bounded_by_user() -> None:
    async def main() -> None:
        crowd = Crowd()
        device, size = Device(crowd), crowd.handed.of_user_bytes_max // 4
        many = [crowd.begin(f"a{number}", 1, size, device.send) for number in range(4)]
        late = [crowd.begin(f"l{number}", 1, ASIDE_BYTES_MAX // 4, device.send) for number in range(5)]
        await asyncio.sleep(0)
        assert len(device.has) == 4 and crowd.handed.room.used == 4 * size
        assert crowd.refused == ["l4"], "it is refused before it is handed over"
        late[0].send_away()
        await crowd.settle(late[0])
        assert crowd.refused == ["l4", "l0"] and len(device.has) == 4
        device.answers.set()
        await crowd.settle(*many, *late)
        assert device.has[4:] == ["l1", "l2", "l3"] and crowd.handed.room.used == 0

    on_loop(main)()


def test_polls_that_store_offsets_count_with_the_answers_that_the_engine_keeps() -> None:
    async def main() -> None:
        crowd = Crowd()
        device, handed = Device(crowd), crowd.handed
        fit = handed.of_user_bytes_max // handed.size_of(POLLED_BYTES_MAX + 100)
        polls = [crowd.begin(f"a{number}", 1, 100, device.send, POLLED_BYTES_MAX) for number in range(fit + 1)]
        await asyncio.sleep(0)
        assert fit > 0 and len(device.has) == fit and polls[-1].waiting is not None
        device.answers.set()
        await crowd.settle(*polls)
        assert len(crowd.done) == fit + 1

    on_loop(main)()


def test_a_newcomer_for_which_there_is_room_sends_away_nobody_who_waits_for_its_own_share() -> None:
    async def main() -> None:
        crowd = Crowd()
        device, most = Device(crowd), HANDED_MAX // HANDED_USER_SHARE
        many = [crowd.begin(f"a{number}", 1, does=device.send) for number in range(most + WAITERS_MAX)]
        await asyncio.sleep(0)
        assert len(device.has) == most and not crowd.refused
        other = crowd.begin("b", 2, 1 << 20, device.send)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert device.has[most:] == ["b"] and not crowd.refused
        device.answers.set()
        await crowd.settle(*many, other)

    on_loop(main)()


def test_users_at_a_hung_device_leave_room_to_further_users_and_have_more_when_others_leave() -> None:
    async def main() -> None:
        crowd = Crowd()
        device, half = Device(crowd), HANDED_MAX // 2
        works = list[Work]()
        for user in range(1, 6):
            works += [crowd.begin(f"{user}", user, does=device.send) for _ in range(half + 5)]
            await asyncio.sleep(0)
            assert f"{user}" in device.has, "it finds room at once"
        assert [*Counter(device.has).values()] == [half >> each for each in range(5)] and not crowd.refused
        device.answers.set()
        await crowd.settle(*works)
        assert [*Counter(crowd.done).values()] == [half + 5] * 5 and crowd.handed.room.used == 0

    on_loop(main)()


def test_largest_send_has_room_beside_another_user_with_as_much_as_one_user_may_have() -> None:
    async def main() -> None:
        crowd = Crowd()
        device = Device(crowd)
        works = [crowd.begin(f"a{number}", 1, does=device.send) for number in range(HANDED_MAX)]
        await asyncio.sleep(0)
        works.append(crowd.begin("b", 2, crowd.handed.of_user_bytes_max * 4, device.send))
        await asyncio.sleep(0)
        assert device.has[-1] == "b" and len(device.has) == HANDED_MAX // 2 + 1
        device.answers.set()
        await crowd.settle(*works)

    on_loop(main)()


def test_user_with_large_send_waits_until_others_leave_and_holds_up_no_newcomer() -> None:
    async def main() -> None:
        crowd = Crowd()
        device, most = Device(crowd), crowd.handed.size_of(1 << 40)
        works = [crowd.begin(name, user, most, device.send) for name, user in (("a0", 1), ("a1", 1), ("b", 2))]
        works.append(crowd.begin("c", 3, most, device.send))
        await asyncio.sleep(0)
        works.append(crowd.begin("d", 4, does=device.send))
        await asyncio.sleep(0)
        assert device.has == ["a0", "a1", "b", "d"] and works[3].waiting is not None
        device.answers.set()
        await crowd.settle(*works)
        assert device.has[-1] == "c" and len(crowd.done) == 5 and not crowd.refused

    on_loop(main)()


def test_a_task_that_a_request_has_made_keeps_the_place_of_the_request() -> None:
    """It could be sent away where the request itself does not wait."""

    async def main() -> None:
        crowd, turns = Crowd(), FairTurns(1)

        async def inner() -> None:
            async with turns.turn(()):
                pass

        async def outer(work: Work) -> None:
            STEP_ASIDE.set(partial(crowd.places.aside, work))
            await asyncio.gather(inner(), inner())

        work = Work(1, 1, 1, False, False, 0.0)
        crowd.places.enter(work)
        async with turns.turn(()):
            work.task = asyncio.get_running_loop().create_task(outer(work))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert crowd.freed == 0 and work.waiting is None
        await crowd.settle(work)

    on_loop(main)()


def test_a_computation_comes_while_the_turn_is_on_its_way_to_another_it_waits_aside() -> None:
    """A lock is free from its release until the task of the next one runs, which has it all the same."""

    async def main() -> None:
        slices, asides = Slices(), 0

        @contextlib.contextmanager
        def counted() -> Iterator[None]:
            nonlocal asides
            asides += 1
            yield

        async def other() -> None:
            await slices.run(())

        async with slices._turn.turn(()):
            waiting = asyncio.get_running_loop().create_task(other())
            await asyncio.sleep(0)
        STEP_ASIDE.set(counted)
        await slices.run(())
        await waiting
        assert asides == 1

    on_loop(main)()
