"""Room for answers of polls while their worker is asked: what gives way is refused, and what stores stays."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardd.doors.asgi import Peer
from shardd.doors.http import polls as of_http
from shardd.doors.http.errors import RejectedError
from shardd.doors.http.polls import POLL_BYTES, POLLS_BYTES_MAX, STORING_POLLS_MAX, Place, Polls
from shardd.doors.quic import connection as of_quic
from shardd.doors.quic.connection import ClientConnection
from shardd.doors.quic.kept import Request
from shardd.protocol.codes import Code
from shardd.protocol.errors import Status
from shardd.protocol.replies import frame
from shardd.runtime.crowds import Room
from tests.support.on_loop import on_loop, until

ROOM = POLLS_BYTES_MAX // POLL_BYTES


class Connection:
    def __init__(self) -> None:
        self.is_reset = False

    def abort(self) -> None:
        self.is_reset = True


class Crowd:
    """Polls of one door whose worker answers when it is told to."""

    def __init__(self) -> None:
        self.polls = Polls()
        self.answer = asyncio.Event()
        self.begun: list[str] = []
        self.connections: list[Connection] = []
        self.tasks: list[asyncio.Task[Place]] = []

    def poll(self, owner: str, address: str = "", *, stores: bool = False) -> asyncio.Task[Place]:
        connection = Connection()
        self.connections.append(connection)
        self.tasks.append(asyncio.create_task(self._poll(owner, address or owner, connection, stores=stores)))
        return self.tasks[-1]

    async def _poll(self, owner: str, address: str, connection: Connection, *, stores: bool) -> Place:
        async with self.polls.expect(owner, address, cast(Peer, connection), stores=stores) as place:
            self.begun.append(owner)
            await self.answer.wait()
        return place

    async def leave(self, task: asyncio.Task[Place]) -> None:
        (await task).leave()

    def refused(self) -> list[RejectedError]:
        errors = [task.exception() for task in self.tasks if task.done()]
        return [error for error in errors if isinstance(error, RejectedError)]

    @property
    def resets(self) -> int:
        return sum(each.is_reset for each in self.connections)


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    for door in (of_http, of_quic):
        monkeypatch.setattr(door, "GRACE_S", 0.01)


@on_loop
async def test_poll_that_gives_way_is_refused_and_keeps_its_connection() -> None:
    crowd = Crowd()
    for owner in ("a", "b"):
        for _ in range(ROOM // 2):
            crowd.poll(owner)
    await until(lambda: len(crowd.begun) == ROOM)
    other = crowd.poll("c")
    await until(lambda: "c" in crowd.begun and len(crowd.refused()) == 1)
    [refusal] = crowd.refused()
    response = refusal.response()
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert "connection" not in response.headers
    assert crowd.resets == 0
    crowd.answer.set()
    await other
    await until(lambda: all(task.done() for task in crowd.tasks))
    assert len(crowd.refused()) == 1


@pytest.mark.parametrize("owners", [["a"], ["a", "b"]], ids=["one user", "two users"])
@on_loop
async def test_polls_that_store_lose_nothing_and_leave_room_to_another_user(owners: list[str]) -> None:
    crowd = Crowd()
    for owner in owners:
        for number in range(2 * ROOM):
            crowd.poll(owner, str(number % 4), stores=True)
    least = STORING_POLLS_MAX // 2 if len(owners) == 1 else STORING_POLLS_MAX * 2 // 3
    await until(lambda: len(crowd.begun) >= least)
    await asyncio.sleep(0.05)
    began = len(crowd.begun)
    for stores in (False, True):
        crowd.poll("c", stores=stores)
    await until(lambda: crowd.begun.count("c") == 2)
    assert len(crowd.begun) == began + 2
    assert crowd.resets == 0
    assert not any(task.done() for task in crowd.tasks)
    crowd.answer.set()
    await asyncio.gather(*(crowd.leave(task) for task in crowd.tasks))
    assert crowd.polls._polls.used == crowd.polls._storing.used == 0


@on_loop
async def test_answer_that_its_client_does_not_take_gives_way_with_its_connection() -> None:
    crowd = Crowd()
    crowd.answer.set()
    for stores in (True, False):
        for number in range(ROOM // 2):
            (await crowd.poll("a", str(number % 4), stores=stores)).is_answered()
    (await crowd.poll("b")).leave()
    assert crowd.resets == 1
    assert not crowd.refused()


@on_loop
async def test_polls_that_are_cancelled_leave_no_room_taken() -> None:
    crowd = Crowd()
    for number in range(2 * ROOM):
        crowd.poll("a", stores=number % 2 == 0)
    await until(lambda: len(crowd.begun) >= STORING_POLLS_MAX // 2)
    for task in crowd.tasks:
        task.cancel()
    await asyncio.gather(*crowd.tasks, return_exceptions=True)
    assert crowd.polls._polls.used == crowd.polls._storing.used == 0


class QuicConnection:
    """Of one user, with what a request needs of it. `written`: answers, and the room they have."""

    def __init__(self, room: Room, owner: str, answer: asyncio.Event) -> None:
        self._shared = SimpleNamespace(polls=room, answers=room)
        self._owner = self.host = owner
        self._places, self._over = asyncio.Semaphore(16), False
        self._answered = answer
        self.begun = 0
        self.ends = 0
        self.written: list[tuple[bytes, bool]] = []

    def ask(self, *, stores: bool) -> asyncio.Task[None]:
        request = Request(0, 0.0, bytearray(), code=Code.POLL_MESSAGES)
        return asyncio.create_task(ClientConnection._answer(cast(ClientConnection, self), request, stores))

    def _turn(self, _code: int) -> Any:
        return nullcontext()

    def _storing(self, _stores: bool) -> Any:
        return nullcontext()

    async def _executed(self, _request: Request) -> tuple[Status, bytes, bool]:
        self.begun += 1
        await self._answered.wait()
        return Status.OK, b"polled", False

    def _write(self, _request: Request, answer: bytes, _room: Room, member: object) -> None:
        self.written.append((answer, member is not None))

    def _give_way(self) -> None:
        self.ends += 1


@pytest.mark.parametrize("stores", [False, True], ids=["reads", "stores"])
@on_loop
async def test_poll_over_quic_that_gives_way_is_refused_and_one_that_stores_stays(stores: bool) -> None:
    answer, room = asyncio.Event(), Room(2 * of_quic.POLL_BYTES, 2 * of_quic.POLL_BYTES)
    greedy, modest = (QuicConnection(room, owner, answer) for owner in ("greedy", "modest"))
    tasks = [greedy.ask(stores=stores), greedy.ask(stores=stores)]
    await until(lambda: greedy.begun == 2)
    tasks.append(modest.ask(stores=False))
    if stores:
        await asyncio.sleep(0.05)
        assert not modest.begun
        assert not greedy.written
    else:
        await until(lambda: modest.begun == 1 and len(greedy.written) == 1)
        assert greedy.written == [(frame(Status.DISCONNECTED), False)]
        answer.set()
        await asyncio.gather(*tasks)
        assert greedy.written[1:] == modest.written == [(frame(Status.OK, b"polled"), True)]
    assert greedy.ends == 0
    for task in tasks:
        task.cancel()
