"""Syncs that readers ask for (docs/adr/0125-a-batch-query-waits-for-the-sync.md): one after the other, and each
partition at most once in a second, however many readers ask. The asker does not wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Final, Generic, TypeVar

from shardd.runtime.asker import ASKER, SERVER

INTERVAL_S: Final = 1.0
Asked = TypeVar("Asked")


class AskedSyncs(Generic[Asked]):
    """Lives on the loop thread. `sync` raises nothing."""

    def __init__(self, sync: Callable[[Asked], Awaitable[None]], clock: Callable[[], float] = time.monotonic) -> None:
        self._sync = sync
        self._clock = clock
        self._begun: dict[tuple[int, int], float] = {}  # by partition, the oldest first
        self._waiting: dict[tuple[int, int], Asked] = {}
        self._task: asyncio.Task[None] | None = None

    def ask(self, partition: tuple[int, int], asked: Asked) -> None:
        """`partition`: namespace and incarnation."""
        if partition in self._waiting or self._is_recent(partition):
            return
        self._waiting[partition] = asked
        if self._task is None or self._task.done():
            server = copy_context()
            server.run(ASKER.set, SERVER)  # whoever asked first: the others' syncs are not that user's
            self._task = asyncio.get_running_loop().create_task(self._work(), context=server)

    def _is_recent(self, partition: tuple[int, int]) -> bool:
        since = self._clock() - INTERVAL_S
        while self._begun and self._begun[first := next(iter(self._begun))] <= since:
            del self._begun[first]
        return partition in self._begun

    async def _work(self) -> None:
        while self._waiting:
            partition = next(iter(self._waiting))
            asked = self._waiting.pop(partition)
            self._begun.pop(partition, None)
            self._begun[partition] = self._clock()
            await self._sync(asked)
