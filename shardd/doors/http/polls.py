"""Places for polls: an answer of up to 8 MiB is in memory until its client has taken it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from starlette.responses import Response

from shardd.doors.asgi import Receive, Scope, Send
from shardd.doors.http.errors import RejectedError

POLLS_MAX: Final = 16  # at a time
POLLS_OF_ADDRESS_MAX: Final = 8
WAIT_S: Final = 30.0  # for a place
STREAMS_MAX: Final = 64  # of events at a time: each holds up to 8 MiB of records
STREAMS_OF_ADDRESS_MAX: Final = 16
SEND_S: Final = 60.0  # for a whole answer, however slowly it is taken


class Streams:
    """Who follows what, by address. Loop thread only."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()

    def enter(self, host: str) -> None:
        """RejectedError 503."""
        if self._of.total() >= STREAMS_MAX or self._of[host] >= STREAMS_OF_ADDRESS_MAX:
            raise RejectedError(503, "Too many streams of events at a time")
        self._of[host] += 1

    def leave(self, host: str) -> None:
        self._of[host] -= 1
        if not self._of[host]:
            del self._of[host]


class Polls:
    """Loop thread only."""

    def __init__(self) -> None:
        self.streams = Streams()
        self._all = asyncio.Semaphore(POLLS_MAX)
        self._of: dict[str, tuple[asyncio.Semaphore, int]] = {}

    async def take(self, host: str) -> Callable[[], None]:
        """What gives the place back. RejectedError 503."""
        of_host, users = self._of.get(host) or (asyncio.Semaphore(POLLS_OF_ADDRESS_MAX), 0)
        self._of[host] = (of_host, users + 1)
        taken: list[asyncio.Semaphore] = []

        def give_back() -> None:
            for each in taken:
                each.release()
            taken.clear()
            semaphore, left = self._of.pop(host)
            if left > 1:
                self._of[host] = (semaphore, left - 1)

        try:
            async with asyncio.timeout(WAIT_S):
                for each in (of_host, self._all):
                    await each.acquire()
                    taken.append(each)
        except TimeoutError:
            give_back()
            raise RejectedError(503, "Too many polls at a time") from None
        except BaseException:
            give_back()
            raise
        return give_back


class HeldResponse(Response):
    """An answer that has a place until it is taken, or until it has had time enough."""

    def __init__(self, answer: Response, give_back: Callable[[], None]) -> None:
        self._answer = answer
        self._give_back = give_back

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(SEND_S):
                await self._answer(scope, receive, send)
        finally:
            self._give_back()
