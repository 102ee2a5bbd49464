"""Room for large messages of subscriptions (shardd.doors.liftbridge.calls): nobody has it for ever unread."""

from __future__ import annotations

import asyncio
from typing import Final

from shardd.doors.liftbridge.calls import LARGE_BYTES_MAX, LARGE_COPIES, LARGE_OF_ADDRESS_BYTES_MAX, Large
from shardd.runtime.crowds import Member, Room
from tests.support.on_loop import on_loop

SIZE: Final = LARGE_OF_ADDRESS_BYTES_MAX // LARGE_COPIES  # of a message: two users with one each have all the room
PATIENT_S: Final = 20.0


class Crowd:
    """Users with a message each that they do not take."""

    def __init__(self) -> None:
        self.gone: list[str] = []
        self.room = Room(LARGE_BYTES_MAX, LARGE_OF_ADDRESS_BYTES_MAX)

    async def member(self, user: str) -> Member:
        size = SIZE * LARGE_COPIES
        return await self.room.take(user, "192.0.2.1", lambda: self.gone.append(user), size, at_work=True)

    async def large(self, user: str, late_s: float) -> Large:
        return Large(self.room, await self.member(user), SIZE, late_s)


def test_message_of_a_user_is_late_a_user_with_as_large_a_one_gets_its_room() -> None:
    async def main() -> None:
        crowd = Crowd()
        held = [await crowd.large("a", 0.0), await crowd.large("b", 10 * PATIENT_S)]
        third = await asyncio.wait_for(crowd.member("c"), PATIENT_S)
        assert crowd.gone == ["a"]
        for each in held:
            each.leave()
        assert crowd.room.used == third.size

    on_loop(main)()


def test_message_is_late_and_its_own_user_waits_only_it_keeps_its_room() -> None:
    async def main() -> None:
        crowd = Crowd()
        held = await crowd.large("a", 10 * PATIENT_S)
        waiting = asyncio.create_task(crowd.member("a"))
        await asyncio.sleep(0)
        held._look()
        assert crowd.gone == [] and not waiting.done()
        held.leave()
        await waiting

    on_loop(main)()
