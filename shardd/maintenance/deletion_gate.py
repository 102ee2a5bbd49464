"""Deletions and purges wait while the trash is too full: what makes names must not be faster than what removes them
(docs/adr/0037)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from shardd.maintenance.trash_content import TrashContent
from shardd.protocol.errors import Status
from shardd.runtime.fair_turns import FairTurns
from shardd.runtime.threads import Threads

WAIT_S: Final = 10.0
_LOOK_INTERVAL_S: Final = 0.05
_REPORT_INTERVAL_S: Final = 10.0
_log = logging.getLogger(__name__)


class DeletionGate:
    """One deletion at a time passes, users in turn; the next one when what the last one has moved is counted. Lives on
    the loop thread of the worker that empties the trash, which `wake` hastens."""

    def __init__(self, content: TrashContent, names_max: int, threads: Threads, wake: Callable[[], None]) -> None:
        self._content = content
        self._names_max = names_max
        self._threads = threads
        self._wake = wake
        self._turns = FairTurns(1)
        self._counted = False
        self._closed = False
        self._bounds: set[asyncio.Timeout] = set()
        self._refused = 0
        self._report_again_s = 0.0

    def gauges(self) -> dict[str, int]:
        return {"deletions_waiting": len(self._bounds)}

    def counters(self) -> dict[str, int]:
        return {"deletions_refused": self._refused}

    def close(self) -> None:
        """The worker stops: nobody waits any more."""
        self._closed = True
        for bound in self._bounds:
            bound.reschedule(0.0)

    @asynccontextmanager
    async def enter(self, user_id: int) -> AsyncIterator[Status]:
        """OK when it may be done, in the context; else nothing may: 10008 after WAIT_S, 8 when the worker stops."""
        async with AsyncExitStack() as place:
            status = await self._wait(user_id, place)
            if status == Status.OK:
                self._counted = False
            yield status

    async def _wait(self, user_id: int, place: AsyncExitStack) -> Status:
        if self._closed:
            return Status.DISCONNECTED
        bound = asyncio.timeout(WAIT_S)
        try:
            async with bound:
                self._bounds.add(bound)
                await place.enter_async_context(self._turns.turn((str(user_id),)))
                await self._room()
        except TimeoutError:
            if self._closed:
                return Status.DISCONNECTED
            self._refused += 1
            self._report()
            return Status.CANNOT_DELETE_FILE
        finally:
            self._bounds.discard(bound)
        return Status.OK

    async def _room(self) -> None:
        if not self._counted:
            await self._threads.run(self._content.look)
            self._counted = True
        while self._content.names > self._names_max:
            self._wake()
            await asyncio.sleep(_LOOK_INTERVAL_S)

    def _report(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._report_again_s:
            self._report_again_s = now_s + _REPORT_INTERVAL_S
            _log.warning("deletions are refused: %d names are in the trash", self._content.names)
