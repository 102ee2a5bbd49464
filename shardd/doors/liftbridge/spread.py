"""Messages on their way to everybody who listens: the stream that they are addressed to, others on the same subject,
and a NATS server where there is one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from shardd.doors.door import DoorClient
from shardd.doors.liftbridge.acks import Publication, ack_of
from shardd.doors.liftbridge.fan_out import submit_all
from shardd.doors.liftbridge.ingest import ALL, Stored, is_acked, is_inbox
from shardd.doors.liftbridge.publish_batches import Done, Outcome
from shardd.doors.liftbridge.publishing import Publisher
from shardd.doors.liftbridge.registry import Registry
from shardd.doors.liftbridge.router import Target
from shardd.protocol.errors import Status
from shardd.protocol.liftbridge.api_messages import Ack, Message, PublishRequest, PublishToSubjectRequest
from shardd.protocol.liftbridge.creation import RESERVED_STREAMS
from shardd.protocol.liftbridge.envelope import encode_ack, encode_publish
from shardd.protocol.liftbridge.records import LiftbridgeMessage
from shardd.protocol.liftbridge.requests import StreamInfo

_LINE_S: Final = 10.0  # between lines about others that have not got a message
_log = logging.getLogger(__name__)


class Outlet(Protocol):
    """NATS, in one of its forms."""

    def announce(self, subject: str, payload: bytes) -> Stored: ...
    def takes_unstored(self, subject: str) -> bool: ...
    def announce_own(self, subject: str, payload: bytes, user_id: int) -> None: ...
    def send_ack(self, inbox: str, payload: bytes, user_id: int) -> None: ...


class Spread:
    """Loop thread only. `outlet`: None without NATS."""

    def __init__(self, registry: Registry, publisher: Publisher, *, all_fsync: bool) -> None:
        self.publisher = publisher
        self.outlet: Outlet | None = None
        self._registry = registry
        self._all_fsync = all_fsync
        self._missed = 0
        self._next_line_s = 0.0

    async def send(
        self,
        client: DoorClient,
        to: tuple[StreamInfo, int],
        subject: str,
        request: PublishRequest,
        done: Done,
        inbox: str = "",
    ) -> None:
        """To a partition of a stream, for whoever waits with `done`, and to whoever else listens to the subject; they
        send their acks to `inbox`. What is stored is announced over NATS. Nothing is awaited before the first one has
        it."""
        stream, partition = to
        message, announced = message_of(request, subject), _Announced(self.outlet, subject, request)
        self._submit(
            client, stream, partition, message, request, request.expectedOffset, announced.before(done, stream)
        )

        def submit(target: Target) -> None:
            other = self._awake(target)
            if other is not None:
                along = announced.before(partial(self._along, client, other, subject, request, inbox), other)
                self._submit(client, other, target.partition, message, request, request.expectedOffset, along)

        others = self.others(Target(stream.name, partition), stream.group, subject)
        rest = submit_all(self.publisher, client, others, submit) if others else None
        if rest is not None:
            await rest

    async def send_by_subject(
        self,
        client: DoorClient,
        request: PublishToSubjectRequest,
        done: Callable[[Target, Outcome], None],
        told: list[StreamInfo],
    ) -> None:
        """To whoever listens to the subject of the request and takes something now; they are added to `told`. What is
        stored is announced over NATS. What comes by subject expects offset 0."""
        message, announced = message_of(request, request.subject), _Announced(self.outlet, request.subject, request)

        def submit(target: Target) -> None:
            stream = self._awake(target)
            if stream is not None:
                told.append(stream)
                heard = announced.before(partial(done, target), stream)
                self._submit(client, stream, target.partition, message, request, 0, heard)

        rest = submit_all(self.publisher, client, self._registry.router.matches(request.subject), submit)
        if rest is not None:
            await rest

    def leaves_unstored(self, subject: str) -> bool:
        """Whether the settings let every caller send to that subject of the NATS server."""
        return self.outlet is not None and self.outlet.takes_unstored(subject)

    def send_unstored(self, client: DoorClient, request: PublishToSubjectRequest) -> None:
        """A message that no stream takes, over NATS."""
        if self.outlet is not None:
            self.outlet.announce_own(request.subject, _enveloped(request), client.user_id)

    def send_ack(self, client: DoorClient, inbox: str, outcome: Outcome, ack: Ack) -> None:
        """To an inbox that a publisher has chosen, over NATS. No ack names a stream to which the publisher may not
        send, and its subject."""
        if self.outlet is not None and outcome.right_is_known and inbox and is_inbox(inbox):
            self.outlet.send_ack(inbox, encode_ack(ack), client.user_id)

    def others(self, own: Target, group: str, subject: str) -> list[Target]:
        """Who else listens. Of the queue group that the addressed stream is in, it is the one that gets the message."""
        found = self._registry.router.matches(subject)
        if len(found) == 1 and found[0] == own:
            return []
        if own in found or not group:
            return [each for each in found if each != own]
        streams = self._registry.streams()
        return [each for each in found if each != own and streams[each.stream].group != group]

    def _awake(self, target: Target) -> StreamInfo | None:
        """What is paused or read-only drops what it gets by subject; the server's own streams get nothing."""
        stream = None if target.stream in RESERVED_STREAMS else self._registry.get(target.stream)
        if stream is None or target.partition in stream.paused or target.partition in stream.readonly:
            return None
        return stream

    def _submit(
        self,
        client: DoorClient,
        stream: StreamInfo,
        partition: int,
        message: LiftbridgeMessage,
        request: Publication,
        expected_offset: int,
        done: Done,
    ) -> None:
        self.publisher.submit(
            client,
            stream,
            partition,
            message,
            expected_offset=expected_offset,
            fsync=self._all_fsync and request.ackPolicy == ALL,
            done=done,
        )

    def _along(
        self,
        client: DoorClient,
        stream: StreamInfo,
        subject: str,
        request: PublishRequest,
        inbox: str,
        outcome: Outcome,
    ) -> None:
        if inbox and (outcome.status is not Status.OK or is_acked(stream, request.ackPolicy)):
            ack = ack_of(outcome, stream.name, stream.subject, subject, request, inbox)
            self.send_ack(client, inbox, outcome, ack)
        if outcome.status is Status.OK:
            return
        self._missed += 1
        now_s = time.monotonic()
        if now_s >= self._next_line_s:
            self._next_line_s = now_s + _LINE_S
            why = outcome.status.http_code
            _log.warning("%d messages did not get into other streams on their subject: %s", self._missed, why)
            self._missed = 0


class _Announced:
    """A message that is told over NATS for each stream that stores it."""

    __slots__ = ("_outlet", "_request", "_stored", "_subject")

    def __init__(self, outlet: Outlet | None, subject: str, request: Publication) -> None:
        self._outlet = outlet
        self._subject = subject
        self._request = request
        self._stored: Stored | None = None

    def before(self, done: Done, stream: StreamInfo) -> Done:
        """Before `done` hears that this stream has stored it."""
        return done if self._outlet is None else partial(self._hear, self._outlet, done, stream)

    def _hear(self, outlet: Outlet, done: Done, stream: StreamInfo, outcome: Outcome) -> None:
        try:
            if outcome.status is Status.OK:
                if self._stored is None:
                    self._stored = outlet.announce(self._subject, _enveloped(self._request))
                self._stored(stream)
        finally:
            done(outcome)


def _enveloped(request: Publication) -> bytes:
    message = Message(
        offset=request.expectedOffset if isinstance(request, PublishRequest) else 0,
        key=request.key,
        value=request.value,
        headers=request.headers,
        ackInbox=request.ackInbox,
        correlationId=request.correlationId,
        ackPolicy=request.ackPolicy,
    )
    return encode_publish(message)


def message_of(request: Publication, subject: str) -> LiftbridgeMessage:
    headers = dict(request.headers) if request.headers else {}
    return LiftbridgeMessage(request.value, request.key, headers, subject)
