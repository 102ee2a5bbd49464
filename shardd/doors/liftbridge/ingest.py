"""A message that has arrived over NATS (Lb 4): plain or in an envelope, to the partitions that its subject has, and the
acks that its publisher wants."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from shardd.doors.door import DoorClient
from shardd.doors.liftbridge.fan_out import submit_all
from shardd.doors.liftbridge.late_refusals import LateRefusals
from shardd.doors.liftbridge.losses import Loss, Losses
from shardd.doors.liftbridge.publish_batches import AckError, Outcome
from shardd.doors.liftbridge.publishing import Publisher
from shardd.doors.liftbridge.refusals import NO_RIGHT
from shardd.doors.liftbridge.registry_view import RegistryView
from shardd.doors.liftbridge.router import Target
from shardd.doors.liftbridge.subject_table import is_pattern
from shardd.protocol.errors import Status
from shardd.protocol.liftbridge.api_messages import Ack
from shardd.protocol.liftbridge.creation import RESERVED_STREAMS, SUBJECT_BYTES_MAX, is_subject
from shardd.protocol.liftbridge.envelope import Published, decode_publish, encode_ack
from shardd.protocol.liftbridge.nats_headers import user_headers
from shardd.protocol.liftbridge.records import LiftbridgeMessage
from shardd.protocol.liftbridge.requests import StreamInfo
from shardd.protocol.nats import HEADERS_BYTES_MAX, HEADERS_MAX

LEADER, ALL, NONE = 0, 1, 2
"""`proto.AckPolicy`."""
CORRELATION_BYTES_MAX: Final = 1_024  # of an id that an ack repeats; a message with a longer one gets none
_PLAIN_EXPECTED_OFFSET: Final = 0  # of a message without an envelope, where a stream has concurrency control
_TOO_LARGE: Final = "the message is larger than liftbridge.max_message_size, or has too many headers"
_NO_CLIENT: Final = frozenset({Status.CLIENT_NOT_FOUND, Status.SHARD_COMMUNICATION_ERROR})

Send = Callable[[str, bytes], None]
"""Sends an ack to an inbox."""
Stored = Callable[[StreamInfo], None]
"""Hears of each stream that has stored a message."""


class Arrived:
    """A message of NATS. `send`: where its acks go; `headers`: as they came."""

    __slots__ = ("headers", "payload", "reply", "send", "stored", "subject")

    def __init__(
        self,
        subject: str,
        reply: str,
        payload: bytes,
        send: Send,
        stored: Stored | None = None,
        headers: bytes = b"",
    ) -> None:
        self.subject = subject
        self.reply = reply
        self.payload = payload
        self.send = send
        self.stored = stored
        self.headers = headers

    @property
    def size_bytes(self) -> int:
        return len(self.payload) + len(self.headers)


class Ingest:
    """Loop thread only. `payload_bytes_max`: of a whole message on NATS with its envelope; `ack_all_fsync`: whether the
    policy ALL waits for the device; `late`: what asks another worker for the right of a publisher whose own is lost."""

    def __init__(
        self,
        view: RegistryView,
        publisher: Publisher,
        payload_bytes_max: int,
        losses: Losses,
        *,
        ack_all_fsync: bool = False,
        late: LateRefusals | None = None,
    ) -> None:
        self.messages = 0  # that have come and are for a stream
        self.view = view
        self.publisher = publisher
        self.losses = losses
        self._payload_bytes_max = payload_bytes_max
        self._ack_all_fsync = ack_all_fsync
        self._late = late

    def take(self, client: DoorClient, arrived: Arrived, targets: Sequence[Target]) -> Awaitable[None] | None:
        """Whoever calls has asked `publisher.room`, and awaits what is returned (`submit_all`). Nothing is raised: what
        is not stored is counted."""
        self.messages += 1
        said = decode_publish(arrived.payload)
        if said is None:
            message = LiftbridgeMessage(arrived.payload, subject=arrived.subject, reply_subject=arrived.reply)
            expected_offset = _PLAIN_EXPECTED_OFFSET
        else:
            message = said.message(arrived.subject, arrived.reply)
            expected_offset = said.expected_offset
            if not said.ack_inbox or not is_inbox(said.ack_inbox) or len(said.correlation_id) > CORRELATION_BYTES_MAX:
                said = None  # whom nobody can tell
        if arrived.headers and not _has_too_many(arrived.headers):  # those of the envelope count where both have one
            message = replace(message, headers=user_headers(arrived.headers) | dict(message.headers))
        fsync = self._ack_all_fsync and said is not None and said.ack_policy == ALL
        refusal = _TOO_LARGE if self._is_too_large(arrived) else ""

        def submit(target: Target) -> None:
            stream = self.view.streams().get(target.stream)
            if stream is None or not (refusal or self._is_open(stream, target.partition, arrived)):
                return
            self.publisher.submit(
                client,
                stream,
                target.partition,
                message,
                expected_offset=expected_offset,
                fsync=fsync,
                done=partial(self._hear, client, stream, arrived, said),
                refusal=refusal,
            )

        return submit_all(self.publisher, client, targets, submit)

    def _is_too_large(self, arrived: Arrived) -> bool:
        """Whether no partition takes the message. Publishers with the right to send to a stream hear so from it."""
        return arrived.size_bytes > self._payload_bytes_max or _has_too_many(arrived.headers)

    def _is_open(self, stream: StreamInfo, partition: int, arrived: Arrived) -> bool:
        """Whether the partition takes the message; else it is lost, as with Liftbridge."""
        if stream.name in RESERVED_STREAMS:
            self.losses.count(Loss.REFUSED, arrived.subject)
            return False
        if partition in stream.paused or partition in stream.readonly:
            loss = Loss.PAUSED if partition in stream.paused else Loss.READONLY
            self.losses.count(loss, arrived.subject)
            return False
        return True

    def _hear(
        self, client: DoorClient, stream: StreamInfo, arrived: Arrived, said: Published | None, outcome: Outcome
    ) -> None:
        if outcome.status is not Status.OK:
            is_told = self._lose(stream, arrived, said, outcome)
            if not is_told and said is not None and self._late is not None:
                negative = _negative_ack(stream, arrived.subject, said, outcome.error)  # the message itself is not kept
                self._late.tell(client, stream.name, partial(arrived.send, said.ack_inbox, negative))
            return
        if arrived.stored is not None:
            arrived.stored(stream)
        if said is not None and is_acked(stream, said.ack_policy):
            ack = _ack(stream, arrived.subject, said, outcome.timestamp_ns)
            ack.offset = outcome.offset
            ack.commitTimestamp = time.time_ns()
            arrived.send(said.ack_inbox, encode_ack(ack))

    def _lose(self, stream: StreamInfo, arrived: Arrived, said: Published | None, outcome: Outcome) -> bool:
        """Only publishers with the right to send to a stream hear that it is there; a read-only partition says nothing,
        as with Liftbridge. False: no worker has said yet whether the publisher has the right."""
        status = outcome.status
        if status in NO_RIGHT or status is Status.CANNOT_APPEND_MESSAGE:
            loss = Loss.REFUSED if status in NO_RIGHT else Loss.READONLY
            self.losses.count(loss, arrived.subject)
            return True
        if outcome.error is not AckError.UNKNOWN:
            loss = Loss.TOO_LARGE if outcome.error is AckError.TOO_LARGE else Loss.OFFSET
        elif status is Status.TASK_TIMEOUT:
            loss = Loss.UNKNOWN
        else:
            loss = Loss.NO_WORKER if status in _NO_CLIENT else Loss.FAILED
        self.losses.count(loss, arrived.subject)
        if outcome.right_is_known and said is not None:
            arrived.send(said.ack_inbox, _negative_ack(stream, arrived.subject, said, outcome.error))
        return outcome.right_is_known


def _negative_ack(stream: StreamInfo, subject: str, said: Published, error: AckError) -> bytes:
    """It is sent whatever the policy is."""
    now_ns = time.time_ns()
    ack = _ack(stream, subject, said, now_ns)
    ack.ackError = int(error)
    if error is not AckError.TOO_LARGE:
        ack.commitTimestamp = now_ns
    return encode_ack(ack)


def is_inbox(subject: str) -> bool:
    """Whether something can be sent there."""
    return len(subject) <= SUBJECT_BYTES_MAX and is_subject(subject) and not is_pattern(subject)


def is_acked(stream: StreamInfo, policy: int) -> bool:
    """Whether a stored message gets an ack. One server never is as many replicas as `minIsr` may want."""
    return policy == LEADER or (policy == ALL and stream.settings.get("minIsr", 1) <= 1)


def _ack(stream: StreamInfo, subject: str, said: Published, reception_ns: int) -> Ack:
    return Ack(
        stream=stream.name,
        partitionSubject=stream.subject,
        msgSubject=subject,
        ackInbox=said.ack_inbox,
        correlationId=said.correlation_id,
        ackPolicy=said.ack_policy,
        receptionTimestamp=reception_ns,
    )


def _has_too_many(headers: bytes) -> bool:
    return len(headers) > HEADERS_BYTES_MAX or headers.count(b"\r\n", 0, -2) > HEADERS_MAX + 1
