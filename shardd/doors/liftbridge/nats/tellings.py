"""Tells stored messages to one user after the other. With thousands of users that takes longer than a turn of the loop
may take: the other users wait for the next turn, and messages that are stored meanwhile wait behind them, so each user
hears messages in the order in which streams have stored them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, Protocol, TypeVar

TURN_S: Final = 0.004
LOOKS_PER_CLOCK: Final = 16  # users, or what they hear, between two looks at the clock
WAITING_MAX: Final = 4_096  # of what is told, each counted for each stream that has stored it
WAITING_BYTES_MAX: Final = 16 << 20
_log = logging.getLogger(__name__)


class Told(Protocol):
    """`size_bytes`: what it keeps in memory."""

    @property
    def size_bytes(self) -> int: ...


User = TypeVar("User")
What = TypeVar("What", bound=Told)


class Tellings(Generic[User, What]):
    """Loop thread only. `users(what)`: to whom it is told, of those that are there now; `tell(user, what)`: how many
    messages that has made; `lost(what)`: so much waits that nobody hears it."""

    def __init__(
        self,
        users: Callable[[What], Iterable[User]],
        tell: Callable[[User, What], int],
        lost: Callable[[What], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._users = users
        self._tell = tell
        self._lost = lost
        self._clock = clock
        self._waiting: deque[What] = deque()
        self._bytes = 0
        self._rest: Iterator[User] | None = None  # to whom the first of them is to be told still
        self._next_turn: asyncio.Handle | None = None
        self.caught_up: Callable[[], None] = lambda: None

    @property
    def is_behind(self) -> bool:
        """Something waits for a later turn; `caught_up` is called when nothing does."""
        return self._next_turn is not None

    def put(self, what: What) -> None:
        if self._waiting and (len(self._waiting) >= WAITING_MAX or self._bytes + what.size_bytes > WAITING_BYTES_MAX):
            self._lost(what)
            return
        self._waiting.append(what)
        self._bytes += what.size_bytes
        if self._next_turn is None:
            self._go_on(later=False)

    def _go_on(self, later: bool = True) -> None:
        self._next_turn = None
        until_s, looks = self._clock() + TURN_S, 0
        while self._waiting:
            what = self._waiting[0]
            if self._rest is None:
                self._rest = iter(self._users(what))
            for user in self._rest:
                looks += 1 + self._told(user, what)
                if looks >= LOOKS_PER_CLOCK:
                    looks = 0
                    if self._clock() >= until_s:
                        self._next_turn = asyncio.get_running_loop().call_soon(self._go_on)
                        return
            self._rest = None
            self._waiting.popleft()
            self._bytes -= what.size_bytes
        if later:
            self.caught_up()

    def _told(self, user: User, what: What) -> int:
        """A fault of this program with one user keeps nobody else waiting."""
        try:
            return self._tell(user, what)
        except Exception:
            _log.exception("what hears of a message")
            return 0
