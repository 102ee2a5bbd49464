"""SetCursor and FetchCursor."""

from __future__ import annotations

import asyncio
from typing import Final

from grpc import StatusCode

from shardd.doors.liftbridge.calls import Call
from shardd.doors.liftbridge.cursor_table import Cursor
from shardd.doors.liftbridge.cursors import NAME_BYTES_MAX, STREAM, Cursors, NoRoomError
from shardd.doors.liftbridge.partitions import Partitions
from shardd.doors.liftbridge.registry import Registry
from shardd.doors.liftbridge.status import RpcError, invalid, rpc_error
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge.api_messages import FetchCursorRequest, FetchCursorResponse, SetCursorRequest

_ALLOWED_S: Final = 1.0
_ALLOWED_MAX: Final = 4_096
_DONE: Final = b""  # an answer without fields


class CursorRpcs:
    """Loop thread only. A cursor may be set and read by whoever may read its stream; that of a stream that does not
    exist by whoever may read `__cursors`."""

    def __init__(self, registry: Registry, partitions: Partitions, cursors: Cursors) -> None:
        self._registry = registry
        self._partitions = partitions
        self._cursors = cursors
        self._allowed_until_s: dict[tuple[object, int], float] = {}

    async def set(self, call: Call, request: SetCursorRequest) -> bytes:
        cursor = await self._cursor(call, request)
        try:
            await self._cursors.set(cursor, request.offset, (await call.client()).owner)
        except NoRoomError as error:
            raise RpcError(StatusCode.INTERNAL, str(error)) from None
        except (ShardError, WorkerLostError) as error:
            raise RpcError(StatusCode.INTERNAL, f"Failed to store the cursor: {error}") from None
        return _DONE

    async def fetch(self, call: Call, request: FetchCursorRequest) -> bytes:
        offset = await self._cursors.get(await self._cursor(call, request))
        return FetchCursorResponse(offset=offset).SerializeToString()

    async def _cursor(self, call: Call, request: SetCursorRequest | FetchCursorRequest) -> Cursor:
        if not request.stream:
            raise invalid("No stream provided")
        if not request.cursorId:
            raise invalid("No cursorId provided")
        if max(len(request.stream.encode()), len(request.cursorId.encode())) > NAME_BYTES_MAX:
            raise invalid(f"a name has more than {NAME_BYTES_MAX} bytes")
        if not self._cursors.partitions:
            raise RpcError(StatusCode.INTERNAL, "Cursors stream does not exist")
        await self._require_reader(call, request.stream)
        return Cursor(request.stream, request.partition, request.cursorId)

    async def _require_reader(self, call: Call, name: str) -> None:
        """A worker is asked, and its answer counts for a moment. RpcError."""
        stream = self._registry.get(name) or self._registry.get(STREAM)
        if stream is None:
            raise RpcError(StatusCode.INTERNAL, "Cursors stream does not exist")
        key, now_s = (call.login, stream.incarnation), asyncio.get_running_loop().time()
        if self._allowed_until_s.get(key, 0.0) > now_s:
            await call.client()  # a login that has ended is none
            return
        try:
            await self._partitions.bounds(call, [(stream, (0,))])
        except (ShardError, WorkerLostError) as error:
            raise rpc_error(error, call.method, name) from None
        if len(self._allowed_until_s) >= _ALLOWED_MAX:
            self._allowed_until_s.clear()
        self._allowed_until_s[key] = now_s + _ALLOWED_S
