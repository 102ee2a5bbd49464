"""Requests of workers that ask other shards: a user that begins behind hundreds of another one is served after a few of
them, also where those get no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import pytest

from shardd.protocol import requests
from shardd.protocol.extensions import ExtensionRequest
from shardd.runtime.metrics import ShardFigures
from shardd.service import base
from shardd.service.extensions import METRICS_MAX, ExtensionService
from shardd.service.groups import CHANGES_MAX, GroupService
from shardd.service.identity import Identity
from shardd.service.system import QUESTIONS_MAX, SystemService
from tests.support.on_loop import on_loop

MANY: Final = Identity(1, 11, SimpleNamespace(removed=False, memberships={}))  # type: ignore[arg-type]
ONE: Final = Identity(2, 12, SimpleNamespace(removed=False, memberships={}))  # type: ignore[arg-type]
CROWD: Final = 500
TURNS: Final = 20  # of the loop: enough for all that can go on without an answer
FIGURES: Final = msgspec.msgpack.encode(ShardFigures(0, 1, 1, {}, {}, []))
REQUEST: Final = requests.GroupRequest("s", "t", "g")
Ask = Callable[[Identity], Awaitable[object]]


class Shards:
    """Asked in tasks with the names of users, `asked` in their order. They answer when the test says so."""

    def __init__(self) -> None:
        self.shard, self.shards = 0, 1
        self.patience = SimpleNamespace(standing={})
        self.asked: list[str] = []
        self._open: list[tuple[str, asyncio.Future[None]]] = []

    def serve(self, *_: object) -> None: ...

    async def gather(self, method: str, *_: object, **__: object) -> list[bytes]:
        await self.question()
        return [FIGURES] if method == "metrics" else []

    async def question(self, *_: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        answer = asyncio.get_running_loop().create_future()
        self.asked.append(task.get_name())
        self._open.append((task.get_name(), answer))
        await answer

    async def answer(self, user: str = "") -> None:
        """The oldest question; `user`: of that one."""
        found = next(each for each in self._open if user in ("", each[0]))
        self._open.remove(found)
        found[1].set_result(None)
        await settled()


async def settled() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def metrics(shards: Any) -> Ask:
    service = ExtensionService(SimpleNamespace(state=None), shards, Any, 0)  # type: ignore[arg-type]
    return lambda identity: service.get_metrics(identity, ExtensionRequest())


def clients(shards: Any) -> Ask:
    metadata: Any = SimpleNamespace(state=None)
    service = SystemService(metadata, Any, shards, SimpleNamespace(by_client=lambda _: None), Any)  # type: ignore[arg-type]
    return lambda identity: service.get_client(identity, requests.GetClient(7))


def changes(shards: Any, method: str) -> Ask:
    members: Any = SimpleNamespace(join=shards.question, leave=shards.question)
    metadata: Any = SimpleNamespace(state=None)
    service: Any = GroupService(metadata, members, None, 1, None)  # type: ignore[arg-type]
    found = SimpleNamespace(id=1, incarnation=1)
    service._find = lambda *_: (found, found, found)
    return lambda identity: getattr(service, method)(identity, REQUEST)


def joins(shards: Any) -> Ask:
    return changes(shards, "join_group")


def leaves(shards: Any) -> Ask:
    return changes(shards, "leave_group")


def begin(ask: Ask, identity: Identity, name: str) -> asyncio.Task[object]:
    async def work() -> object:
        return await ask(identity)

    return asyncio.create_task(work(), name=name)


@pytest.mark.parametrize(
    ("make", "places"),
    [(metrics, METRICS_MAX), (clients, QUESTIONS_MAX), (joins, CHANGES_MAX), (leaves, CHANGES_MAX)],
    ids=["metrics", "clients", "joins", "leaves"],
)
def test_user_behind_hundreds_of_another_one_is_served_after_a_few(
    make: Callable[[Shards], Ask], places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "require", lambda *_: None)

    @on_loop
    async def scenario() -> None:
        shards = Shards()
        ask = make(shards)
        crowd = [begin(ask, MANY, "many") for _ in range(CROWD)]
        await settled()
        assert len(shards.asked) <= places
        one = begin(ask, ONE, "one")
        await settled()
        assert shards.asked.index("one") <= places, "none of the others has an answer"
        await shards.answer("one")
        assert one.done() and not one.exception()
        for _ in range(CROWD):
            await shards.answer("many")
        assert all(each.done() and not each.exception() for each in crowd)

    scenario()
