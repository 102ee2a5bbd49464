"""Subscribe (docs/adr/0093-the-door-for-liftbridge.md): checks in Liftbridge's order, the empty first message, then
the messages of a partition, a window at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final

from grpc import StatusCode

from shardd.doors.liftbridge.calls import Call, Large
from shardd.doors.liftbridge.delivery import Delivered, Frame
from shardd.doors.liftbridge.followers import Follower, Followers
from shardd.doors.liftbridge.members import Slot, SlotKey, Slots
from shardd.doors.liftbridge.partitions import Bounds, Partitions, Polled
from shardd.doors.liftbridge.registry import Registry
from shardd.doors.liftbridge.router import partition_subject
from shardd.doors.liftbridge.status import RpcError, failed_precondition, invalid, not_found, rpc_error
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge import positions
from shardd.protocol.liftbridge.api_messages import SubscribeRequest
from shardd.protocol.liftbridge.positions import NO_STOP, Asked, PositionError, Span, StartPosition, StopPosition
from shardd.protocol.liftbridge.requests import ResumeStream, Right, StreamInfo
from shardd.protocol.primitives import PollingKind

WINDOW_BYTES: Final = 256 << 10  # of a subscription, while its client does not take it
WINDOW_MESSAGES: Final = 512
_FIRST_MESSAGES: Final = 32  # of the first poll: nobody knows how large they are
_RETRY_S: Final = 0.1
_TRIES: Final = 100  # while a worker is replaced
STOP_REACHED: Final = "Stop offset reached"
END_OF_READONLY: Final = "End of readonly partition"
CLOSED: Final = "commit log was closed"
DELETED: Final = "commit log was deleted"
_log = logging.getLogger(__name__)
_FOR_A_WHILE: Final = frozenset({Status.SHARD_COMMUNICATION_ERROR, Status.DISCONNECTED, Status.CLIENT_NOT_FOUND})


class SubscribeRpc:
    """Loop thread only."""

    def __init__(self, registry: Registry, partitions: Partitions, followers: Followers) -> None:
        self._registry = registry
        self._partitions = partitions
        self._followers = followers
        self._slots = Slots()

    async def subscribe(self, call: Call) -> AsyncIterator[list[bytes]]:
        request = await call.read_one(SubscribeRequest)
        group, consumer = request.consumer.groupId, request.consumer.consumerId
        if group and not consumer:
            raise invalid("Consumer id cannot be empty when group id is provided")
        stream = await self._stream(call, request)
        partition, slot = request.partition, None
        key = (stream.incarnation, partition, group)
        try:
            bounds = await self._bounds(call, stream, partition)
            if group:
                self._require_no_newer(key, request)
            span = await self._span(call, request, stream, bounds)
        except (ShardError, WorkerLostError) as error:
            raise rpc_error(error, call.method, stream.name) from None
        follower = Follower(call, stream, partition, bounds.end, bounds.history)
        if group:
            self._require_no_newer(key, request)
            slot = self._slots.take(key, request.consumer.groupEpoch, follower.wake)
        self._followers.add(follower)
        reading = _Reading(self._partitions, follower, span, bounds)
        try:
            yield [b""]  # an empty message: clients discard it
            while True:
                yield await self._next(reading, slot)
                if slot is not None and slot.lost:
                    return
        finally:
            self._followers.remove(follower)
            reading.close()
            if slot is not None:
                self._slots.leave(key, slot)

    def _require_no_newer(self, key: SlotKey, request: SubscribeRequest) -> None:
        if self._slots.is_newer(key, request.consumer.groupEpoch):
            raise failed_precondition("Consumer is not currently assigned this partition")

    async def _stream(self, call: Call, request: SubscribeRequest) -> StreamInfo:
        stream = await self._registry.find_for(call, Right.POLL, request.stream)
        if stream is None or not 0 <= request.partition < stream.partitions:
            await call.require(Right.POLL, request.stream, (request.stream,))
            raise not_found("No such partition")
        if request.resume and request.partition in stream.paused:
            try:
                await call.ask("liftbridge_resume_stream", ResumeStream(stream.name, request.partition))
                await self._registry.refresh()
            except (ShardError, WorkerLostError) as error:
                said = rpc_error(error, call.method, stream.name)
                if said.code in (StatusCode.PERMISSION_DENIED, StatusCode.UNAUTHENTICATED):
                    raise said from None
                raise RpcError(StatusCode.INTERNAL, f"Failed to resume stream: {said}") from None
        return stream

    async def _bounds(self, call: Call, stream: StreamInfo, partition: int) -> Bounds:
        found = await self._partitions.bounds(call, [(stream, (partition,))])
        return found[stream.incarnation, partition]

    async def _span(self, call: Call, request: SubscribeRequest, stream: StreamInfo, bounds: Bounds) -> Span:
        asked = Asked(
            start=request.startPosition,
            start_offset=request.startOffset,
            start_timestamp_ns=request.startTimestamp,
            stop=request.stopPosition,
            stop_offset=request.stopOffset,
            stop_timestamp_ns=request.stopTimestamp,
        )
        now = self._registry.get(stream.name) or stream
        log = bounds.log(readonly=request.partition in now.readonly)
        found: dict[int, int | None] = {}
        times = []
        if asked.start == StartPosition.TIMESTAMP:
            times.append(positions.start_timestamp_us(asked.start_timestamp_ns))
        if asked.stop == StopPosition.STOP_TIMESTAMP:
            times.append(max(0, positions.stop_timestamp_us(asked.stop_timestamp_ns) + 1))
        for time_us in times if log.newest >= 0 else ():
            found[time_us] = await self._partitions.first_from(call, stream, request.partition, time_us)
        try:
            return positions.span_of(asked, log, found.__getitem__)
        except PositionError as error:
            raise RpcError(StatusCode[error.code.value], str(error)) from None

    async def _next(self, reading: _Reading, slot: Slot | None) -> list[bytes]:
        """What can be sent now; waits for it. RpcError: the end. Nothing: something may have changed."""
        follower = reading.follower
        wakes = follower.wakes
        now = self._registry.get(follower.stream.name)
        if now is None or now.incarnation != follower.stream.incarnation:
            raise not_found(DELETED)
        if follower.partition in now.paused:
            raise failed_precondition(CLOSED)
        readonly = follower.partition in now.readonly
        if slot is not None and slot.lost:
            return []
        if reading.reached:
            raise RpcError(StatusCode.RESOURCE_EXHAUSTED, reading.end_text)
        if reading.next_offset < follower.end or readonly or follower.is_in_doubt:
            messages = await reading.read()
            if messages or reading.reached:
                return messages
            if reading.again:
                return []
            if readonly:
                raise RpcError(StatusCode.RESOURCE_EXHAUSTED, END_OF_READONLY)
        reading.close()  # what it has sent is taken: the end of the log may be waited for, for hours
        await self._followers.wait(follower, wakes)
        return []


class _Reading:
    """Where a subscription is."""

    def __init__(self, partitions: Partitions, follower: Follower, span: Span, bounds: Bounds) -> None:
        stream, partition = follower.stream, follower.partition
        self.follower = follower
        self.next_offset = max(span.start, bounds.first) if bounds.newest < 0 else span.start
        self.end_text = END_OF_READONLY if span.ends_readonly else STOP_REACHED
        self.reached = span.ends_readonly and span.start > span.stop
        self.again = False
        self._stop = span.stop
        self._partitions = partitions
        self._frame = Frame(stream.name, partition, partition_subject(stream.subject, partition))
        self._count = _FIRST_MESSAGES
        self._large: Large | None = None
        self._tries = 0

    async def read(self) -> list[bytes]:
        """The next window. RpcError. `again`: it is to be tried once more."""
        self.again = False
        try:
            polled = await self._poll()
        except (ShardError, WorkerLostError, RpcError) as error:
            await self._judge(error)
            return []
        self._tries = 0
        if self._begins_anew(polled):
            self.again = True
            return []
        delivered, size = self._delivered(polled)
        del polled  # up to 8 MiB of records: whoever waits for room, or for the client, does not keep them
        if delivered.larger_bytes:
            self.close()
            self._large = await self.follower.call.large_room(delivered.larger_bytes)
            self._count = 1
            self.again = True
            return []
        self.next_offset, self.reached = delivered.next_offset, delivered.reached
        if delivered.messages:
            self.follower.end = max(self.follower.end, self.next_offset)
            self._count = min(WINDOW_MESSAGES, max(1, WINDOW_BYTES * len(delivered.messages) // max(1, size)))
            if size <= WINDOW_BYTES:
                self.close()
            elif self._large is not None:
                self._large.again()
        else:
            self.follower.end = min(self.follower.end, self.next_offset)  # what is not there yet wakes it
        return delivered.messages

    def close(self) -> None:
        """Gives back what it has kept of the room for large messages."""
        if self._large is not None:
            self._large.leave()
            self._large = None

    def _begins_anew(self, polled: Polled) -> bool:
        """Whether the partition was purged meanwhile: its messages have offsets from the beginning again. Where it was
        to stop belongs to what is gone. RpcError."""
        follower = self.follower
        follower.is_in_doubt = False
        if polled.history == follower.history:
            return False
        if self._stop != NO_STOP:
            raise not_found(DELETED)
        _log.info(
            "%s partition %d was purged: a subscription that was at offset %d begins at %d",
            *(follower.stream.name, follower.partition, self.next_offset, polled.first),
        )
        self.close()
        follower.history, follower.end, self.next_offset = polled.history, polled.end, polled.first
        return True

    async def _poll(self) -> Polled:
        follower = self.follower
        return await self._partitions.poll(
            follower.call, follower.stream, follower.partition, PollingKind.OFFSET, self.next_offset, self._count
        )

    def _delivered(self, polled: Polled) -> tuple[Delivered, int]:
        """What has come, and how many bytes that is."""
        most = WINDOW_BYTES if self._large is None else max(WINDOW_BYTES, self._large.size)
        delivered = self._frame.delivered(polled.records, polled.count, self.next_offset, self._stop, most)
        return delivered, sum(map(len, delivered.messages))

    async def _judge(self, error: ShardError | WorkerLostError | RpcError) -> None:
        """A worker that is replaced is waited for, also where the login cannot be made again yet; everything else is
        the end. RpcError."""
        self._tries += 1
        if isinstance(error, RpcError):
            for_a_while = error.code is StatusCode.UNAVAILABLE
        else:
            for_a_while = isinstance(error, WorkerLostError) or error.status in _FOR_A_WHILE
        if not for_a_while or self._tries > _TRIES:
            if isinstance(error, RpcError):
                raise error
            if isinstance(error, ShardError) and error.status is Status.TOPIC_ID_NOT_FOUND:
                raise not_found(DELETED)
            raise rpc_error(error, self.follower.call.method, self.follower.stream.name)
        self.again = True
        await asyncio.sleep(_RETRY_S)
