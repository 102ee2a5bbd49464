"""The application: who asks, what is asked, and how it is answered."""

from __future__ import annotations

import logging
from functools import cache
from typing import Final

import msgspec
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router

from shardd.config.http import HttpCors
from shardd.doors.asgi import Application, Message, Receive, Scope, Send
from shardd.doors.door import TRACE, Door
from shardd.doors.http import (
    account_routes,
    consumer_routes,
    event_routes,
    login_routes,
    message_routes,
    stream_routes,
    system_routes,
)
from shardd.doors.http.bodies import Bodies
from shardd.doors.http.clients import Clients, make_clients
from shardd.doors.http.endpoint import Call, Endpoint
from shardd.doors.http.errors import (
    JSON,
    NotAuthenticatedError,
    NothingFoundError,
    RejectedError,
    error_response,
    not_authenticated,
    nothing_found,
)
from shardd.doors.http.openapi import describe
from shardd.doors.http.options import HttpOptions
from shardd.doors.http.polls import Polls
from shardd.doors.http.system_routes import METRICS
from shardd.doors.links import WorkerLostError
from shardd.doors.metrics.public import PublicFigures
from shardd.doors.unread import OWNER
from shardd.protocol.errors import ShardError, Status
from shardd.runtime.tracing import TRACEPARENT_BYTES

PUBLIC: Final = frozenset(
    {
        "/",
        "/ping",
        METRICS,
        "/openapi.json",
        "/ui",
        "/users/login",
        "/users/refresh-token",
        "/personal-access-tokens/login",
    }
)
"""Paths that ask for no token, exactly so."""
_CALL: Final = "shardd.call"
_log = logging.getLogger(__name__)


async def _name(call: Call) -> Response:
    return PlainTextResponse("Iggy API")


async def _pong(call: Call) -> Response:
    return PlainTextResponse("pong")


@cache
def _description() -> bytes:
    return msgspec.json.encode(describe(ENDPOINTS, PUBLIC))


async def _openapi(call: Call) -> Response:
    return Response(_description(), media_type=JSON)


ENDPOINTS: Final = (
    *message_routes.ENDPOINTS,  # a path is looked for in this order
    Endpoint("GET", "/", _name, "The name of this API", media="text/plain"),
    Endpoint("GET", "/ping", _pong, "Whether somebody is there", media="text/plain"),
    Endpoint("GET", "/openapi.json", _openapi, "This description"),
    *system_routes.ENDPOINTS,
    *login_routes.ENDPOINTS,
    *account_routes.ENDPOINTS,
    *stream_routes.ENDPOINTS,
    *event_routes.ENDPOINTS,
    *consumer_routes.ENDPOINTS,
)


class HttpApplication:
    """Loop thread of the door only."""

    def __init__(self, door: Door, options: HttpOptions) -> None:
        self.clients = make_clients(door, options.connections_max // 2 + 1)
        timeout_s = options.server.partial_frame_timeout_ms / 1000
        self._bodies = Bodies(options.http.max_request_size_bytes, timeout_s)
        self._polls = Polls()
        self._figures = PublicFigures(door)
        served = [each for each in ENDPOINTS if each.path != METRICS or options.http.metrics.enabled]
        self._router = Router([self._route(each) for each in served], redirect_slashes=False)

    def _route(self, endpoint: Endpoint) -> Route:
        return Route(endpoint.path, _Endpoint(endpoint, self._bodies), methods=[endpoint.method])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Everything that can be wrong becomes an answer; behind the head of one, the end of the connection."""
        started = False
        self._figures.requests += 1
        TRACE.set(_traceparent(scope))

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._enter(scope)
            await self._router(scope, receive, sending)
        except Exception as error:
            if started:
                if not isinstance(error, TimeoutError):
                    _log.error("an answer was cut", exc_info=error)
                raise
            response = _response_to(error)
            await response(scope, receive, send)
        finally:
            scope.pop(_CALL, None)  # they refer to each other: the collector alone would free both

    async def _enter(self, scope: Scope) -> None:
        """Parts of a path may hold a "/" that is encoded: they are told apart before they are decoded."""
        path = scope["path"] = scope["raw_path"].decode("ascii")
        host, port = scope["client"]
        host = host.partition("%")[0]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        token = "" if path in PUBLIC else _bearer(scope)
        call = scope[_CALL] = Call(Request(scope), self.clients, self._polls, self._figures, token, address)
        if path not in PUBLIC:
            call.owner = scope[OWNER] = (await self.clients.take(token, address)).user_id


class _Endpoint:
    """As an application: Starlette wraps a function twice, to answer errors that are answered here."""

    def __init__(self, endpoint: Endpoint, bodies: Bodies) -> None:
        self._endpoint, self._bodies = endpoint, bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope[_CALL]
        call.request = Request(scope, receive, send)
        response = await self._endpoint.answer(call, self._bodies)
        await response(scope, receive, send)


def make_application(door: Door, options: HttpOptions) -> tuple[Application, Clients]:
    inner = HttpApplication(door, options)
    served: Application = _with_cors(inner, options.http.cors) if options.http.cors.enabled else inner
    return served, inner.clients


def _with_cors(inner: HttpApplication, cors: HttpCors) -> Application:
    return CORSMiddleware(
        inner,
        allow_origins=cors.allowed_origins,
        allow_methods=cors.allowed_methods,
        allow_headers=cors.allowed_headers,
        expose_headers=cors.exposed_headers,
        allow_credentials=cors.allow_credentials,
    )


def _traceparent(scope: Scope) -> str:
    """The worker judges it. "": there is none, or several."""
    found = [value for name, value in scope["headers"] if name == b"traceparent"]
    return found[0][: TRACEPARENT_BYTES + 1].decode("latin-1") if len(found) == 1 else ""


def _bearer(scope: Scope) -> str:
    """NotAuthenticatedError without one, or with several."""
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(found) == 1:
        kind, _, token = found[0].decode("latin-1").partition(" ")
        if kind.lower() == "bearer" and token.strip():
            return str(token.strip())
    raise NotAuthenticatedError


def _response_to(error: Exception) -> Response:
    match error:
        case NotAuthenticatedError():
            return not_authenticated()
        case NothingFoundError():
            return nothing_found()
        case RejectedError():
            return error.response()
        case ShardError():
            return error_response(error)
        case WorkerLostError():  # nobody knows whether it was done
            return error_response(ShardError(Status.SHARD_COMMUNICATION_ERROR, str(error)))
        case _:
            _log.error("a request failed", exc_info=error)
            return error_response(ShardError(Status.ERROR))
