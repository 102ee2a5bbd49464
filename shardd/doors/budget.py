"""Room for what strangers make the door keep: one number for all connections, at most half of it for one address. Who
finds no room waits in line."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Final

ADDRESS_SHARE: Final = 2


class Budget:
    """Loop thread only. What is never refused (`charge`) may go beyond the end: then nobody else is let in."""

    def __init__(self, bytes_max: int) -> None:
        self._max = bytes_max
        self._of: Counter[str] = Counter()
        self._used = 0
        self._waiting: deque[tuple[str, int, asyncio.Future[None]]] = deque()

    @property
    def used_bytes(self) -> int:
        return self._used

    async def take(self, host: str, count: int) -> None:
        """Room for so many bytes: at once, or when others have left it. Whoever is cancelled has none."""
        if self._fits(host, count):
            self.charge(host, count)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((host, count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(host, count)
            else:
                self._waiting = deque(each for each in self._waiting if each[2] is not turn)
            raise

    def charge(self, host: str, count: int) -> None:
        self._used += count
        self._of[host] += count

    def give(self, host: str, count: int) -> None:
        self._used -= count
        self._of[host] -= count
        if not self._of[host]:
            del self._of[host]
        self._let_in()

    def _fits(self, host: str, count: int) -> bool:
        of_host = self._of.get(host, 0) + count
        return self._used + count <= self._max and of_host <= self._max // ADDRESS_SHARE

    def _let_in(self) -> None:
        """In their order; whose address is full waits on, and holds nobody else up."""
        left: deque[tuple[str, int, asyncio.Future[None]]] = deque()
        for host, count, turn in self._waiting:
            if not turn.done() and self._fits(host, count):
                self.charge(host, count)
                turn.set_result(None)
            elif not turn.done():
                left.append((host, count, turn))
        self._waiting = left
