"""One connection of a door: frames in, requests under way within their bounds, answers out as they are ready.

A connection holds at most REQUESTS_MAX requests and UNDER_WAY_BYTES_MAX bytes: of requests, of what is kept free for
their answers, and of answers that the door has not read. Beyond, nothing more is read and the door waits in its socket.
Logins stand beside that: they wait for their turn for long, and each client has one at a time. So do waits for
messages, of which a worker has a bound of its own (shardd/service/waiting.py), all that wait in a line, and what the
engine has (places.py).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, Protocol, cast

import msgspec

from shardd.dispatch.door.clients import DoorClients
from shardd.dispatch.door.commands import WAIT, answer_bytes
from shardd.dispatch.door.places import Handed, Places, Work
from shardd.dispatch.door.requests import DoorFunctions, RequestHandler
from shardd.dispatch.door.values import encode_value
from shardd.protocol.door_frames import (
    CLIENT_CLOSED,
    PROOF_BYTES_MAX,
    REQUEST_BYTES_MAX,
    ClientEnded,
    Command,
    Frame,
    FrameError,
    Frames,
    Kind,
    Login,
    LoginBySetting,
    LoginWithAccessToken,
    LoginWithToken,
    Prove,
    Request,
    decode_request,
    encode_answer,
    encode_frame,
)
from shardd.protocol.errors import ShardError, Status
from shardd.runtime.aside import HAND_OVER, STAND_BESIDE, STEP_ASIDE
from shardd.runtime.asker import ASKER, Asker
from shardd.runtime.networks import network_of_host
from shardd.runtime.trust import door_kind
from shardd.service.waiting import WAIT_MAX_MS
from shardd.worker.doors import DoorParts

PROOF_TIMEOUT_S: Final = 5.0
STARTS_PER_TURN: Final = 32  # requests begun in one turn of the loop,
BYTES_PER_TURN: Final = 1 << 20  # and after so many bytes of them none
LOOK_S: Final = 0.1  # how often requests under way are looked at: so much late one may be answered with a timeout
_NIL: Final = encode_value(None)
_log = logging.getLogger(__name__)


class Counters(msgspec.Struct):
    """Of all connections of doors since the start."""

    answered: int = 0
    refused: int = 0


class Links(Protocol):
    """What a connection asks of the socket it came in by."""

    def may_connect(self, connection: DoorConnection) -> bool: ...
    def prove(self, connection: DoorConnection, peer: socket.socket, id_: str, key: str) -> str | None: ...
    def is_present(self, id_: str) -> bool: ...
    def clients_count(self, kind: str) -> int: ...
    def left(self, connection: DoorConnection) -> None: ...
    def refused(self, what: str) -> None: ...


class DoorConnection(asyncio.Protocol):
    """Lives on the loop thread of the worker. `door`: the name of its process ("door-http") once that is proven."""

    def __init__(
        self, links: Links, parts: DoorParts, functions: DoorFunctions, counters: Counters, handed: Handed
    ) -> None:
        self.door: str | None = None
        self.finished = asyncio.Event()  # no request is under way, and none is begun any more
        self._links = links
        self._parts = parts
        self._counters = counters
        self._functions = functions
        self._id = ""
        self._frames = Frames(PROOF_BYTES_MAX)
        self._work: set[Work] = set()
        self._places = Places(self._pump, handed)
        self._written_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None  # for the proof, then for a door that does not read
        self._look_timer: asyncio.TimerHandle | None = None  # while requests are under way
        self._pumping = False
        self._paused = False
        self._stopping = self._ended = False

    @property
    def requests_count(self) -> int:
        return len(self._work)

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self.clients = self._no_clients()
        if not self._links.may_connect(self):
            self.end()
            return
        self._timer = self._loop.call_later(PROOF_TIMEOUT_S, self._give_up, "a connection that proves nothing")

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._frames.feed(data)
        self._pump()

    def pause_writing(self) -> None:
        self._watch_reader(-1)

    def resume_writing(self) -> None:
        self._stop_timer()
        self._pump()

    def connection_lost(self, error: Exception | None) -> None:
        self.end()

    def _watch_reader(self, taken_before: int) -> None:
        """A door that takes no byte of its answers for `server.slow_reader_timeout` is given up."""
        taken = self._written_bytes - self._transport.get_write_buffer_size()
        if taken == taken_before:
            self._give_up(f"{self.door}, which does not read")
            return
        timeout_s = self._parts.limits.slow_reader_timeout_ms / 1000
        self._timer = self._loop.call_later(timeout_s, self._watch_reader, taken)

    # ---- life ----

    def stop(self) -> None:
        """Nothing more is begun; `finished` when nothing is under way."""
        self._stopping = True
        self._transport.pause_reading()
        self._loop.call_soon(self._end_waits)  # each has taken its first step by then, and knows that it was begun
        self._look_finished()

    def end(self) -> None:
        """Closes it, with all clients of the door."""
        if self._ended:
            return
        self._ended = True
        self._loop.call_soon(self._end_waits)
        self._stop_timer()
        self.clients.close_all()
        if self._look_timer is not None:
            self._look_timer.cancel()
        self._links.left(self)
        self._transport.close() if self._stopping else self._transport.abort()
        self.finished.set()

    def _end_waits(self) -> None:
        """They are answered as when their time is over; whoever waits for a turn does so no longer."""
        for work in self._work:
            if work.is_wait and work.task is not None:
                work.task.cancel()
            elif work.waiting is not None:
                work.send_away()

    def _no_clients(self) -> DoorClients:
        return self._clients_of("")

    def _clients_of(self, door: str) -> DoorClients:
        parts = self._parts
        count = partial(self._links.clients_count, door)
        return DoorClients(door, parts.shards, parts.engine, parts.sessions, parts.limits, count, self._client_ended)

    def _give_up(self, what: str) -> None:
        self._links.refused(what)
        self.end()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- requests ----

    def _pump(self) -> None:
        """Begins what may begin now; goes on in a later turn of the loop, or when something has ended."""
        if self._pumping:
            return
        started = started_bytes = 0
        try:
            while not self._ended and not self._stopping and self._has_room():
                if started == STARTS_PER_TURN or started_bytes >= BYTES_PER_TURN:
                    self._pumping = True
                    self._loop.call_soon(self._pump_again)
                    break
                frame = self._frames.take()
                if frame is None:
                    break
                self._begin(frame)
                started += 1
                started_bytes += frame.size
        except FrameError as error:
            self._give_up(f"a frame of {self.door or 'a stranger'}: {error}")
            return
        self._read_or_not()

    def _pump_again(self) -> None:
        self._pumping = False
        self._pump()

    def _has_room(self) -> bool:
        return self._places.has_room(self._transport.get_write_buffer_size())

    def _read_or_not(self) -> None:
        """Reads on while there is room, or while a frame that may begin is not whole."""
        if self._ended:
            return
        wanted = not self._stopping and not self._pumping and self._has_room()
        if wanted == self._paused:
            self._paused = not wanted
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    def _begin(self, frame: Frame) -> None:
        request = decode_request(frame)
        if self.door is None:
            self._prove(frame.request_id, request)
            return
        if not self._links.is_present(self._id) or isinstance(request, Prove):
            raise FrameError("it may not be sent now")
        is_login = isinstance(request, Login | LoginWithToken | LoginWithAccessToken | LoginBySetting)
        is_wait = isinstance(request, Command) and request.name == WAIT
        limits = self._parts.limits
        timeout_s = (limits.login_timeout_ms if is_login else limits.request_timeout_ms) / 1000
        timeout_s += WAIT_MAX_MS / 1000 if is_wait else 0
        cost_bytes = frame.size + answer_bytes(request)
        work = Work(frame.request_id, frame.size, cost_bytes, is_login, is_wait, self._loop.time() + timeout_s)
        self._work.add(work)
        self._places.enter(work)
        if self._look_timer is None:
            self._look_timer = self._loop.call_later(LOOK_S, self._look)
        work.task = self._spawn(self._execute(work, request))

    def _prove(self, request_id: int, request: Request) -> None:
        if not isinstance(request, Prove):
            raise FrameError("it proves nothing")
        peer = self._transport.get_extra_info("socket")
        name = self._links.prove(self, peer, request.id, request.key)
        if name is None:
            self.end()
            return
        self._stop_timer()
        self.door, self._id = name, request.id
        self._frames.frame_bytes_max = REQUEST_BYTES_MAX
        door = door_kind(name)
        self.clients = self._clients_of(door)
        self._handler = RequestHandler(door, self.clients, self._parts, self._functions)
        self._write(encode_answer(request_id, Status.OK, 0, _NIL))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _execute(self, work: Work, request: Request) -> None:
        """Never raises for a request: a fault is status 1 and a traceback in the log."""
        STEP_ASIDE.set(partial(self._places.aside, work))
        STAND_BESIDE.set(partial(self._places.beside, work))
        HAND_OVER.set(partial(self._places.handed_over, work))
        try:
            work.client = self._handler.client_of(request)
            host = "" if work.client is None else network_of_host(work.client.host)
            ASKER.set(Asker(work.owner or self.door, host))
            value = await self._handler.handle(request, work.client)
        except ShardError as error:
            _log.debug("a request of %s refused with %d: %s", self.door, error.status, error)
            self._answer(work, error.status, encode_value(str(error)), close=error.close)
        except asyncio.CancelledError:
            if not (work.is_wait and (self._stopping or self._ended)):
                raise
            self._answer(work, Status.OK, encode_value(False))
        except Exception:
            _log.exception("a request of %s failed", self.door)
            self._answer(work, Status.ERROR, _NIL)
        else:
            self._answer(work, Status.OK, value)
        finally:
            self._done(work)

    def _look(self) -> None:
        """What is overdue goes on, keeping its place until it ends, or waits no longer for its turn; its client is
        closed, as a connection would be."""
        now_s = self._loop.time()
        for work in [each for each in self._work if each.due_s <= now_s]:
            self._answer(work, Status.UNAUTHENTICATED if work.is_login else Status.TASK_TIMEOUT, _NIL, close=True)
            if work.waiting is not None:
                work.send_away()
        self._look_timer = self._loop.call_later(LOOK_S, self._look) if self._work and not self._ended else None

    def _answer(self, work: Work, status: Status, value: bytes, *, close: bool = False) -> None:
        if work.answered or self._ended:
            return
        work.answered = True
        self._counters.answered += 1
        closes = close and work.client is not None
        if closes and work.client is not None:
            self.clients.close(work.client)
        self._write(encode_answer(work.request_id, status, CLIENT_CLOSED if closes else 0, value))

    def _done(self, work: Work) -> None:
        self._work.discard(work)
        self._places.leave(work)
        self._look_finished()
        if not self._ended:
            self._pump()

    def _write(self, frame: bytes) -> None:
        self._written_bytes += len(frame)
        self._transport.write(frame)

    def _look_finished(self) -> None:
        if self._stopping and not self._work:
            self.finished.set()

    def notice(self, kind: Kind, value: object) -> bool:
        """Tells the door something unasked. False: it has not read what it was told before; nothing is said then."""
        if self._ended or self.door is None or self._transport.get_write_buffer_size():
            return False
        self._write(encode_frame(0, kind, encode_value(value)))
        return True

    def _client_ended(self, number: int, status: Status) -> None:
        if not self._ended:
            notice = encode_value(ClientEnded(number, status))
            self._write(encode_frame(0, Kind.CLIENT_ENDED, notice))
