"""SetCursor and FetchCursor."""

from __future__ import annotations

from typing import Any, Final

from grpc import StatusCode

from shardd.doors.liftbridge.calls import Call
from shardd.doors.liftbridge.cursors import NAME_BYTES_MAX, STREAM, Cursor, Cursors, NoRoomError
from shardd.doors.liftbridge.registry import Registry
from shardd.doors.liftbridge.status import RpcError, denied, invalid
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge import api
from shardd.protocol.liftbridge.requests import ListStreams

_DONE: Final = b""  # an answer without fields


class CursorRpcs:
    """Loop thread only. A cursor may be set and read by whoever may see its stream; that of a stream that does not
    exist by whoever may see `__cursors`."""

    def __init__(self, registry: Registry, cursors: Cursors) -> None:
        self._registry = registry
        self._cursors = cursors

    async def set(self, call: Call, request: Any) -> bytes:
        cursor = await self._cursor(call, request)
        try:
            await self._cursors.set(cursor, request.offset)
        except NoRoomError:
            raise RpcError(StatusCode.INTERNAL, "There is no room for another cursor") from None
        except (ShardError, WorkerLostError) as error:
            raise RpcError(StatusCode.INTERNAL, f"Failed to store the cursor: {error}") from None
        return _DONE

    async def fetch(self, call: Call, request: Any) -> bytes:
        offset = self._cursors.get(await self._cursor(call, request))
        return bytes(api.message_class("FetchCursorResponse")(offset=offset).SerializeToString())

    async def _cursor(self, call: Call, request: Any) -> Cursor:
        if not request.stream:
            raise invalid("No stream provided")
        if not request.cursorId:
            raise invalid("No cursorId provided")
        if max(len(request.stream.encode()), len(request.cursorId.encode())) > NAME_BYTES_MAX:
            raise invalid(f"a name has more than {NAME_BYTES_MAX} bytes")
        if not self._cursors.partitions:
            raise RpcError(StatusCode.INTERNAL, "Cursors stream does not exist")
        about = STREAM if self._registry.get(request.stream) is None else request.stream
        if not await call.command("liftbridge_list_streams", ListStreams((about,))):
            raise denied(call.method, request.stream)
        return Cursor(request.stream, request.partition, request.cursorId)
