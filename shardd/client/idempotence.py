"""What makes a producer's batches be stored once: its id at the server, its epoch, and the number of each batch in its
partition (docs/extensions.md#producers)."""

from __future__ import annotations

import asyncio
import struct
from typing import Final

from shardd.client import commands
from shardd.client.errors import ClientError, FeatureUnavailableError
from shardd.client.outbox import Batch, Lane
from shardd.client.session import Session

BATCH_BYTES_MAX: Final = 2 << 20  # of records: the server takes no larger one
_HEAD: Final = struct.Struct("<QQI")
_ANSWER: Final = struct.Struct("<B3xIQ")
_STORED, _DUPLICATE, _GAP, _STALE, _UNKNOWN, _MEMORY = range(1, 7)
_RENEWALS: Final = 4  # within the time after which the server forgets an idle producer


class ProducerError(ClientError):
    """The server takes no batch of this producer any more: a later epoch has begun, or it does not know it (any more).
    Make a new one; what became of batches without an answer only a reader of the topic can tell."""


class GapError(ClientError):
    """A batch before this one is not stored, so neither was this."""

    retryable = True


class Sequencer:
    """Gives batches their numbers. `begin` is awaited before the first one."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._producer = self._epoch = 0
        self._renewing: asyncio.Task[None] | None = None

    async def begin(self, deadline_s: float) -> None:
        """Once. FeatureUnavailableError where the server has no such thing, ClientError."""
        if self._producer:
            return
        try:
            offered = await self._session.call(commands.extensions(), deadline_s)
        except ClientError as error:
            if error.status != commands.UNKNOWN_COMMAND:
                raise
            raise FeatureUnavailableError("this server has no idempotent producers") from None
        if all(each.code != commands.SEND_ONCE for each in offered.commands):
            raise FeatureUnavailableError("this server has no idempotent producers")
        self._producer, self._epoch, expiry_us = await self._session.call(commands.init_producer(), deadline_s)
        self._renewing = asyncio.get_running_loop().create_task(self._renew(expiry_us / 1e6 / _RENEWALS))

    async def _renew(self, interval_s: float) -> None:
        """What goes wrong here the next batch is told."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self._session.call(commands.init_producer(self._producer, self._epoch, renew=True))
            except ClientError:
                continue

    def head(self, lane: Lane, batch: Batch) -> bytes:
        """Stands before the request. A batch that is sent again keeps its number."""
        if batch.sequence is None:
            batch.sequence = lane.next_sequence
            lane.next_sequence += 1
        return _HEAD.pack(self._producer, batch.sequence, self._epoch)

    @staticmethod
    def judge(answer: bytes) -> ClientError | None:
        """None: it is stored, now or before."""
        kind, count, first = _ANSWER.unpack(answer)
        if kind in (_STORED, _DUPLICATE):
            return None
        if kind == _GAP:
            return GapError(f"batch {first} of the partition is not stored yet")
        reasons = {
            _STALE: f"epoch {count} of this producer has begun",
            _UNKNOWN: "the partition does not know this producer (any more)",
            _MEMORY: "a topic at the level memory may lose what it has acknowledged",
        }
        return ProducerError(reasons.get(kind, f"an answer of kind {kind}"))

    def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
