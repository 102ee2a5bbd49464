"""Work that only the owner of a partition can do and that is not on the warm path: offsets, flushes, leases.

Each call goes to the owner: to the engine here, or over the bus to the shard that serves the same call there.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path

import msgspec

from shardd.engine import Engine, owner
from shardd.log.layout import make_incoming, trash_directory
from shardd.log.spool import incoming_prefix
from shardd.metadata import Metadata
from shardd.metadata.state import Partition, Stream, Topic
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.namespaces import partition_ids
from shardd.protocol.topic_setting_table import ARCHIVE
from shardd.protocol.unused_offsets import PLACES_AT_ONCE
from shardd.runtime.channel import BusError, Channel, Senders
from shardd.service.asked_syncs import AskedSyncs
from shardd.service.base import partition_at, partition_namespace
from shardd.service.lease_table import Leases, Place

METHOD = "partition"
METHOD_AT_ONCE = "partition at once"  # what waits for no device, and so for nothing that does
REQUEST_TIMEOUT_S = 5.0  # a flush waits for the device
OFFSETS_DELETED_AT_ONCE = 128  # stored offsets in one step of the loop: a write each
DELETE_STEP = 64  # segments in one go: two renames each
DELETE_RETRY_S = 0.01
DELETE_ATTEMPTS_MAX = 100  # 1 s
METADATA_RETRY_S = 0.005
METADATA_ATTEMPTS_MAX = 400


class Operation(IntEnum):
    """What the owner is asked to do."""

    GET_OFFSET = 1
    DELETE_OFFSET = 2
    FLUSH = 3
    DELETE_SEGMENTS = 4
    STORE_OFFSET = 5
    LEASE = 6
    UNUSED_OFFSETS = 7
    ASK_SYNC = 8

    @property
    def method(self) -> str:
        return METHOD_AT_ONCE if self in _AT_ONCE else METHOD


_AT_ONCE = frozenset({Operation.GET_OFFSET, Operation.LEASE, Operation.ASK_SYNC})


class Home(msgspec.Struct, array_like=True, frozen=True):
    """Where a partition lives and which one is meant: a later one in the same place is another incarnation.

    `metadata_index`: the last record that the asker had applied when it looked the partition up.
    """

    namespace: int
    shard: int
    slot: int
    incarnation: int
    metadata_index: int


class _Call(msgspec.Struct, array_like=True, frozen=True):
    operation: Operation
    home: Home
    kind: int = 0
    consumer: int = 0
    fsync: bool = False
    count: int = 0
    offset: int = 0
    assignment: int = 0  # generation of a member's assignment
    user: int = 0
    age_us: int = 0
    wanted: list[tuple[int, int]] | None = None  # kind and number of the entries that go, None: nothing goes


class StoredEntry(msgspec.Struct, array_like=True, frozen=True):
    """A stored offset as its file has it (docs/formats.md#consumer-offsets)."""

    kind: int
    consumer: int
    value: int
    used_us: int
    owner: int
    name: int


class StoredEntries(msgspec.Struct, array_like=True, frozen=True):
    """`next_first`: where to go on; 0: that was all."""

    next_first: int
    entries: list[StoredEntry]


class _Answer(msgspec.Struct, array_like=True, frozen=True):
    status: int
    value: int | None = None
    found: StoredEntries | None = None


_log = logging.getLogger(__name__)
_encoder = msgspec.msgpack.Encoder()
_call_decoder = msgspec.msgpack.Decoder(_Call)
_answer_decoder = msgspec.msgpack.Decoder(_Answer)


def sync_descriptors(descriptors: Iterable[int]) -> int:
    """fdatasyncs and closes every descriptor; 0 or the first errno. Blocks: helper threads only."""
    first_errno = 0
    for descriptor in descriptors:
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            first_errno = first_errno or error.errno or 0
        finally:
            os.close(descriptor)
    return first_errno


class PartitionCalls:
    """Client and server side of the calls of one shard. Lives on the loop thread."""

    def __init__(self, metadata: Metadata, engine: Engine, bus: Channel, data_directory: Path, leases: Leases) -> None:
        self._metadata = metadata
        self._leases = leases
        self._engine = engine
        self._bus = bus
        self._data_directory = data_directory
        self._trash_directory = trash_directory(data_directory)
        self._tokens = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[int]] = {}  # syncs by token
        self._asked_here = AskedSyncs(self._sync_asked)
        self._asked_elsewhere: dict[int, AskedSyncs[Home]] = {}
        for method in (METHOD, METHOD_AT_ONCE):
            bus.serve(method, Senders.ANY_SHARD, self._serve)

    def home(self, stream: Stream, topic: Topic, partition: Partition) -> Home:
        """Where the partition lives, as this worker knows it."""
        packed = partition_namespace(stream, topic, partition)
        shard, index = owner(packed, self._bus.shards), self._metadata.state.index
        return Home(packed, shard, partition.slot, partition.incarnation, index)

    def is_here(self, home: Home) -> bool:
        return home.shard == self._bus.shard

    async def get_offset(self, home: Home, kind: int, consumer: int) -> int | None:
        """The stored offset of a consumer, None when nothing is stored. `ShardError` 10002: that cannot be told now."""
        answer = await self._call(_Call(Operation.GET_OFFSET, home, kind, consumer))
        if answer.status == Status.CANNOT_READ_FILE:
            self._raise(answer)
        return answer.value

    async def store_offset(
        self, home: Home, kind: int, consumer: int, offset: int, *, assignment: int = 0, user: int = 0
    ) -> None:
        """`ShardError` 4100, 3007, 10002, 10006 or 3023; 3022 for a member whose `assignment` is an old one.

        `user`: the incarnation of the user for whom the entry counts, 0: for nobody."""
        call = _Call(Operation.STORE_OFFSET, home, kind, consumer, offset=offset, assignment=assignment, user=user)
        self._raise(await self._call(call))

    async def delete_offset(self, home: Home, kind: int, consumer: int, assignment: int = 0) -> None:
        """`ShardError` 3021, 3007, 10002 or 3011; 3022 as `store_offset`."""
        self._raise(await self._call(_Call(Operation.DELETE_OFFSET, home, kind, consumer, assignment=assignment)))

    async def unused_offsets(self, home: Home, first: int, age_us: int) -> StoredEntries:
        """A page of the stored offsets that were not used for `age_us`. `ShardError` 3007, 10002."""
        return await self._unused_page(_Call(Operation.UNUSED_OFFSETS, home, offset=first, age_us=age_us))

    async def delete_unused(self, home: Home, first: int, age_us: int, wanted: list[tuple[int, int]]) -> StoredEntries:
        """Those of `wanted` on that page that are still unused are deleted, and told. `ShardError` 3007, 10002, 3011,
        10009."""
        return await self._unused_page(
            _Call(Operation.UNUSED_OFFSETS, home, offset=first, age_us=age_us, wanted=wanted)
        )

    async def _unused_page(self, call: _Call) -> StoredEntries:
        answer = await self._call(call)
        self._raise(answer)
        return answer.found or StoredEntries(0, [])

    async def flush(self, home: Home, *, fsync: bool) -> None:
        """Writes the waiting index entries and, with `fsync`, returns when the device has everything.

        `ShardError` 3007, 4007, or 10009 when the sync failed (the partition is poisoned then).
        """
        self._raise(await self._call(_Call(Operation.FLUSH, home, fsync=fsync)))

    def ask_sync(self, home: Home) -> None:
        """What the partition has now is to come to the device soon; nothing is said when it does not."""
        place = home.namespace, home.incarnation
        if self.is_here(home):
            self._asked_here.ask(place, place)
            return
        asked = self._asked_elsewhere.get(home.shard)
        if asked is None:
            asked = self._asked_elsewhere[home.shard] = AskedSyncs(self._forward_asked)
        asked.ask(place, home)

    async def _forward_asked(self, home: Home) -> None:
        with contextlib.suppress(ShardError):
            await self._call(_Call(Operation.ASK_SYNC, home))

    async def _sync_asked(self, place: Place) -> None:
        with contextlib.suppress(KeyError):  # deleted or purged meanwhile
            await self._sync(place)

    async def delete_segments(self, home: Home, count: int) -> None:
        """Up to `count` of the oldest sealed segments go, as far as no stored offset and no reader needs them.

        `ShardError` 3007, 10008, or the status of a partition that takes no writes.
        """
        self._raise(await self._call(_Call(Operation.DELETE_SEGMENTS, home, count=count)))

    async def lease(self, home: Home, user: int, offset: int, seconds: int) -> None:
        """Files of messages from `offset` on stay for so long, as far as there is room. `user`: the incarnation for
        which the lease counts, 0 for root. `ShardError` 3007, 5."""
        self._raise(await self._call(_Call(Operation.LEASE, home, user=user, offset=offset, count=seconds)))

    @staticmethod
    def _raise(answer: _Answer) -> None:
        if answer.status != Status.OK:
            raise ShardError(Status(answer.status))

    async def _call(self, call: _Call) -> _Answer:
        if call.home.shard == self._bus.shard:
            return await self._execute(call)
        try:
            reply = await self._bus.request(
                call.home.shard, call.operation.method, _encoder.encode(call), REQUEST_TIMEOUT_S
            )
        except BusError as error:
            raise ShardError(Status.SHARD_COMMUNICATION_ERROR, str(error)) from error
        return _answer_decoder.decode(reply)

    async def _serve(self, sender: int, payload: bytes) -> bytes:
        try:
            answer = await self._execute(_call_decoder.decode(payload))
        except ShardError as error:
            answer = _Answer(error.status)
        return _encoder.encode(answer)

    async def _execute(self, call: _Call) -> _Answer:
        if not await self._knows(call.home):
            return _Answer(Status.PARTITION_NOT_FOUND)
        try:
            return await self._carry_out(call)
        except KeyError:  # deleted or purged meanwhile: another incarnation takes nothing of it
            return _Answer(Status.PARTITION_NOT_FOUND)

    async def _carry_out(self, call: _Call) -> _Answer:
        """KeyError."""
        engine, home = self._engine, call.home
        place = home.namespace, home.incarnation
        if call.operation is Operation.GET_OFFSET:
            try:
                return _Answer(Status.OK, engine.offset_get(home.namespace, call.kind, call.consumer))
            except OSError:  # what is stored cannot be read now
                return _Answer(Status.CANNOT_READ_FILE)
        if call.operation is Operation.DELETE_OFFSET:
            status = engine.offset_delete(*place, call.kind, call.consumer, call.assignment)
            return _Answer(await self._durably(place, status))
        if call.operation is Operation.DELETE_SEGMENTS:
            return _Answer(await self._delete_segments(place, call.count))
        if call.operation is Operation.STORE_OFFSET:
            status = engine.offset_store(*place, call.kind, call.consumer, call.offset, call.assignment, call.user)
            return _Answer(await self._durably(place, status))
        if call.operation is Operation.UNUSED_OFFSETS:
            return await self._unused(place, call)
        if call.operation is Operation.LEASE:
            return _Answer(self._leases.take(place, call.user, call.offset, call.count))
        if call.operation is Operation.ASK_SYNC:
            self._asked_here.ask(place, place)
            return _Answer(Status.OK)
        status = engine.partition_flush(*place)
        if status == Status.OK and call.fsync:
            status = await self._sync(place)
        return _Answer(status)

    async def _unused(self, place: Place, call: _Call) -> _Answer:
        """An entry is looked at and deleted in one step: one that is used by then stays. KeyError."""
        wanted, deleted = set(call.wanted or ()), list[StoredEntry]()
        while True:
            status, next_first, rows = self._engine.offsets_unused(*place, call.offset, PLACES_AT_ONCE, call.age_us)
            entries = [StoredEntry(*row) for row in rows]
            if call.wanted is None or (status != Status.OK and not deleted):
                return _Answer(status, found=StoredEntries(next_first, entries))
            if status != Status.OK:
                break
            entries = [each for each in entries if (each.kind, each.consumer) in wanted]
            for each in entries[:OFFSETS_DELETED_AT_ONCE]:
                status = self._engine.offset_delete(*place, each.kind, each.consumer)
                if status != Status.OK:
                    break
                deleted.append(each)
            if status != Status.OK or len(entries) <= OFFSETS_DELETED_AT_ONCE:
                break
            await asyncio.sleep(0)
        if status != Status.OK:
            _log.warning("partition %#x: the rest stays, deleted are the stored offsets %s", place[0], deleted)
        status = await self._durably(place, status) if deleted else status
        return _Answer(status, found=StoredEntries(next_first, deleted))

    async def _knows(self, home: Home) -> bool:
        """Whether the partition exists and is open here: what another shard says of it is not believed. Waits until
        the records that the asker had already applied are followed, at most 2 s."""
        for _ in range(METADATA_ATTEMPTS_MAX):
            if self._metadata.followed_index >= home.metadata_index:
                break
            await asyncio.sleep(METADATA_RETRY_S)
        known = partition_at(self._metadata.state, home.namespace)
        if known is None or (known.slot, known.incarnation) != (home.slot, home.incarnation):
            return False
        return self._engine.stats(home.slot).incarnation == home.incarnation

    async def _delete_segments(self, place: Place, count: int) -> int:
        """Answers that are being sent are let finish, for a while; what they still need stays after that. Each step
        asks the topic of now: what is to be archived is on the device before it leaves, else a power loss could give
        its offsets to other messages. KeyError."""
        attempts, synced = 0, False
        while count > 0 and attempts < DELETE_ATTEMPTS_MAX:
            if not synced and self._archives(place):
                status = self._engine.partition_flush(*place)
                status = status if status != Status.OK else await self._sync(place)
                if status != Status.OK:
                    return status
                synced = True
            step = min(count, DELETE_STEP)
            done = self._engine.partition_delete_segments(*place, step, self._destination(place))
            count -= done.deleted
            if done.status != Status.OK or (done.deleted < step and not done.busy):
                return done.status
            attempts += done.busy
            await asyncio.sleep(DELETE_RETRY_S if done.busy else 0)
        return Status.OK

    def _archives(self, place: Place) -> bool:
        """KeyError: the metadata have another incarnation there by now."""
        stream, topic, _ = partition_ids(place[0])
        partition = partition_at(self._metadata.state, place[0])
        if partition is None or partition.incarnation != place[1]:
            raise KeyError(place)
        return self._metadata.state.streams[stream].topics[topic].settings.get(ARCHIVE.key, "none") != "none"

    def _destination(self, place: Place) -> str:
        """Beginning of the names that the files of deleted segments get; shard 0 unlinks them later, once they are
        archived where the topic asks for that. KeyError."""
        if self._archives(place):
            make_incoming(self._data_directory)
            return incoming_prefix(self._data_directory, partition_ids(place[0]), place[1])
        self._trash_directory.mkdir(exist_ok=True)
        return str(self._trash_directory / f"{time.time_ns()}-{os.getpid()}-segment")

    async def _sync(self, place: Place) -> int:
        """Waits until the device has all there is now; 0, 10009 (the partition is poisoned) or 3007. KeyError."""
        token = next(self._tokens)
        waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[token] = waiting
        try:
            self._engine.partition_sync(*place, token)
            return await waiting
        finally:
            del self._waiting[token]

    def synced(self, token: int, status: int) -> None:
        """The end of a sync: SyncedEvent."""
        waiting = self._waiting.get(token)
        if waiting is not None and not waiting.done():
            waiting.set_result(status)

    async def _durably(self, place: Place, status: int) -> int:
        """The status of a change of offsets, at level durable when the device has it. KeyError."""
        if status == Status.OK and self._engine.partition_is_durable(place[0]):
            return await self._sync(place)
        return status
