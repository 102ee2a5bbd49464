"""Handshakes of TLS or QUIC that the processes of a door have counted: they tell one worker, which has them among its
figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from shardd.protocol.door_figures import TellHandshakes
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.limits import U64_MAX

TELLING_PROCESSES_MAX: Final = 64  # of a door, in the last seconds
FRESH_S: Final = 5.0  # a process with handshakes that wait tells them each second


class HandshakeFigures:
    """Of one door. Lives on the loop thread."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._counted: dict[str, int] = {}
        self._waiting: dict[int, tuple[float, int]] = {}  # by process: when it was told, and how many

    async def tell(self, request: TellHandshakes) -> None:
        """3: what is no count, or too many processes."""
        more = {
            "tls_begun": request.begun,
            "tls_handshakes": request.handshakes,
            "tls_resumed": request.resumed,
            "tls_failed": request.failed,
            "tls_refused": request.refused,
        }
        sums = {name: self._counted.get(name, 0) + count for name, count in more.items()}
        self._forget_silent()
        is_known = request.process in self._waiting or len(self._waiting) < TELLING_PROCESSES_MAX
        counts = (request.process, request.waiting, *more.values(), *sums.values())
        if not is_known or not all(0 <= count <= U64_MAX for count in counts):
            raise ShardError(Status.INVALID_COMMAND)
        self._counted = sums
        self._waiting[request.process] = self._clock_s(), request.waiting

    def counters(self) -> dict[str, int]:
        """None before the door has told any."""
        return dict(self._counted)

    def gauges(self) -> dict[str, int]:
        self._forget_silent()
        return {"tls_waiting": sum(count for _, count in self._waiting.values())} if self._counted else {}

    def _forget_silent(self) -> None:
        since_s = self._clock_s() - FRESH_S
        self._waiting = {process: told for process, told in self._waiting.items() if told[0] >= since_s}
