"""Publish, PublishAsync and PublishToSubject: checks in Liftbridge's order, with its texts. A message is stored before
its publisher hears of it, whatever it asked for: also one without a deadline, who waits for no ack, hears of errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final

from grpc import StatusCode

from shardd.doors.door import DoorClient
from shardd.doors.liftbridge.acks import (
    TOO_LARGE_TEXT,
    Publication,
    ack_of,
    async_error,
    async_response,
    new_inbox,
    refusal,
)
from shardd.doors.liftbridge.calls import Call, decoded
from shardd.doors.liftbridge.ingest import NONE, is_acked
from shardd.doors.liftbridge.publish_batches import AckError, Outcome
from shardd.doors.liftbridge.registry import Registry
from shardd.doors.liftbridge.router import Target, partition_subject
from shardd.doors.liftbridge.spread import Spread
from shardd.doors.liftbridge.status import (
    NO_LOGIN,
    READ_ONLY_TEXT,
    RpcError,
    failed_precondition,
    invalid,
    not_found,
    rpc_error,
)
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge.api_messages import (
    PublishRequest,
    PublishResponse,
    PublishToSubjectRequest,
    PublishToSubjectResponse,
)
from shardd.protocol.liftbridge.creation import RESERVED_STREAMS, is_subject
from shardd.protocol.liftbridge.requests import ResumeStream, Right, StreamInfo

UNANSWERED_MAX: Final = 8_192  # messages of a session that are not stored, or whose answers are not taken
UNANSWERED_BYTES_MAX: Final = 4 << 20
_ANSWER_BYTES: Final = 256  # what an answer costs while it waits
_CONCURRENCY: Final = "optimisticConcurrencyControl"
_TO_NATS: Final = "failed to publish to NATS: nats: invalid subject"
_EMPTY: Final = b""  # a response without an ack


class PublishRpcs:
    """Loop thread only."""

    def __init__(self, registry: Registry, spread: Spread, namespace: str, message_bytes_max: int) -> None:
        self._registry = registry
        self.spread = spread
        self._namespace = namespace
        self._message_bytes_max = message_bytes_max

    async def publish(self, call: Call, request: PublishRequest) -> bytes:
        if not request.stream:
            raise invalid("no stream provided")
        stream = await self.accepted(call, request)
        waits = call.seconds_left is not None and request.ackPolicy != NONE
        inbox = request.ackInbox or new_inbox(self._namespace)
        if waits and not is_subject(inbox):
            raise RpcError(StatusCode.UNKNOWN, "failed to subscribe to ack inbox: nats: invalid subject")
        client = await self._room(call)
        stored: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        subject = partition_subject(stream.subject, request.partition)
        done = partial(_settle, stored)
        await self.spread.send(client, (stream, request.partition), subject, request, done, request.ackInbox)
        outcome = await stored
        ack = ack_of(outcome, stream.name, stream.subject, subject, request, inbox)
        if outcome.status is not Status.OK or is_acked(stream, request.ackPolicy):
            self.spread.send_ack(client, request.ackInbox, outcome, ack)
        if outcome.status is not Status.OK:
            await call.drop_login_if(outcome.status in NO_LOGIN, client)
            raise refusal(outcome, call.method, stream.name, request.partition)
        if not waits:
            return _EMPTY
        _require_ack(stream, request)
        return PublishResponse(ack=ack).SerializeToString()

    async def publish_async(self, call: Call) -> AsyncIterator[Sequence[bytes]]:
        async for responses in _Session(self, call, new_inbox(self._namespace)).responses():
            yield responses

    async def publish_to_subject(self, call: Call, request: PublishToSubjectRequest) -> bytes:
        subject = request.subject
        if not is_subject(subject):
            raise RpcError(StatusCode.UNKNOWN, _TO_NATS)
        if self._is_too_large(request):
            raise invalid(TOO_LARGE_TEXT)
        waits = call.seconds_left is not None and request.ackPolicy != NONE
        client = await self._room(call)
        first, told = _First(), list[StreamInfo]()
        await self.spread.send_by_subject(client, request, first.heard, told)
        first.expect(len(told))
        if not told:
            if not self.spread.leaves_unstored(subject):
                await self._require_any(call, subject)
            self.spread.send_unstored(client, request)
            if waits:
                raise RpcError(StatusCode.DEADLINE_EXCEEDED, f"nobody listens to {subject}")
            return _EMPTY
        target, outcome = await first.found
        if outcome.status is not Status.OK and outcome.error in (AckError.OK, AckError.UNKNOWN):
            raise refusal(outcome, call.method, subject, target.partition)
        stream = next(each for each in told if each.name == target.stream)
        inbox = request.ackInbox or new_inbox(self._namespace)
        ack = ack_of(outcome, stream.name, stream.subject, subject, request, inbox)
        if outcome.status is not Status.OK or is_acked(stream, request.ackPolicy):
            self.spread.send_ack(client, request.ackInbox, outcome, ack)
        if not waits:
            return _EMPTY
        if outcome.status is Status.OK:
            _require_ack(stream, request)
        return PublishToSubjectResponse(ack=ack).SerializeToString()

    async def _require_any(self, call: Call, subject: str) -> None:
        """Before a caller hears that nothing takes the messages of a subject. RpcError."""
        targets = self._registry.router.matches(subject)
        await call.require(Right.SEND, subject, [each.stream for each in targets])

    async def accepted(self, call: Call, request: PublishRequest) -> StreamInfo:
        """The stream of a PublishRequest that may be sent. RpcError."""
        stream = await self._registry.find_for(call, Right.SEND, request.stream)
        if stream is not None and stream.name in RESERVED_STREAMS:
            raise RpcError(StatusCode.PERMISSION_DENIED, f"{stream.name} is written by the server only")
        refusal = self._refusal(stream, request)
        if refusal is not None:
            await call.require(Right.SEND, request.stream, (request.stream,))
            raise refusal
        assert stream is not None
        if request.partition in stream.paused:
            await self._resume(call, stream, request.partition)
        return stream

    def _refusal(self, stream: StreamInfo | None, request: PublishRequest) -> RpcError | None:
        """Why the message is not sent, as far as the door can tell; not for a caller without the right to send."""
        partition = request.partition
        if stream is None:
            return not_found(f"no such stream: {request.stream}")
        if not 0 <= partition < stream.partitions:
            return not_found(f"no such partition: {partition}")
        if partition in stream.readonly:
            return failed_precondition(READ_ONLY_TEXT.format(partition))
        if request.ackPolicy == NONE and stream.settings.get(_CONCURRENCY):
            return invalid("stream with concurrency control must have AckPolicy set")
        return invalid(TOO_LARGE_TEXT) if self._is_too_large(request) else None

    async def _resume(self, call: Call, stream: StreamInfo, partition: int) -> None:
        try:
            await call.ask("liftbridge_resume_stream", ResumeStream(stream.name, partition))
            await self._registry.refresh()
        except (ShardError, WorkerLostError) as error:
            raise rpc_error(error, call.method, stream.name) from None

    def _is_too_large(self, request: Publication) -> bool:
        size = len(request.value) + len(request.key)
        for name, value in request.headers.items():
            size += len(name) + len(value)
        return size > self._message_bytes_max

    async def _room(self, call: Call) -> DoorClient:
        """Nothing may be awaited between this and what is submitted."""
        client = await call.client()
        await self.spread.publisher.room(client)
        return client


class _First:
    """What becomes of a message that several may store: the first that has, or nobody has."""

    def __init__(self) -> None:
        self.found: asyncio.Future[tuple[Target, Outcome]] = asyncio.get_running_loop().create_future()
        self._failures: list[tuple[Target, Outcome]] = []
        self._expected = 0

    def heard(self, target: Target, outcome: Outcome) -> None:
        if outcome.status is not Status.OK:
            self._failures.append((target, outcome))
            self._judge()
        elif not self.found.done():
            self.found.set_result((target, outcome))

    def expect(self, count: int) -> None:
        """From so many, all that there are."""
        self._expected = count
        self._judge()

    def _judge(self) -> None:
        if not self.found.done() and len(self._failures) == self._expected > 0:
            self.found.set_result(self._failures[-1])


class _Sent:
    """A message that is on its way."""

    __slots__ = ("request", "size", "stream", "subject")

    def __init__(self, stream: StreamInfo, subject: str, request: PublishRequest, size: int) -> None:
        self.stream = stream
        self.subject = subject
        self.request = request
        self.size = size


class _Session:
    """One PublishAsync: requests are read while answers are written. An answer comes when its message is stored, so
    those of a partition are in order; errors that are found here overtake them."""

    def __init__(self, rpcs: PublishRpcs, call: Call, inbox: str) -> None:
        self._rpcs = rpcs
        self._call = call
        self._inbox = inbox
        self._ready: list[bytes] = []
        self._unsent = 0  # that the client has not taken
        self._waiting = 0  # messages that are not stored yet
        self._waiting_bytes = 0
        self._wake: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._ended = False  # nothing more comes
        self._failed: Exception | None = None

    async def responses(self) -> AsyncIterator[Sequence[bytes]]:
        """In the order in which messages are stored. When the client has closed its side, all of them, then the end."""
        reader = asyncio.create_task(self._read(), name="publish-async")
        try:
            while True:
                while self._ready:
                    ready, self._ready = self._ready, []
                    self._unsent = len(ready)
                    yield ready
                    self._unsent = 0
                    self._make_room()
                if self._failed is not None:
                    raise self._failed
                if self._ended and not self._waiting:
                    return
                self._wake = asyncio.get_running_loop().create_future()
                try:
                    await self._wake
                finally:
                    self._wake = None
        finally:
            reader.cancel()

    async def _read(self) -> None:
        context = self._call.context
        try:
            while isinstance(data := await context.read(), bytes):
                await self._take(decoded(PublishRequest, data), len(data))
                while self._is_full():
                    await self._until_room()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._failed = error
        self._ended = True
        self._notify()

    async def _take(self, request: PublishRequest, size: int) -> None:
        try:
            stream = await self._rpcs.accepted(self._call, request)
            client = await self._rpcs._room(self._call)
        except RpcError as error:
            if error.code is StatusCode.UNAUTHENTICATED:
                raise
            self._answer(async_error(error, request.correlationId))
            return
        subject = partition_subject(stream.subject, request.partition)
        self._waiting += 1
        self._waiting_bytes += size
        done = partial(self._stored, _Sent(stream, subject, request, size))
        await self._rpcs.spread.send(client, (stream, request.partition), subject, request, done)

    def _stored(self, sent: _Sent, outcome: Outcome) -> None:
        stream, request = sent.stream, sent.request
        self._waiting -= 1
        self._waiting_bytes -= sent.size
        if outcome.status is not Status.OK:
            error = refusal(outcome, self._call.method, stream.name, request.partition)
            if error.code is StatusCode.UNAUTHENTICATED:
                self._failed = error
            else:
                self._ready.append(async_error(error, request.correlationId))
        elif is_acked(stream, request.ackPolicy):
            ack = ack_of(outcome, stream.name, stream.subject, sent.subject, request, self._inbox)
            self._ready.append(async_response(ack))
        else:
            self._make_room()
        self._notify()

    def _answer(self, response: bytes) -> None:
        self._ready.append(response)
        self._notify()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _is_full(self) -> bool:
        count = self._waiting + len(self._ready) + self._unsent
        return count >= UNANSWERED_MAX or self._waiting_bytes + count * _ANSWER_BYTES >= UNANSWERED_BYTES_MAX

    async def _until_room(self) -> None:
        self._room = asyncio.get_running_loop().create_future()
        try:
            await self._room
        finally:
            self._room = None

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done() and not self._is_full():
            self._room.set_result(None)


def _require_ack(stream: StreamInfo, request: Publication) -> None:
    """What is stored, and never acked: whoever waits for it hears at once that it will not come."""
    if not is_acked(stream, request.ackPolicy):
        raise RpcError(StatusCode.DEADLINE_EXCEEDED, "no ack comes for this policy; the message is stored")


def _settle(stored: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not stored.done():
        stored.set_result(outcome)
