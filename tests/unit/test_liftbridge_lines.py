"""The few places of the door for Liftbridge in which calls wait for a worker: users take turns at each of them. With a
real server: tests/doors/test_liftbridge_lines.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final

import pytest

from shardd.doors.liftbridge.arrivals import Arrivals
from shardd.doors.liftbridge.followers import Followers
from shardd.doors.liftbridge.metadata_rpcs import ANSWERS_MAX, Broker, MetadataRpcs
from shardd.doors.liftbridge.partitions import BOUNDS_MAX, POLLS_MAX, Partitions
from shardd.protocol.liftbridge import api_messages
from shardd.protocol.liftbridge.requests import StreamInfo
from shardd.protocol.primitives import PollingKind
from tests.support.on_loop import on_loop

STREAM: Final = StreamInfo("s", "s", "", 1, 2, 3, 1, 1, {})
ANSWERS: Final[dict[str, Any]] = {
    "poll_messages": {"count": 0, "records": b"", "incarnation": 1, "first_offset": 0, "end": 0},
    "get_partition_bounds": [{"partitions": [{"id": 0, "first": 0, "end": 0, "incarnation": 1}]}],
    "liftbridge_list_streams": [],
}
CROWD: Final = 100
TURNS: Final = 50  # of the loop: enough for all that can go on without an answer


class Workers:
    """Asked by users, `asked` in their order; they answer the oldest question when the test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._open: list[tuple[str, asyncio.Future[None]]] = []

    def call(self, user: str) -> Any:
        async def ask(name: str, *_: object) -> Any:
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.asked.append(user)
            self._open.append((user, answer))
            await answer
            return ANSWERS[name]

        return SimpleNamespace(line=(user, "127.0.0.1"), ask=ask, command=ask)

    async def answer(self, user: str = "") -> None:
        """The oldest question; `user`: of that one."""
        found = next(each for each in self._open if user in ("", each[0]))
        self._open.remove(found)
        found[1].set_result(None)
        await settled()


async def settled() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


Work = Callable[[Any], Awaitable[object]]


async def begun(work: Work, workers: Workers) -> Sequence[asyncio.Future[object]]:
    """A crowd of one user's calls."""
    crowd = [asyncio.ensure_future(work(workers.call("many"))) for _ in range(CROWD)]
    await settled()
    return crowd


def polls(partitions: Partitions) -> Work:
    return lambda call: partitions.poll(call, STREAM, 0, PollingKind.FIRST, 0, 1)


def bounds(partitions: Partitions) -> Work:
    return lambda call: partitions.bounds(call, [(STREAM, (0,))])


def answers(partitions: Partitions) -> Work:
    registry: Any = SimpleNamespace(streams=dict)
    rpcs = MetadataRpcs(registry, partitions, Arrivals(Followers(partitions)), Broker("b", "h", 1))
    return lambda call: rpcs.fetch(call, api_messages.FetchMetadataRequest())


LINES: Final = pytest.mark.parametrize(
    ("line", "places"),
    [(polls, POLLS_MAX), (bounds, BOUNDS_MAX), (answers, ANSWERS_MAX)],
    ids=["polls", "bounds", "answers"],
)


@LINES
def test_user_behind_a_crowd_of_another_one_has_a_place_in_its_turn(
    line: Callable[[Partitions], Work], places: int
) -> None:
    @on_loop
    async def scenario() -> None:
        workers, work = Workers(), line(Partitions())
        crowd = await begun(work, workers)
        assert workers.asked == ["many"] * (places // 2), "the crowd has its share"
        others = [asyncio.ensure_future(work(workers.call(f"other {number}"))) for number in range(places)]
        await settled()
        one = asyncio.ensure_future(work(workers.call("one")))
        await settled()
        assert "one" not in workers.asked, "others have the rest"
        while not one.done():
            await workers.answer()
        assert all(each.done() for each in others)
        assert sum(each.done() for each in crowd) <= 2 * places
        while not all(each.done() for each in crowd):
            await workers.answer()

    scenario()


@LINES
def test_user_is_served_while_all_questions_of_another_one_are_stuck(
    line: Callable[[Partitions], Work], places: int
) -> None:
    """Their worker does not answer: it is stopped, or its device hangs."""

    @on_loop
    async def scenario() -> None:
        workers, work = Workers(), line(Partitions())
        crowd = await begun(work, workers)
        for _ in range(2 * places):
            one = asyncio.ensure_future(work(workers.call("one")))
            await settled()
            assert "one" in workers.asked, workers.asked
            while not one.done():
                await workers.answer("one")
        assert not any(each.done() for each in crowd)
        for each in crowd:
            each.cancel()

    scenario()
