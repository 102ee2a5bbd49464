"""Work that only the owner of a partition can do and that is not on the warm path: offsets and flushes.

Each call goes to the owner: to the engine here, or over the bus to the shard that serves the same call there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from enum import IntEnum

import msgspec

from shardd.protocol.errors import ShardError, Status
from shardd.shard.bus import BusError
from shardd.shard.context import ShardContext

METHOD = "partition"
REQUEST_TIMEOUT_S = 5.0  # a flush waits for the device
SYNC_RETRY_S = 0.005
SYNC_ATTEMPTS_MAX = 800  # 4 s, below the time a peer waits


class Operation(IntEnum):
    """What the owner is asked to do."""

    GET_OFFSET = 1
    STORE_OFFSET = 2
    DELETE_OFFSET = 3
    FLUSH = 4


class _Call(msgspec.Struct, array_like=True, frozen=True):
    operation: Operation
    namespace: int
    kind: int = 0
    consumer: int = 0
    value: int = 0


class _Answer(msgspec.Struct, array_like=True, frozen=True):
    status: int
    value: int | None = None


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

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        context.bus.serve(METHOD, self._serve)

    async def get_offset(self, namespace: int, shard: int, kind: int, consumer: int) -> int | None:
        """The stored offset of a consumer, None when nothing is stored."""
        return (await self._call(shard, _Call(Operation.GET_OFFSET, namespace, kind, consumer))).value

    async def store_offset(self, namespace: int, shard: int, kind: int, consumer: int, offset: int) -> None:
        """`ShardError` 4100, 3007, 10006 or 3023."""
        self._raise(await self._call(shard, _Call(Operation.STORE_OFFSET, namespace, kind, consumer, offset)))

    async def delete_offset(self, namespace: int, shard: int, kind: int, consumer: int) -> None:
        """`ShardError` 3021, 3007 or 3011."""
        self._raise(await self._call(shard, _Call(Operation.DELETE_OFFSET, namespace, kind, consumer)))

    async def flush(self, namespace: int, shard: int, *, fsync: bool) -> None:
        """Writes the waiting index entries and, with `fsync`, returns when the device has everything.

        `ShardError` 3007, 4007, or 10009 when the sync failed (the partition is poisoned then).
        """
        self._raise(await self._call(shard, _Call(Operation.FLUSH, namespace, value=int(fsync))))

    @staticmethod
    def _raise(answer: _Answer) -> None:
        if answer.status != Status.OK:
            raise ShardError(Status(answer.status))

    async def _call(self, shard: int, call: _Call) -> _Answer:
        if shard == self._context.shard:
            return await self._execute(call)
        try:
            reply = await self._context.bus.request(shard, METHOD, _encoder.encode(call), REQUEST_TIMEOUT_S)
        except BusError as error:
            raise ShardError(Status.SHARD_COMMUNICATION_ERROR, str(error)) from error
        return _answer_decoder.decode(reply)

    async def _serve(self, payload: bytes) -> bytes:
        try:
            answer = await self._execute(_call_decoder.decode(payload))
        except ShardError as error:
            answer = _Answer(error.status)
        return _encoder.encode(answer)

    async def _execute(self, call: _Call) -> _Answer:
        engine = self._context.engine
        if call.operation is Operation.GET_OFFSET:
            return _Answer(Status.OK, engine.offset_get(call.namespace, call.kind, call.consumer))
        if call.operation is Operation.STORE_OFFSET:
            return _Answer(engine.offset_store(call.namespace, call.kind, call.consumer, call.value))
        if call.operation is Operation.DELETE_OFFSET:
            return _Answer(engine.offset_delete(call.namespace, call.kind, call.consumer))
        status = engine.partition_flush(call.namespace)
        if status == Status.OK and call.value:
            status = await self._sync(call.namespace)
        return _Answer(status)

    async def _sync(self, namespace: int) -> int:
        """A group of fdatasyncs in a helper thread; the engine moves the durable end or poisons the partition."""
        engine = self._context.engine
        descriptors = await self._begin_sync(namespace)
        errno = await asyncio.to_thread(sync_descriptors, descriptors)
        engine.partition_sync_done(namespace, errno)
        return Status.OK if errno == 0 else Status.CANNOT_SYNC_FILE

    async def _begin_sync(self, namespace: int) -> list[int]:
        """Descriptors to sync. Waits for a sync of the same partition that runs already; `ShardError` 12001 in the end."""
        for _ in range(SYNC_ATTEMPTS_MAX):
            try:
                return self._context.engine.partition_sync_fds(namespace)
            except BlockingIOError:
                await asyncio.sleep(SYNC_RETRY_S)
        raise ShardError(Status.TASK_TIMEOUT, "another sync of the partition does not end")
