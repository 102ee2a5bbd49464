"""What sessions of 0.9 remember, kept for a while after the end of their connection: the number of the last request and
its answer (docs/adr/0076-the-last-answer-outlives-its-connection.md). Lives on the loop thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

KEPT_S: Final = 120
KEPT_MAX: Final = 4096
KEPT_OF_USER_MAX: Final = 1024

User = tuple[int, int]
"""Id and incarnation."""


class Kept(msgspec.Struct, frozen=True):
    """`number`: of the session. `memory`: as the engine gives it, at most 544 bytes; b"": the client has logged out."""

    user: User
    number: int
    memory: bytes
    until_s: float


class KeptSessions:
    """By the id that the client has chosen; the oldest ones go first, those of a user with many before others."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._kept: dict[bytes, Kept] = {}  # in the order of `until_s`
        self._of_users: dict[User, dict[bytes, None]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, chosen_id: bytes, user: User, number: int, memory: bytes) -> None:
        """Instead of what was kept of the client. Nothing to remember is noted where there was something."""
        self._expire()
        if not memory and chosen_id not in self._kept:
            return
        self._drop(chosen_id)
        own = self._of_users.get(user, {})
        if len(own) >= KEPT_OF_USER_MAX:
            self._drop(next(iter(own)))
        elif len(self._kept) >= KEPT_MAX:
            self._drop(next(iter(self._kept)))
        self._kept[chosen_id] = Kept(user, number, memory, self._clock_s() + KEPT_S)
        self._of_users.setdefault(user, {})[chosen_id] = None

    def find(self, chosen_id: bytes) -> Kept | None:
        """It stays: another connection of the client may come before this one goes on."""
        self._expire()
        return self._kept.get(chosen_id)

    def _expire(self) -> None:
        now_s = self._clock_s()
        while self._kept and next(iter(self._kept.values())).until_s <= now_s:
            self._drop(next(iter(self._kept)))

    def _drop(self, chosen_id: bytes) -> None:
        kept = self._kept.pop(chosen_id, None)
        if kept is None:
            return
        own = self._of_users[kept.user]
        del own[chosen_id]
        if not own:
            del self._of_users[kept.user]
