"""Changes that are made one at a time, and as a whole: a client that goes away while its change is on the way to the
log ends no part of it. gRPC cancels what handles a call that its client gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

Made = TypeVar("Made")


class Turns:
    """Loop thread only."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._change: asyncio.Task[object] | None = None  # a loop refers to its tasks weakly

    async def take(self, change: Callable[[], Awaitable[Made]], ended: Callable[[], None] = lambda: None) -> Made:
        """The result of `change`, or its error. A caller that is cancelled while it waits for its turn has changed
        nothing; when it is cancelled later, the change goes on to its end. `ended` is called once, in each case,
        before the next turn."""
        try:
            await self._lock.acquire()
        except BaseException:
            ended()
            raise
        self._change = asyncio.ensure_future(change())
        self._change.add_done_callback(lambda done: self._ended(done, ended))
        return await asyncio.shield(self._change)

    def _ended(self, done: asyncio.Task[object], ended: Callable[[], None]) -> None:
        self._change = None
        if not done.cancelled():
            done.exception()  # the client has got it, if it is still there
        ended()
        self._lock.release()
