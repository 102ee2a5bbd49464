"""CreateStream, DeleteStream, PauseStream and SetStreamReadonly: checks in Liftbridge's order, with its texts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from grpc import StatusCode

from shardd.doors.liftbridge.calls import Call
from shardd.doors.liftbridge.registry import Registry
from shardd.doors.liftbridge.status import RpcError, failed_precondition, invalid, not_found, rpc_error
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge import requests
from shardd.protocol.liftbridge.api_messages import (
    CreateStreamRequest,
    DeleteStreamRequest,
    PauseStreamRequest,
    SetStreamReadonlyRequest,
)
from shardd.protocol.liftbridge.creation import RESERVED_STREAMS, CreationError, new_stream
from shardd.protocol.liftbridge.requests import NAMES_MAX

NO_STREAM: Final = "stream does not exist"
_Change = PauseStreamRequest | SetStreamReadonlyRequest
_EMPTY: Final = b""  # an answer without fields


class StreamRpcs:
    """Loop thread only. `listens`: waits until messages over NATS get to the streams that there are."""

    def __init__(self, registry: Registry, listens: Callable[[], Awaitable[None]]) -> None:
        self._registry = registry
        self._listens = listens

    async def create(self, call: Call, request: CreateStreamRequest) -> bytes:
        try:
            new = new_stream(request)
        except CreationError as error:
            raise invalid(str(error)) from None
        command = requests.CreateStream(new.name, new.subject, new.group, new.partitions, new.settings)
        try:
            await call.ask("liftbridge_create_stream", command)
        except (ShardError, WorkerLostError) as error:
            said = rpc_error(error, call.method, new.name)
            refused = isinstance(error, ShardError) and error.status is Status.INVALID_CONFIGURATION
            raise failed_precondition(str(said)) if refused and new.settings.get("encryption") else said from None
        await self._made()
        await self._listens()
        return _EMPTY

    async def delete(self, call: Call, request: DeleteStreamRequest) -> bytes:
        if request.name in RESERVED_STREAMS:
            raise invalid("Stream is reserved")
        if not request.name:
            raise not_found(NO_STREAM)
        await call.command("liftbridge_delete_stream", requests.DeleteStream(request.name), request.name)
        await self._made()
        return _EMPTY

    async def pause(self, call: Call, request: PauseStreamRequest) -> bytes:
        partitions = _partitions(request)
        command = requests.PauseStream(request.name, partitions, request.resumeAll)
        await self._change(call, "liftbridge_pause_stream", command, request)
        return _EMPTY

    async def set_readonly(self, call: Call, request: SetStreamReadonlyRequest) -> bytes:
        command = requests.SetReadonly(request.name, _partitions(request), request.readonly)
        await self._change(call, "liftbridge_set_readonly", command, request)
        return _EMPTY

    async def _change(self, call: Call, name: str, command: object, request: _Change) -> None:
        if not request.name:
            raise _no_stream(request)
        try:
            await call.ask(name, command)
        except (ShardError, WorkerLostError) as error:
            if isinstance(error, ShardError) and error.status is Status.TOPIC_ID_NOT_FOUND:
                raise _no_stream(request) from None
            raise rpc_error(error, call.method, request.name) from None
        await self._made()

    async def _made(self) -> None:
        """Whoever has changed something finds it changed."""
        try:
            await self._registry.refresh()
        except (ShardError, WorkerLostError) as error:
            raise RpcError(StatusCode.UNAVAILABLE, f"it is done, and not known everywhere yet: {error}") from None


def _no_stream(request: _Change) -> RpcError:
    return not_found(NO_STREAM if request.partitions else "stream not found")


def _partitions(request: _Change) -> tuple[int, ...]:
    """Each once. RpcError."""
    found = sorted(set(request.partitions))
    if found and found[0] < 0:
        raise not_found("partition does not exist")
    if len(found) > NAMES_MAX:
        raise invalid(f"more than {NAMES_MAX} partitions in one request")
    return tuple(found)
