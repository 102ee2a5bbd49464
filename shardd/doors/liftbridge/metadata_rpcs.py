"""FetchMetadata and FetchPartitionMetadata: what the asking client may see, put together in pieces so that nobody waits
for the answer of somebody with many streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

import msgspec
from grpc import StatusCode

from shardd.doors.liftbridge.arrivals import Arrivals
from shardd.doors.liftbridge.calls import ANSWER_BYTES_MAX, Call
from shardd.doors.liftbridge.delivery import varint
from shardd.doors.liftbridge.partitions import PARTITIONS_OF_REQUEST, Bounds, Key, Partitions
from shardd.doors.liftbridge.registry import Registry
from shardd.doors.liftbridge.status import RpcError, denied, failed_precondition, invalid, not_found, rpc_error
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge import api_messages
from shardd.protocol.liftbridge.api_messages import (
    ConsumerGroupMetadata,
    FetchMetadataRequest,
    FetchPartitionMetadataRequest,
    FetchPartitionMetadataResponse,
    PartitionEventTimestamps,
    PartitionMetadata,
    StreamMetadata,
)
from shardd.protocol.liftbridge.requests import (
    NAMES_MAX,
    EventTimes,
    GetGroups,
    GroupInfo,
    ListStreams,
    Right,
    StreamInfo,
)
from shardd.runtime.crowds import SharedRoom

ANSWERS_MAX: Final = 5  # that are put together at a time, of a user as many as are left: 4 with the shares of all
NAMES_OF_REQUEST_MAX: Final = 10_000
_STEP: Final = 64  # partitions between two turns of the loop
_BROKERS, _STREAMS, _GROUPS = b"\x0a", b"\x12", b"\x1a"  # fields of FetchMetadataResponse
_UNKNOWN: Final = 1
_TOO_LARGE: Final = f"the metadata have more than {ANSWER_BYTES_MAX // 2**20} MiB; name fewer streams"
_EMPTY_LOG: Final = Bounds(0, 0)


class Broker(msgspec.Struct, frozen=True):
    """This server, as clients know it."""

    id: str
    host: str
    port: int


class MetadataRpcs:
    """Loop thread only."""

    def __init__(self, registry: Registry, partitions: Partitions, arrivals: Arrivals, broker: Broker) -> None:
        self._registry = registry
        self._partitions = partitions
        self._arrivals = arrivals
        self._broker = broker
        self._answers = SharedRoom(ANSWERS_MAX, of_addresses=False)

    async def fetch(self, call: Call, request: FetchMetadataRequest) -> bytes:
        if len(request.streams) > NAMES_OF_REQUEST_MAX or len(request.groups) > NAMES_OF_REQUEST_MAX:
            raise invalid(f"more than {NAMES_OF_REQUEST_MAX} names in one request")
        async with self._answers.place(*call.line):
            parts = [_field(_BROKERS, self._described_broker())]
            size = 0
            async for stream in self._streams(call, request.streams):
                parts.append(_field(_STREAMS, stream))
                size += len(stream)
                if size > ANSWER_BYTES_MAX:
                    raise RpcError(StatusCode.RESOURCE_EXHAUSTED, _TOO_LARGE)
            parts += [_field(_GROUPS, group) for group in await self._groups(call, request.groups)]
            answer = b"".join(parts)
        if len(answer) > ANSWER_BYTES_MAX:
            raise RpcError(StatusCode.RESOURCE_EXHAUSTED, _TOO_LARGE)
        return answer

    async def fetch_partition(self, call: Call, request: FetchPartitionMetadataRequest) -> bytes:
        stream = await self._registry.find_for(call, Right.POLL, request.stream)
        if stream is None or not 0 <= request.partition < stream.partitions:
            await call.require(Right.POLL, request.stream, (request.stream,))
            raise not_found("partition not found")
        seen = await self._visible(call, [request.stream])
        if request.stream not in seen:
            raise denied(call.method, request.stream)
        stream, partition = seen[request.stream], request.partition
        if not 0 <= partition < stream.partitions:
            raise not_found("partition not found")
        if partition in stream.paused:
            raise failed_precondition("The request should be sent to partition leader")
        try:
            bounds = await self._partitions.bounds(call, [(stream, (partition,))])
            received = self._arrivals.times(stream, partition)
            if not received.first_ns and bounds[stream.incarnation, partition].newest >= 0:
                first_us, last_us = await self._partitions.times_us(call, stream, partition)
                received = EventTimes(first_us * 1_000, last_us * 1_000)
        except (ShardError, WorkerLostError) as error:
            raise rpc_error(error, call.method, stream.name) from None
        response = FetchPartitionMetadataResponse()
        self._describe(response.metadata, stream, partition, bounds[stream.incarnation, partition], received)
        response.metadata.readonly = partition in stream.readonly
        return response.SerializeToString()

    def _described_broker(self) -> bytes:
        leading = sum(each.partitions - len(each.paused) for each in self._registry.streams().values())
        broker = self._broker
        return api_messages.Broker(
            id=broker.id, host=broker.host, port=broker.port, partitionCount=leading, leaderCount=leading
        ).SerializeToString()

    async def _visible(self, call: Call, names: Sequence[str]) -> dict[str, StreamInfo]:
        """By name; `names` empty: all."""
        found: dict[str, StreamInfo] = {}
        wanted = [*dict.fromkeys(names)]
        for at in range(0, max(1, len(wanted)), NAMES_MAX):
            said = await call.command("liftbridge_list_streams", ListStreams(tuple(wanted[at : at + NAMES_MAX])))
            found |= {each.name: each for each in msgspec.convert(said, list[StreamInfo], strict=False)}
        return found

    async def _streams(self, call: Call, names: Sequence[str]) -> AsyncIterator[bytes]:
        """Encoded, one for each name that was given; without names all of them."""
        seen = await self._visible(call, names)
        for some in _portions(names or seen, seen):
            there = {name: stream for name in some if (stream := seen.get(name)) is not None}
            bounds = await self._bounds(call, list(there.values()))
            for name in some:
                stream = there.get(name)
                if stream is None:
                    yield StreamMetadata(name=name, error=_UNKNOWN).SerializeToString()
                else:
                    yield await self._described(stream, bounds)

    async def _bounds(self, call: Call, streams: list[StreamInfo]) -> dict[Key, Bounds]:
        """Of streams that are gone meanwhile, or whose messages the client may not see, nothing."""
        wanted = [(stream, tuple(range(stream.partitions))) for stream in streams]
        try:
            return await self._partitions.bounds(call, wanted)
        except WorkerLostError as error:
            raise rpc_error(error) from None
        except ShardError:
            if len(wanted) == 1:
                return {}
        found: dict[Key, Bounds] = {}
        for stream in streams:
            found |= await self._bounds(call, [stream])
        return found

    async def _described(self, stream: StreamInfo, bounds: dict[Key, Bounds]) -> bytes:
        described = StreamMetadata(name=stream.name, subject=stream.subject, creationTimestamp=stream.created_at_ns)
        paused, readonly = frozenset(stream.paused), frozenset(stream.readonly)
        for partition in range(stream.partitions):
            if partition % _STEP == _STEP - 1:
                await asyncio.sleep(0)
            there = bounds.get((stream.incarnation, partition), _EMPTY_LOG)
            received = self._arrivals.times(stream, partition)
            of_partition = described.partitions[partition]
            self._describe(of_partition, stream, partition, there, received)
            of_partition.paused, of_partition.readonly = partition in paused, partition in readonly
        await asyncio.sleep(0)
        return described.SerializeToString()

    def _describe(
        self, described: PartitionMetadata, stream: StreamInfo, partition: int, bounds: Bounds, received: EventTimes
    ) -> None:
        broker = self._broker.id
        described.id = partition
        described.leader = broker
        described.replicas.append(broker)
        described.isr.append(broker)
        described.highWatermark = described.newestOffset = bounds.newest
        _set_times(described.messagesReceivedTimestamps, received)
        _set_times(described.pauseTimestamps, stream.pause_times.get(partition, EventTimes()))
        _set_times(described.readonlyTimestamps, stream.readonly_times.get(partition, EventTimes()))

    async def _groups(self, call: Call, names: Sequence[str]) -> list[bytes]:
        """One for each name that was given."""
        found: dict[str, GroupInfo] = {}
        wanted = [*dict.fromkeys(names)]
        for at in range(0, len(wanted), NAMES_MAX):
            said = await call.command("liftbridge_get_groups", GetGroups(tuple(wanted[at : at + NAMES_MAX])))
            found |= {each.name: each for each in msgspec.convert(said, list[GroupInfo], strict=False)}
        described = []
        for name in names:
            group = found.get(name)
            if group is None:
                described.append(ConsumerGroupMetadata(groupId=name, error=_UNKNOWN))
            else:
                known = ConsumerGroupMetadata(groupId=name, coordinator=self._broker.id, epoch=group.epoch)
                described.append(known)
        return [each.SerializeToString() for each in described]


def _portions(names: Iterable[str], seen: dict[str, StreamInfo]) -> Iterable[list[str]]:
    """As many at a time as one question about bounds takes."""
    some: list[str] = []
    count = 0
    for name in names:
        some.append(name)
        count += seen[name].partitions if name in seen else 1
        if count >= PARTITIONS_OF_REQUEST:
            yield some
            some, count = [], 0
    if some:
        yield some


def _set_times(described: PartitionEventTimestamps, times: EventTimes) -> None:
    described.SetInParent()
    described.firstTimestamp, described.latestTimestamp = times.first_ns, times.latest_ns


def _field(tag: bytes, encoded: bytes) -> bytes:
    return tag + varint(len(encoded)) + encoded
