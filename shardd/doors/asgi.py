"""An ASGI application on a socket of the supervisor, by uvicorn: with bounds for what strangers send, and an orderly
end. Whoever imports this needs what `shardd[http]` installs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from functools import partial
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from shardd.doors.asgi_crowd import AsgiCrowd, AsgiLimits, requests_of_client
from shardd.doors.forwarded import BoundedClients, ForwardedFor, TrustedProxies
from shardd.doors.hosts import AllowedHosts, HostCheck
from shardd.doors.introductions import Client, Introductions, host_of
from shardd.doors.offers import OffersIgnored
from shardd.doors.openings import Openings, PacedTls
from shardd.doors.sent_ahead import HeldFlow, step_end
from shardd.doors.taking import LOOK_S, Taking, bound, reset
from shardd.doors.unread import UNREAD, Answers, CountedAnswers, Unread
from shardd.runtime.bounded_loop import READ_BYTES_MAX

PIPELINED_MAX: Final = 1  # requests of one connection that are parsed before the one in front is answered
HEAD_FIELDS_MAX: Final = 128  # each takes many times its bytes
UNTAKEN_BODY_BYTES_MAX: Final = 16 << 10  # of a body that its application does not take: then no more is read
UNWRITTEN_BYTES_MAX: Final = 16 << 10  # of a connection, that the kernel has not taken: then no more is written
STOP_S: Final = 2  # what is under way has so long; the supervisor waits for 3 s
_BACKLOG: Final = 1024
_LOOKS_AT_ONCE: Final = 128  # in a turn of the loop
_VERSIONS: Final = ("1.0", "1.1")
_STATUS_LINES: Final = {
    400: "400 Bad Request",
    431: "431 Request Header Fields Too Large",
    503: "503 Service Unavailable",
}

PEER: Final = "shardd.peer"
"""Where the scope of a request has its `Peer`."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Peer:
    """The connection that a request has come by."""

    def __init__(self, transport: asyncio.Transport, flow: FlowControl, unread: Unread) -> None:
        self._transport = transport
        self._flow = flow
        self._unread = unread

    @property
    def is_gone(self) -> bool:
        """Nobody will have the answer."""
        return self._transport.is_closing()

    def abort(self) -> None:
        """What was written and not taken is dropped."""
        reset(self._transport)

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """What is written meanwhile has room of its own."""
        self._unread.is_held = True
        try:
            yield
        finally:
            self._unread.is_held = False

    async def taken(self) -> None:
        """Until the client has what was written but for a rest of 64 KiB that the kernel has, or the connection is
        gone."""
        await self._flow.drain()


async def serve_app(
    application: Application,
    hosts: AllowedHosts,
    listener: socket.socket,
    limits: AsgiLimits,
    ready: Callable[[], None],
    tls: ssl.SSLContext | None = None,
    logged: Callable[[Application], Application] = lambda served: served,
    openings: Openings | None = None,
) -> None:
    """Until it is cancelled: then what is under way is finished, for `STOP_S` at most. `logged`: what has each request,
    also one that is refused here, and knows whose it is. `openings`: the line of handshakes, to count them."""
    proxies = TrustedProxies(limits.proxies)
    if proxies:
        application = BoundedClients(application, requests_of_client(limits))
    application = logged(CountedAnswers(HostCheck(application, hosts)))
    if proxies:
        application = ForwardedFor(application, proxies)
    server = _Server(application, listener, limits, ready, tls, openings or Openings())
    serving = asyncio.ensure_future(server.serve())
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        server.should_exit = True
        await serving
        raise


class _Server(uvicorn.Server):
    """uvicorn's, without its signals and with our socket."""

    def __init__(
        self,
        application: Application,
        listener: socket.socket,
        limits: AsgiLimits,
        ready: Callable[[], None],
        tls: ssl.SSLContext | None,
        openings: Openings,
    ) -> None:
        self._crowd = AsgiCrowd(limits)
        self._answers = Answers()
        crowd = self._crowd if tls is None else None
        shared = {"limits": limits, "crowd": crowd, "answers": self._answers}
        bounded = type("BoundedProtocol", (_BoundedProtocol,), shared)
        config = uvicorn.Config(
            application,
            http=bounded,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=limits.keep_alive_s,
            timeout_graceful_shutdown=STOP_S,
        )
        super().__init__(config)
        self._listener = listener
        self._limits = limits
        self._ready = ready
        self._tls = tls
        self._openings = openings
        begin = self._plain if tls is None else self._over_tls
        networks = TrustedProxies(limits.introducing)
        self._introductions = Introductions(networks, self._crowd, limits.head_timeout_s, begin)
        self._looking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._looking.set_result(None)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The supervisor says when to stop."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if counter % round(LOOK_S * 10) == 0 and self._looking.done():
            self._looking = asyncio.ensure_future(self._look())
        return await super().on_tick(counter)

    async def _look(self) -> None:
        """Ends the connections of clients that take too little, and what is left of those that are closed."""
        now_s = asyncio.get_running_loop().time()
        connections: list[_BoundedProtocol] = [*self.server_state.connections]  # type: ignore[list-item]
        for number, connection in enumerate(connections):
            if number % _LOOKS_AT_ONCE == _LOOKS_AT_ONCE - 1:
                await asyncio.sleep(0)
            connection.look(now_s)
        for number, _ in enumerate(self._crowd.look(now_s)):
            if number % _LOOKS_AT_ONCE == _LOOKS_AT_ONCE - 1:
                await asyncio.sleep(0)
        for _ in iter(self._answers.shrink, False):
            await asyncio.sleep(0)
        self._introductions.report(now_s)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        bound(self._listener)
        server = await asyncio.get_running_loop().create_server(
            self._introductions.accept, sock=self._listener, backlog=_BACKLOG
        )
        self.servers = [server]
        self.started = True
        self._ready()

    def _plain(self, client: Client | None) -> asyncio.Protocol:
        protocol: Any = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state={}
        )
        protocol.introduced = client
        return protocol  # type: ignore[no-any-return]

    def _over_tls(self, client: Client | None) -> asyncio.BaseProtocol:
        loop, timeout_s = asyncio.get_running_loop(), self._limits.head_timeout_s
        return PacedTls(
            *(self._openings, self._crowd, client, loop, self._plain(client), self._tls, None),
            server_side=True,
            ssl_handshake_timeout=timeout_s,
        )


class _ConnectionRefusedError(Exception):
    """Stops the parser of a connection that is refused."""


class _BoundedProtocol(OffersIgnored):
    """One connection. A head is bounded in bytes, fields and time, connections by address. Requests are parsed one
    after the other (sent_ahead.py)."""

    limits: AsgiLimits
    crowd: AsgiCrowd | None  # None: it is counted where its TLS is
    answers: Answers
    introduced: Client | None = None  # what a PROXY protocol header has told

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        host = host_of(transport, self.introduced)
        self._host = "" if self.crowd is None else self.crowd.counted_as(host)
        self._entered = self.crowd is None or self.crowd.enter(self._host)
        self._timer: asyncio.TimerHandle | None = None
        self._taking = Taking(self.limits.slow_reader_timeout_s)
        self._in_head = True
        self._head_bytes = 0
        self._refusal = 400
        self._begun: RequestResponseCycle | None = None
        self._ahead = b""  # bytes behind the request that is under way
        if not self._entered:
            transport.abort()
            return
        super().connection_made(transport)
        self.flow: HeldFlow = HeldFlow(transport)
        self.unread = Unread(self.answers, transport, self.flow, partial(reset, transport))
        self._peer = Peer(transport, self.flow, self.unread)
        transport.set_write_buffer_limits(UNWRITTEN_BYTES_MAX)
        self.client = self.introduced or self.client
        transport.max_size = READ_BYTES_MAX  # type: ignore[attr-defined]  # of a socket; over TLS it means nothing
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._entered:
            return
        self._entered = False
        self._ahead = b""
        self.pipeline.clear()
        self._unset_keepalive_if_required()  # uvicorn does so where its client closes, not where it resets
        if self.crowd is not None:
            self.crowd.leave(self._host, self.transport.get_extra_info("socket"), self.unread)
        self._stop_watching()
        if self._begun is not None and not self._begun.response_complete:
            self._begun.disconnected = True  # uvicorn tells the newest request alone, which may wait behind this one
            self._begun.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Requests of a connection are answered one after the other: the one that has begun last is under way."""
        self._begun = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if not self._entered:
            return
        if self._ahead or not self._is_free:
            self._hold(data)
        else:
            self._parse(data)

    def _hold(self, data: bytes) -> None:
        """Until the request in front is answered. A head of which this is the rest is not late meanwhile."""
        self._ahead += data
        self._stop_watching()
        self.flow.hold()

    @property
    def _is_free(self) -> bool:
        """Whether bytes are of the request that has begun, or of the next one."""
        newest = self.cycle
        return newest is None or newest.response_complete or (newest is self._begun and newest.more_body)

    def _parse(self, data: bytes) -> None:
        at = step_end(data, 0, self._body_left)
        self._feed(data[:at])
        while at < len(data) and not self.transport.is_closing():
            if not self._is_free:
                self._hold(data[at:])
                return
            begin, at = at, step_end(data, at, self._body_left)
            self._feed(data[begin:at])

    def _feed(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self.limits.head_bytes_max and not self.transport.is_closing():
            self._refusal = 431
            self.send_400_response("")
        answered = self.cycle is None or self.cycle.response_complete
        if not self._in_head and answered and self.timeout_keep_alive_task is None and self._timer is None:
            self._watch_head()  # the rest of a body that nobody reads, or empty lines

    def on_response_complete(self) -> None:
        """The next request may begin."""
        super().on_response_complete()
        if self._ahead and self._is_free and not self.transport.is_closing():
            data, self._ahead = self._ahead, b""
            if self._in_head:
                self._watch_head()
            self._parse(data)
            if not self._ahead:
                self.flow.release()

    def begin_head(self) -> None:
        if not self._in_head:
            self._in_head, self._head_bytes = True, 0
            self._watch_head()
        self._body_left = 0
        super().begin_head()
        self.scope[PEER] = self._peer  # type: ignore[typeddict-unknown-key]
        self.scope[UNREAD] = self.unread  # type: ignore[typeddict-unknown-key]

    def on_header(self, name: bytes, value: bytes) -> None:
        """Fields behind a body are none of the head: uvicorn would put them there, and the application believe them."""
        if not self._in_head:
            return
        if len(self.headers) >= HEAD_FIELDS_MAX:
            self._refusal = 431
            raise _ConnectionRefusedError
        super().on_header(name, value)

    def complete_head(self) -> None:
        self._in_head = False
        self._stop_watching()
        encodings, hosts, size = [], 0, len(self.url)
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                self._body_left = int(value)
            elif name == b"transfer-encoding":
                encodings.append(value.strip().lower())
        version = self.parser.get_http_version()
        self._is_chunked = encodings == [b"chunked"] and version == "1.1"
        if version not in _VERSIONS or hosts > 1 or (encodings and not self._is_chunked):
            raise _ConnectionRefusedError
        if size > self.limits.head_bytes_max:
            self._refusal = 431
            raise _ConnectionRefusedError
        if len(self.pipeline) >= PIPELINED_MAX:
            self._refusal = 503
            raise _ConnectionRefusedError
        super().complete_head()

    def on_body(self, body: bytes) -> None:
        self._body_left = max(0, self._body_left - len(body))
        super().on_body(body)
        if len(self.cycle.body) > UNTAKEN_BODY_BYTES_MAX and not self.cycle.response_complete:
            self.flow.pause_reading()

    def send_400_response(self, msg: str) -> None:
        """Nothing is written into the middle of another answer."""
        if self.cycle is None or self.cycle.response_complete:
            line = _STATUS_LINES[self._refusal]
            text = line.partition(" ")[2]
            head = (
                f"HTTP/1.1 {line}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {len(text)}\r\n"
                f"connection: close\r\n\r\n{text}"
            )
            self.transport.write(head.encode())
        self.transport.close()

    def look(self, now_s: float) -> None:
        """Every now and then: an answer that keeps coming is waited for."""
        connection = self.transport.get_extra_info("socket")
        if connection is None:
            return
        if self._taking.is_late(connection, now_s, self.unread.unsent_bytes()):
            reset(self.transport)
        else:
            self.unread.look(has_everything=self._taking.since_s is None)

    def timeout_keep_alive_handler(self) -> None:
        """Who does not even take a small answer is not waited for."""
        if self.transport.get_write_buffer_size():
            reset(self.transport)
        else:
            super().timeout_keep_alive_handler()

    def _watch_head(self) -> None:
        self._stop_watching()
        self._timer = self.loop.call_later(self.limits.head_timeout_s, self.transport.abort)

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
