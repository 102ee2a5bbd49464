"""What makes a producer's batches be stored once: its id at the server, its epoch, and the number of each batch in its
partition (docs/extensions.md#producers)."""

from __future__ import annotations

import asyncio
import struct
from typing import Final

from shardd.client import command_codes, commands, statuses
from shardd.client.commands import Command, of
from shardd.client.errors import (
    ClientError,
    ConnectionLostError,
    Fate,
    FeatureUnavailableError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
)
from shardd.client.outbox import Batch, Lane
from shardd.client.session import Session, pause_s

BATCH_BYTES_MAX: Final = 2 << 20  # of records: the server takes no larger one
_HEAD: Final = struct.Struct("<QQI")
_ANSWER: Final = struct.Struct("<B3xIQ")
_PRODUCER: Final = struct.Struct("<QIB")
_PRODUCER_EPOCH: Final = struct.Struct("<QIQ")
_STORED, _DUPLICATE, _GAP, _STALE, _UNKNOWN, _MEMORY = range(1, 7)
_RENEWALS: Final = 4  # within the time after which the server forgets an idle producer


class ProducerError(ClientError):
    """The server does not take this batch. A later batch is tried in a new epoch of the producer."""


class StaleProducerError(ProducerError):
    """Another epoch of this producer has begun, by a restore of the server: make a new producer. Only a reader of the
    topic can tell what became of batches without an answer."""


class ForgottenError(ProducerError):
    """The partition does not take the numbers of this producer (any more): it was purged or made again, lost them with
    the power, or an epoch began that this producer had asked for, and whose answer had not come."""


class UnstorableError(ProducerError):
    """The batch is not stored, and its number is free."""


class GapError(ClientError):
    """A batch before this one is not stored, so neither was this."""

    retryable = True


_FREE: Final = (PermissionDeniedError, InvalidRequestError, UnstorableError)
# not NOT_WRITTEN (10006): a device that fails may keep what it could not be told to take back, and a restart finds it
_FREE_STATUSES: Final = frozenset({statuses.STREAM_NOT_FOUND, statuses.TOPIC_NOT_FOUND, statuses.TOPIC_FULL})


def init_producer(producer: int = 0, epoch: int = 0, *, renew: bool = False) -> Command[tuple[int, int, int]]:
    """(id, epoch, expiry in microseconds) of a new one, or of the next epoch of one, or of the same with `renew`. Each
    time that it is carried out makes another one, which is forgotten when nobody uses it."""
    payload = _PRODUCER.pack(producer, epoch, renew)
    return of(command_codes.INIT_PRODUCER, payload, _producer_epoch, repeatable=producer == 0 or renew)


def _producer_epoch(answer: bytes) -> tuple[int, int, int]:
    producer, epoch, expiry_us = _PRODUCER_EPOCH.unpack(answer)
    return producer, epoch, expiry_us


def _frees(error: ClientError) -> bool:
    """Whether the server has certainly not counted a batch with this error, however it was sent."""
    return isinstance(error, _FREE) or error.status in _FREE_STATUSES


class NumberedLane(Lane):
    """`next_sequence`: of the next new batch. `has_hole`: one of the numbers was given up, or the partition does not
    know them any more, so it stores nothing more in this epoch."""

    def __init__(self, partition: int, sequencer: Sequencer) -> None:
        super().__init__(partition)
        self._sequencer = sequencer
        self.next_sequence = 0
        self.has_hole = False

    @property
    def is_in_doubt(self) -> bool:
        """Whether one of its batches may be stored, or may still be."""
        return bool(self.on_the_way or self.failed) or self._waits_in_doubt

    @property
    def _waits_in_doubt(self) -> bool:
        return any(each.sequence is not None and each.fate is Fate.UNKNOWN for each in self.waiting)

    def ready(self) -> bool:
        """Before a new epoch only batches go out whose fate is to be learnt."""
        if not super().ready():
            return False
        if not self._sequencer.is_over or self._sequencer.is_settled:
            return True
        return self.waiting[0].sequence is not None and self._waits_in_doubt

    def dropped(self, batch: Batch) -> None:
        if batch.sequence is not None:
            self._sequencer.leave_hole(self)

    def settle(self, now: float, again_when_unknown: bool) -> list[tuple[Batch, ClientError]]:
        """What is not stored goes again: with its number, or with one of the next epoch when the partition has
        forgotten those of this one. What may be stored goes again only with its number."""
        ended: list[tuple[Batch, ClientError]] = []
        again: list[Batch] = []
        for position, batch in enumerate(self.failed):
            error = batch.error or ConnectionLostError("the connection was lost")
            batch.error = None
            is_gap = isinstance(error, GapError) and (position == 0 or self.has_hole)  # nothing comes that fills it
            if is_gap or isinstance(error, ForgottenError):
                self._sequencer.leave_hole(self)
                is_final = batch.fate is Fate.UNKNOWN
            else:
                is_final = not error.retryable
            if is_final or now >= batch.until:
                ended.append((batch, error))
                if batch.fate is Fate.UNKNOWN or not _frees(error):
                    self._sequencer.leave_hole(self)
                if isinstance(error, StaleProducerError):
                    self._sequencer.final = error
            else:
                again.append(batch)
        first = self.failed[0].sequence if self.failed else None
        self.failed, self.broken, self.doubtful = [], 0, 0
        self.attempts += 1
        self.waiting.extendleft(reversed(again))
        if ended and not self.has_hole:
            self._free(first)
        return ended

    def _free(self, first: int | None) -> None:
        """The server stores no batch before its turn: where none is in doubt, all numbers from the first one on can be
        given again."""
        if first is None or self._waits_in_doubt:
            self._sequencer.leave_hole(self)
        else:
            self.number_anew(first)

    def number_anew(self, first: int) -> None:
        self.has_hole, self.next_sequence = False, first
        for batch in self.waiting:
            batch.sequence = None


class Sequencer:
    """Gives batches their numbers, and begins an epoch when those of the one before are of no use any more. `is_over`:
    a lane of this epoch has a hole; `final`: no epoch follows."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._producer = self._epoch = 0
        self._expiry_s = 0.0
        self._in_vain = 0  # epochs since a batch was stored
        self._unsure = 0  # epochs that were asked for and may still begin behind this one: their answers did not come
        self._lanes: list[NumberedLane] = []
        self._renewing: asyncio.Task[None] | None = None
        self.is_over = False
        self.final: StaleProducerError | None = None

    def lane(self, partition: int) -> Lane:
        made = NumberedLane(partition, self)
        self._lanes.append(made)
        return made

    def leave_hole(self, lane: NumberedLane) -> None:
        lane.has_hole = self.is_over = True

    @property
    def is_settled(self) -> bool:
        """Nothing is on the way, and nothing that may be stored waits."""
        return not any(each.is_in_doubt for each in self._lanes)

    @property
    def is_due(self) -> bool:
        """Whether an epoch has to begin before anything more goes out."""
        return not self._producer or (self.is_over and self.is_settled)

    async def begin(self, deadline_s: float) -> None:
        """A new epoch ends the ones before in every partition, so nothing of them can be stored later.
        FeatureUnavailableError where the server has no such thing, ClientError."""
        if self.final is not None:
            raise self.final
        if not self._producer:
            await self._look(deadline_s)
        elif self._in_vain:
            await asyncio.sleep(min(deadline_s, pause_s(self._in_vain)))
        self._in_vain += 1
        try:
            made = await self._session.call(init_producer(self._producer), deadline_s)
        except NotFoundError:  # the server has forgotten an idle one, and takes no batch of it
            made = await self._session.call(init_producer(), deadline_s)
        except ClientError as error:
            if error.fate is Fate.UNKNOWN:
                self._unsure += 1
            raise
        producer, epoch, expiry_us = made
        if producer == self._producer:  # those between have begun, too
            self._unsure = max(self._unsure - (epoch - self._epoch - 1), 0)
        else:
            self._unsure = 0
        self._producer, self._epoch = producer, epoch
        self._expiry_s = expiry_us / 1e6
        for lane in self._lanes:
            lane.number_anew(0)
        self.is_over = False
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew())

    async def _look(self, deadline_s: float) -> None:
        try:
            offered = await self._session.call(commands.extensions(), deadline_s)
        except ClientError as error:
            if error.status != statuses.INVALID_COMMAND:
                raise
            raise FeatureUnavailableError("this server has no idempotent producers") from None
        if all(each.code != commands.SEND_ONCE for each in offered.commands):
            raise FeatureUnavailableError("this server has no idempotent producers")

    async def _renew(self) -> None:
        """What goes wrong here the next batch is told."""
        while True:
            await asyncio.sleep(self._expiry_s / _RENEWALS)
            try:
                await self._session.call(init_producer(self._producer, self._epoch, renew=True))
            except ClientError:
                continue

    def head(self, lane: Lane, batch: Batch) -> bytes:
        """Stands before the request. A batch that is sent again keeps its number."""
        assert isinstance(lane, NumberedLane)
        if batch.sequence is None:
            batch.sequence = lane.next_sequence
            lane.next_sequence += 1
        return _HEAD.pack(self._producer, batch.sequence, self._epoch)

    def judge(self, answer: bytes) -> ClientError | None:
        """None: it is stored, now or before."""
        kind, count, first = _ANSWER.unpack(answer)
        if kind in (_STORED, _DUPLICATE):
            self._in_vain = 0
            return None
        if kind == _GAP:
            return GapError(f"batch {first} of the partition is not stored yet")
        if kind == _STALE and count <= self._epoch + self._unsure:  # a restore goes much further
            return ForgottenError(f"epoch {count} has begun, which this producer asked for before")
        if kind == _STALE:
            return StaleProducerError(f"epoch {count} of this producer has begun")
        if kind == _UNKNOWN:
            return ForgottenError("the partition does not know this producer (any more)")
        if kind == _MEMORY:
            return UnstorableError("a topic at the level memory may lose what it has acknowledged")
        return ProducerError(f"an answer of kind {kind}")

    def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
