"""gRPC as this door serves it: every method is a stream to the library, so that a call is counted, and its client
known, before anything of its request is taken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

import grpc
from grpc import StatusCode

from shardd.doors.liftbridge.calls import Call, Context, Gate, Request, address_of
from shardd.doors.liftbridge.options import LiftbridgeOptions
from shardd.doors.liftbridge.status import RpcError, rpc_error
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge import api

REQUEST_BYTES_MAX: Final = 4 << 20
METADATA_BYTES_MAX: Final = 16 << 10
METADATA_ENTRIES_MAX: Final = METADATA_BYTES_MAX // 32  # as HTTP/2 counts them
STREAMS_OF_CONNECTION_MAX: Final = 512
REPORT_INTERVAL_S: Final = 10.0
SETTINGS_MS: Final = 3_000  # until a client has acknowledged them: before that the limits of metadata are the library's
_log = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
Unary = Callable[[Call], Awaitable[bytes]]
Streaming = Callable[[Call], AsyncIterator[Sequence[bytes]]]  # as many at a time as there are


def server_options(options: LiftbridgeOptions) -> list[tuple[str, int]]:
    """What strangers may do to the library."""
    head_ms = options.server.partial_frame_timeout_ms
    settings_ms = min(head_ms, SETTINGS_MS)
    return [
        ("grpc.so_reuseport", 1),  # the supervisor holds the address
        ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX // 2),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.max_concurrent_streams", STREAMS_OF_CONNECTION_MAX),
        ("grpc.max_allowed_incoming_connections", options.connections_max),
        ("grpc.server_handshake_timeout_ms", head_ms),
        ("grpc.http2.settings_timeout", settings_ms),
        ("grpc.max_connection_idle_ms", 120_000),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 5),
        ("grpc.http2.bdp_probe", 0),  # what is read ahead for a call stays at 64 KiB
    ]


def reading(kind: type[Request], serve: Callable[[Call, Request], Awaitable[bytes]]) -> Unary:
    """A method that takes one request, of that class."""

    async def served(call: Call) -> bytes:
        return await serve(call, await call.read_one(kind))

    return served


class Service:
    """The methods of `proto.API`, by name: those that answer once, those whose one answer may be large, and those that
    stream."""

    def __init__(
        self, gate: Gate, unary: Mapping[str, Unary], large: Mapping[str, Unary], streaming: Mapping[str, Streaming]
    ) -> None:
        assert {*unary, *large, *streaming} == {*api.METHODS}
        self._gate = gate
        self.handlers = {name: self._once(name, serve, held=False) for name, serve in unary.items()}
        self.handlers |= {name: self._once(name, serve, held=True) for name, serve in large.items()}
        self.handlers |= {name: self._streaming(name, serve) for name, serve in streaming.items()}

    def _once(self, method: str, serve: Unary, *, held: bool) -> Handler:
        """`held`: writes itself, so that the answer has its room and the call its place until the client has it."""

        async def answered(call: Call) -> bytes | None:
            await call.authenticate()
            async with self._gate.calls.place(call):
                answer = await serve(call)
                if not held:
                    return answer
                await call.write(answer)
                return None

        async def handle(_requests: object, context: Context) -> bytes | None:
            try:
                return await answered(Call(self._gate, method, context))
            except Exception as error:
                await end(context, error)
                raise

        if held:
            return grpc.stream_stream_rpc_method_handler(handle)
        return grpc.stream_unary_rpc_method_handler(handle)

    def _streaming(self, method: str, serve: Streaming) -> Handler:
        crowd = self._gate.subscriptions if method not in api.CLIENT_STREAMING else self._gate.sessions

        async def streamed(call: Call) -> None:
            await call.authenticate()
            async with crowd.place(call):
                async for responses in serve(call):
                    for response in responses:
                        await call.context.write(response)

        async def handle(_requests: object, context: Context) -> None:
            """Writes itself: a call that gives way while its client reads slowly ends here, not in the library."""
            try:
                await streamed(Call(self._gate, method, context))
            except Exception as error:
                await end(context, error)

        return grpc.stream_stream_rpc_method_handler(handle)


async def end(context: Context, error: Exception) -> None:
    """With the status that stands for it. Raises what gRPC ends calls with: of a client that is gone nothing is told,
    and no line is written."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    first = error
    if isinstance(error, ShardError | WorkerLostError):
        error = rpc_error(error)
    try:
        if isinstance(error, grpc.aio.BaseError):
            raise error
        if not isinstance(error, RpcError):
            _faults.tell(error)
            error = RpcError(StatusCode.UNKNOWN, "the server failed; its log says more")
        _forget_frames(first)
        _forget_frames(error)
        await context.abort(error.code, str(error))
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError as gone:  # the library could not write: the client has ended the call
        _log.debug("a call without a client: %r", gone)
        raise asyncio.CancelledError from None


def _forget_frames(error: Exception) -> None:
    """The library keeps what a call ends with in a cycle: the frames that it came through, with their requests and
    answers, would be there until garbage is looked for."""
    error.__traceback__ = error.__context__ = error.__cause__ = None


class Faults:
    """Calls that ended in an error of this program: one of them is told in 10 s, all are counted. Loop thread only."""

    def __init__(self) -> None:
        self._untold = 0
        self._next_at_s = 0.0

    def tell(self, error: Exception) -> None:
        self._untold += 1
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_at_s:
            _log.error("%d calls failed, the last one so", self._untold, exc_info=error)
            self._untold, self._next_at_s = 0, now_s + REPORT_INTERVAL_S


_faults = Faults()


def generic_handler(gate: Gate, service: str, handlers: Mapping[str, Handler]) -> grpc.GenericRpcHandler:
    """Methods that a service does not have get Liftbridge's words."""
    return _Handler(gate, service, handlers)


class Excess(grpc.GenericRpcHandler):
    """Calls with more metadata than clients send that keep to the settings: the library lets through what comes before
    they are acknowledged. Asked before all others. It looks at what the library has made of the metadata already."""

    def __init__(self, gate: Gate) -> None:
        async def handle(_requests: object, context: Context) -> bytes:
            gate.connections.shut_out(address_of(context.peer()))
            await context.abort(StatusCode.RESOURCE_EXHAUSTED, f"more than {METADATA_BYTES_MAX} bytes of metadata")
            raise AssertionError

        self._handler: Handler = grpc.stream_unary_rpc_method_handler(handle)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        metadata = handler_call_details.invocation_metadata or ()
        if len(metadata) <= METADATA_ENTRIES_MAX:
            size = sum(len(name) + len(value) for name, value in metadata)
            if size <= METADATA_BYTES_MAX:
                return None
        return self._handler


class Unserved(grpc.GenericRpcHandler):
    """Services that there are not. Asked after all others."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        service, _ = _named(handler_call_details)
        return _unknown(self._gate, f"unknown service {service}")


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, gate: Gate, service: str, handlers: Mapping[str, Handler]) -> None:
        self._gate = gate
        self._service = service
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        service, method = _named(handler_call_details)
        if service != self._service:
            return None
        return self._handlers.get(method) or _unknown(self._gate, f"unknown method {method} for service {service}")


def _named(called: grpc.HandlerCallDetails) -> tuple[str, str]:
    service, _, method = called.method.removeprefix("/").rpartition("/")
    return service, method


def _unknown(gate: Gate, text: str) -> Handler:
    async def handle(_requests: object, context: Context) -> bytes:
        Call(gate, "", context).is_unknown()
        await context.abort(StatusCode.UNIMPLEMENTED, text)
        raise AssertionError

    return grpc.stream_unary_rpc_method_handler(handle)
