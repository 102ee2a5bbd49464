"""What a producer has not been told the end of: batches of a partition in their order, and what becomes of them.

A partition's batches go out in their order. When one fails, nothing more of the partition goes out until all that are
on the way are answered; then those that failed go again, in their order, or end with their error. One that failed
before another one was stored, or may have been, cannot go again: it would be out of order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from shardd.client.errors import ClientError, ConnectionLostError, DeliveryError, Fate
from shardd.client.wire import Identifier


class Position(NamedTuple):
    """Where a message is stored. The protocol tells no offset."""

    stream: Identifier
    topic: Identifier
    partition: int


class SentOutOfOrderError(ClientError):
    """Not stored, while a later batch of its partition was."""


class Batch:
    """Records of one request. `fate`: UNKNOWN from the first attempt on whose answer did not come."""

    __slots__ = ("answers", "error", "fate", "records", "sealed", "sequence", "size_bytes", "until")

    def __init__(self, until: float) -> None:
        self.records: list[bytes] = []
        self.answers: list[asyncio.Future[Position]] = []
        self.size_bytes = 0
        self.until = until
        self.sealed = False
        self.error: ClientError | None = None
        self.fate = Fate.NOT_SENT
        self.sequence: int | None = None  # its number in the partition, when it is to be stored once

    def stored(self, position: Position) -> None:
        for answer in self.answers:
            if not answer.done():
                answer.set_result(position)

    def failed(self, error: ClientError) -> None:
        for answer in self.answers:
            if not answer.done():
                answer.set_exception(DeliveryError(error, self.fate))
                answer.exception()  # who does not look at it is not told by the loop


class Lane:
    """The batches of one partition. `waiting`: in their order, the last one may be open; `failed`: since the last
    settlement."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.waiting: deque[Batch] = deque()
        self.on_the_way = 0
        self.failed: list[Batch] = []
        self.broken = 0  # of `failed`: those in front of one that was stored
        self.doubtful = 0  # those in front of one that may be
        self.attempts = 0  # since something was stored
        self.listed = False  # among those of which a batch may go out

    def ready(self) -> bool:
        """Whether its next batch may go out."""
        return bool(self.waiting) and self.waiting[0].sealed and not self.failed

    def take(self) -> Batch:
        self.on_the_way += 1
        return self.waiting.popleft()

    def answered(self, batch: Batch, error: ClientError | None) -> None:
        self.on_the_way -= 1
        if error is None:
            self.broken = len(self.failed)
            self.attempts = 0
            return
        batch.error = error
        if error.fate is Fate.UNKNOWN:
            batch.fate = Fate.UNKNOWN
            self.doubtful = len(self.failed)
        self.failed.append(batch)

    def dropped(self, batch: Batch) -> None:
        """One that waited was given up."""

    def settle(self, now: float, again_when_unknown: bool) -> list[tuple[Batch, ClientError]]:
        """When nothing is on the way: what ends with its error. The rest of what failed waits in front."""
        ended: list[tuple[Batch, ClientError]] = []
        again: list[Batch] = []
        for number, batch in enumerate(self.failed):
            error = batch.error or ConnectionLostError("the connection was lost")
            batch.error = None
            not_sent = error.fate is Fate.NOT_SENT  # this time
            if not_sent and error.retryable and number < max(self.broken, self.doubtful):
                ended.append((batch, SentOutOfOrderError(f"{error}; a later batch of the partition may be stored")))
            elif not error.retryable or now >= batch.until or number < self.broken:
                ended.append((batch, error))
            elif not_sent or again_when_unknown:
                again.append(batch)
            else:
                ended.append((batch, error))
        self.failed, self.broken, self.doubtful = [], 0, 0
        self.attempts += 1
        self.waiting.extendleft(reversed(again))
        return ended
