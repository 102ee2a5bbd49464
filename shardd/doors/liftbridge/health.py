"""`grpc.health.v1.Health` and reflection. They ask for no login: what they tell is whether the server serves, and what
every client of Liftbridge has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Final, cast

import grpc
from google.protobuf.message import DecodeError
from grpc import StatusCode
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from shardd.doors.liftbridge.calls import Call, Context, Gate
from shardd.doors.liftbridge.endpoint import Handler, end
from shardd.doors.liftbridge.status import RpcError
from shardd.protocol.liftbridge import api, api_messages

HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = "grpc.reflection.v1alpha.ServerReflection"
_KNOWN: Final = ("", api.SERVICE)
_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN: Final = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """Loop thread only. `proto.API` does not serve once the door stops."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    def handlers(self) -> dict[str, Handler]:
        return {
            "Check": grpc.stream_unary_rpc_method_handler(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }

    async def _check(self, _requests: object, context: Context) -> bytes:
        call = Call(self._gate, "Check", context)

        async def answer() -> bytes:
            request = await call.read_one(health_pb2.HealthCheckRequest)
            if request.service not in _KNOWN:
                raise RpcError(StatusCode.NOT_FOUND, "unknown service")
            return self._status_of(request.service)

        return await _counted(self._gate, call, answer)

    async def _watch(self, _requests: object, context: Context) -> None:
        call = Call(self._gate, "Watch", context)
        try:
            async with self._gate.watches.place(call):
                request = await call.read_one(health_pb2.HealthCheckRequest)
                await context.write(self._status_of(request.service))
                await self._stopping.wait()
                await context.write(self._status_of(request.service))
        except Exception as error:
            await end(context, error)
        finally:
            call.is_probe()

    def _status_of(self, service: str) -> bytes:
        stopping = service == api.SERVICE and self._stopping.is_set()
        status = (_NOT_SERVING if stopping else _SERVING) if service in _KNOWN else _UNKNOWN
        return health_pb2.HealthCheckResponse(status=status).SerializeToString()


def reflection_handlers(gate: Gate) -> dict[str, Handler]:
    """Of what is in our own pool of descriptions."""
    servicer = ReflectionServicer((api.SERVICE, HEALTH, REFLECTION), pool=_Pools())

    async def requests_of(call: Call) -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        while isinstance(data := await call.context.read(), bytes):
            try:
                yield reflection_pb2.ServerReflectionRequest.FromString(data)
            except DecodeError as error:
                raise RpcError(StatusCode.INTERNAL, f"grpc: error unmarshalling request: {error}") from None

    async def info(_requests: object, context: Context) -> None:
        call = Call(gate, "ServerReflectionInfo", context)
        try:
            async with gate.probes.place(call):
                infos = servicer.ServerReflectionInfo(requests_of(call), context)
                # an asynchronous generator, although the types of the library say a coroutine
                async for response in cast(AsyncIterable[reflection_pb2.ServerReflectionResponse], infos):
                    await context.write(response.SerializeToString())
        except Exception as error:
            await end(context, error)
        finally:
            call.is_probe()

    return {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(info)}


class _Pools:
    """Our pool, then the one of the libraries for their own services."""

    def __getattr__(self, name: str) -> Callable[..., object]:
        own, others = getattr(api_messages.POOL, name), getattr(health_pb2.DESCRIPTOR.pool, name)

        def find(*arguments: object) -> object:
            try:
                return own(*arguments)
            except KeyError:
                return others(*arguments)

        return find


async def _counted(gate: Gate, call: Call, answer: Callable[[], Awaitable[bytes]]) -> bytes:
    try:
        async with gate.probes.place(call):
            return await answer()
    except Exception as error:
        await end(call.context, error)
        raise
    finally:
        call.is_probe()
