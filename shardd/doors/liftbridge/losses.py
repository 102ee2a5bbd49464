"""What comes over NATS and is not stored: core NATS delivers at most once, so nobody asks again. Each one is counted,
and the log has a line about them every now and then."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from enum import StrEnum
from typing import Final

REPORT_INTERVAL_S: Final = 10.0
_SUBJECT_CHARACTERS_MAX: Final = 100  # of one that a line names
_log = logging.getLogger(__name__)


class Loss(StrEnum):
    """Why. `DISCONNECTED` counts connections, not messages: how many came meanwhile nobody knows."""

    PAUSED = "paused partition"
    READONLY = "read-only partition"
    TOO_LARGE = "too large"
    OFFSET = "another offset expected"
    REFUSED = "no right to publish"
    NO_ROOM = "no room"
    NO_WORKER = "no worker"
    FAILED = "refused by the server"
    UNKNOWN = "perhaps stored, the worker was lost"
    ACKS = "ack not sent"
    PUBLISHES = "not sent to NATS"
    OUTWARD = "subject that this server does not send to"
    SLOW = "subscriber too slow"
    DISCONNECTED = "connection to NATS lost"


class Losses:
    """Loop thread only. `counts`: since the process began."""

    def __init__(self) -> None:
        self.counts: Counter[Loss] = Counter()
        self._new: Counter[Loss] = Counter()
        self._subject = ""
        self._report_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def count(self, loss: Loss, subject: str, messages: int = 1) -> None:
        self.counts[loss] += messages
        self._new[loss] += messages
        self._subject = subject
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time(), self._report_at_s), self._report)

    def close(self) -> None:
        """What was not said yet is said now."""
        if self._timer is not None:
            self._timer.cancel()
            self._report()

    def _report(self) -> None:
        self._timer = None
        self._report_at_s = asyncio.get_running_loop().time() + REPORT_INTERVAL_S
        reasons = ", ".join(f"{loss}: {count}" for loss, count in sorted(self._new.items()))
        self._new.clear()
        subject = self._subject[:_SUBJECT_CHARACTERS_MAX]
        _log.warning("messages over NATS that were lost (%s), the last one on %r", reasons, subject)
