"""Notices of changed metadata: bounded in time, never blocking, and the newest record is always told in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from shardd.dispatch.door.notices import INTERVAL_S, MetadataNotices
from shardd.metadata import State
from shardd.protocol.door_frames import Kind, MetadataChanged


class Metadata:
    def __init__(self) -> None:
        self.state = State()
        self.applied: list[Callable[[State, State, Any], None]] = []

    def subscribe(self, applied: Callable[[State, State, Any], None]) -> None:
        self.applied.append(applied)

    def change(self) -> None:
        self.state = State(self.state.index + 1)
        for applied in self.applied:
            applied(self.state, self.state, None)


class Connection:
    def __init__(self) -> None:
        self.reads = True
        self.told: list[int] = []

    def notice(self, kind: Kind, value: object) -> bool:
        assert kind is Kind.METADATA_CHANGED and isinstance(value, MetadataChanged)
        if self.reads:
            self.told.append(value.index)
        return self.reads


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError


def test_many_changes_are_few_notices_and_the_newest_is_told() -> None:
    async def scenario() -> None:
        metadata, connection = Metadata(), Connection()
        notices = MetadataNotices(metadata, lambda: [connection])  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(200):
            metadata.change()
            await asyncio.sleep(0.001)
        await until(lambda: connection.told[-1:] == [200])
        assert len(connection.told) <= (loop.time() - began) / INTERVAL_S + 1
        assert connection.told == sorted(set(connection.told))
        notices.stop()

    asyncio.run(scenario())


def test_a_door_that_does_not_read_is_told_when_it_does_and_holds_up_nobody() -> None:
    async def scenario() -> None:
        metadata, deaf, other = Metadata(), Connection(), Connection()
        deaf.reads = False
        notices = MetadataNotices(metadata, lambda: [deaf, other])  # type: ignore[arg-type]
        for _ in range(5):
            metadata.change()
        await until(lambda: other.told == [5])
        assert not deaf.told
        deaf.reads = True
        await until(lambda: deaf.told == [5])
        assert other.told == [5], "who knows is not told again"
        notices.stop()

    asyncio.run(scenario())


def test_without_a_door_nothing_is_due_and_a_new_one_hears_of_what_there_is() -> None:
    async def scenario() -> None:
        metadata, connections = Metadata(), list[Connection]()
        notices = MetadataNotices(metadata, lambda: connections)  # type: ignore[arg-type]
        metadata.change()
        assert notices._timer is None
        connections.append(Connection())
        notices.due()
        await until(lambda: connections[0].told == [1])
        notices.stop()
        metadata.change()
        await asyncio.sleep(2 * INTERVAL_S)
        assert connections[0].told == [1], "the worker stops"

    asyncio.run(scenario())
