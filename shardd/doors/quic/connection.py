"""One connection of a client: requests on streams of their own, answers as they are ready (docs/protocol/quic.md).

Everything that a client makes the door keep has an owner: what may come without asking is `quic.receive_window`; the
rest of a long request, and answers until they are read, have room that all connections share by user. What waits for
the turn of a password has none of it (docs/adr/0122-waiting-holds-nothing.md)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Hashable
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, QuicEvent, StreamDataReceived, StreamReset

from shardd.doors.door import Door, DoorClient
from shardd.doors.expected import Expected, GaveWayError
from shardd.doors.links import WorkerLostError
from shardd.doors.quic.classic import execute, read_request, refusal
from shardd.doors.quic.flow import BoundedQuic
from shardd.doors.quic.kept import Request, Unread
from shardd.doors.quic.options import QuicOptions
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.replies import FRAME_HEAD, frame
from shardd.runtime.crowds import Member, Room, SharedRoom

HANDSHAKE_S: Final = 10.0
REQUESTS_MAX: Final = 16  # of one connection that are with a worker at a time
POLL_BYTES: Final = 8 << 20  # kept free for the answer of a poll until it is there
ANSWER_BYTES: Final = 16 << 10  # and of a question
BYTES_PER_S_MIN: Final = 16 << 10  # of unread answers, beyond `server.slow_reader_timeout`
GRACE_S: Final = 1.0  # what has not come, is not answered, or is not read by then gives way to a user that has less
OWED_SHARE: Final = 4  # of the window: so much is granted at once
_LOGINS: Final = frozenset({Code.LOGIN_USER, Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, Code.LOGOUT_USER})
_PASSWORDS: Final = _LOGINS | {Code.CHANGE_PASSWORD}
"""They wait for the turn of a password, or behind one that does: they have no place, and no bytes, until then."""
_QUESTIONS: Final = frozenset(code for code in Code if code.name.startswith("GET_"))
_EXPECTED_BYTES: Final[dict[int, int]] = {Code.POLL_MESSAGES: POLL_BYTES, **dict.fromkeys(_QUESTIONS, ANSWER_BYTES)}
"""Of answers. All others are short: they count when they are there."""
_LARGE_ANSWERS: Final = frozenset({Code.POLL_MESSAGES, Code.GET_SNAPSHOT})
_LENGTH_BYTES: Final = 4
_log = logging.getLogger(__name__)


class Shared(Protocol):
    """What all connections of the door have together: rooms in bytes, for answers of polls and for all others."""

    door: Door
    options: QuicOptions
    requests: Room
    polls: Room
    storing: SharedRoom
    answers: Room
    snapshots: SharedRoom

    def left(self, connection: ClientConnection) -> None: ...


class ClientConnection(QuicConnectionProtocol):
    """Loop thread only. `host`: what the address of the client, which is validated, is counted as. `cids`: by which
    packets find it."""

    def __init__(self, quic: BoundedQuic, shared: Shared, host: str, address: str) -> None:
        super().__init__(quic)
        self.host = host
        self.cids: set[bytes] = set()
        self._flow = quic
        self._shared, self._address = shared, address
        self._requests: dict[int, Request] = {}
        self._unread: dict[int, Unread] = {}  # by stream
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(REQUESTS_MAX)
        self._logins = asyncio.Lock()  # one after the other, as on every connection
        self._client: asyncio.Task[DoorClient] | None = None
        self._came_at_s = self._moved_at_s = self._pinged_at_s = self._loop.time()
        self._taken = -1
        self._owed = 0  # bytes that are not kept any more, and not granted yet
        self._over = self._gone = self._has_begun = False

    # ---- events ----

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived):
            self._on_data(event.stream_id, event.data, event.end_stream)
        elif isinstance(event, StreamReset):
            self._drop(event.stream_id)
            self._owed += self._flow.drop(event.stream_id)  # also of a stream of which nothing was told yet
            self._quic.reset_stream(event.stream_id, int(Status.INVALID_COMMAND))
        elif isinstance(event, HandshakeCompleted) and self._client is None:
            self._client = asyncio.create_task(self._open())
        elif isinstance(event, ConnectionTerminated):
            self.gone()

    @property
    def is_whole(self) -> bool:
        """Whether its handshake is over."""
        return self._client is not None

    def gone(self) -> None:
        """All it had is given back."""
        if self._gone:
            return
        self._gone = True
        for task in self._tasks:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for stream_id in [*self._requests]:
            self._drop(stream_id)
        for stream_id in [*self._unread]:
            self._has_read(stream_id)
        self._flow.forget()
        if self._client is not None:
            self._client.add_done_callback(self._close_client)
        self._shared.left(self)

    def _close_client(self, opened: asyncio.Task[DoorClient]) -> None:
        if not opened.cancelled() and opened.exception() is None:
            closing = asyncio.create_task(self._shared.door.close_client(opened.result()))
            _closing.add(closing)
            closing.add_done_callback(_closing.discard)

    async def _open(self) -> DoorClient:
        try:
            return await self._shared.door.open_client(self._address, self._ended)
        except (ShardError, WorkerLostError):
            self.end(Status.DISCONNECTED)
            raise

    def _ended(self) -> None:
        """The worker has closed its client: so the connection ends, after what is being answered."""
        self._over = True
        if not self._tasks:
            self.end(Status.DISCONNECTED)

    def end(self, status: Status) -> None:
        """Closes the connection; what was written goes out before."""
        if not self._has_begun:
            self.gone()  # its handshake waits for its first turn: nothing can be told yet
        elif not self._gone:
            self.transmit()
            self.close(error_code=int(status))

    def transmit(self) -> None:
        if self._has_begun and not self._gone:  # before its first datagram the connection has no path
            super().transmit()

    # ---- requests ----

    def _on_data(self, stream_id: int, data: bytes, ended: bool) -> None:
        request = self._requests.get(stream_id)
        if request is None:
            if not self._flow.may_answer(stream_id):  # bytes behind a frame that has its answer, or wants none
                self._owed += self._flow.drop(stream_id)
                return
            request = self._requests[stream_id] = Request(stream_id, self._loop.time(), bytearray())
        request.came += len(data)
        if request.begun:
            return  # bytes behind the frame
        request.data += data
        if not request.end and len(request.data) >= FRAME_HEAD.size:
            self._on_head(request)
        if request.begun:
            return
        if request.end and len(request.data) >= request.end:
            self._begin(request)
        elif ended:
            self._refuse(request, Status.INVALID_COMMAND)
        elif request.end and request.waiting is None:
            request.waiting = self._spawn(self._let_in(request))

    def _on_head(self, request: Request) -> None:
        length, request.code = FRAME_HEAD.unpack_from(request.data)
        client = self._opened()
        status = refusal(length, request.code, logged_in=client is not None and bool(client.handle))
        if status is None:
            request.end = _LENGTH_BYTES + length
        else:
            self._refuse(request, status)

    def _opened(self) -> DoorClient | None:
        client = self._client
        done = client is not None and client.done() and not client.cancelled() and client.exception() is None
        return client.result() if client is not None and done else None

    @property
    def _owner(self) -> Hashable:
        """The user, when it is known."""
        client = self._opened()
        return client.user_id if client is not None and client.handle else self.host

    def _give_way(self) -> None:
        self._loop.call_soon(self.end, Status.DISCONNECTED)  # what goes wrong in it is not the fault of a newcomer

    async def _let_in(self, request: Request) -> None:
        """The rest of a frame, as soon as there is room for it."""
        rest = request.end - len(request.data)
        requests = self._shared.requests
        member = await requests.take(self._owner, self.host, self._give_way, rest, at_work=True)
        if request.begun or self._gone:
            requests.leave(member)
            return
        request.reserved, request.member = rest, member
        requests.works_for(member, GRACE_S)
        self._flow.grant(rest)
        self._flow.grant_stream(request.stream_id, request.end)
        self.transmit()

    def _refuse(self, request: Request, status: Status) -> None:
        """The rest is not asked for."""
        request.begun = True
        self._quic.stop_stream(request.stream_id, int(status))
        self._write(request, frame(status), self._shared.answers, None)

    def _begin(self, request: Request) -> None:
        request.begun = True
        if request.member is not None:
            self._shared.requests.works(request.member)
        stores = (
            request.code == Code.POLL_MESSAGES and request.data[request.end - 1] != 0
        )  # an offset, by its last byte
        self._spawn(self._answer(request, stores))

    def _spawn(self, work: object) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, request: Request, stores: bool) -> None:
        room = self._shared.polls if request.code in _LARGE_ANSWERS else self._shared.answers
        size, closes = _EXPECTED_BYTES.get(request.code, 0), False
        expected = Expected(room, self._give_way)
        places = contextlib.nullcontext() if request.code in _PASSWORDS else self._places
        async with places, self._storing(stores):
            try:
                if size:  # before the turn: whoever waits for room holds up no snapshot of another user
                    await expected.enter(self._owner, self.host, size)
                async with self._turn(request.code), expected.asked(None if stores else GRACE_S):
                    status, payload, closes = await self._executed(request)
                if payload and expected.member is None:
                    await expected.enter(self._owner, self.host, ANSWER_BYTES)
            except GaveWayError:  # the request has stored nothing
                status, payload, expected.member = Status.DISCONNECTED, b"", None
            except WorkerLostError:  # nobody knows whether it was done
                status, payload, closes = None, b"", True
            except BaseException:
                if expected.member is not None:
                    room.leave(expected.member)
                raise
            answer = b"" if status is None else frame(status, payload)
            self._write(request, answer, room, expected.member)
        if closes or self._over:
            self.end(Status.DISCONNECTED)

    def _storing(self, stores: bool) -> AbstractAsyncContextManager[None]:
        """A share of the polls that store: who waits does so here and has no place at a worker."""
        return self._shared.storing.place(self._owner, self.host) if stores else contextlib.nullcontext()

    def _turn(self, code: int) -> AbstractAsyncContextManager[None]:
        """Of a snapshot: of each user one at a time."""
        waits = code == Code.GET_SNAPSHOT
        return self._shared.snapshots.place(self._owner, self.host) if waits else contextlib.nullcontext()

    async def _executed(self, request: Request) -> tuple[Status, bytes, bool]:
        """(status, payload, whether the connection ends)."""
        try:
            assert self._client is not None
            with memoryview(request.data) as data, data[FRAME_HEAD.size : request.end] as payload:
                said = read_request(request.code, payload)
            if request.code in _PASSWORDS:
                self._release(request)
            client = await asyncio.shield(self._client)
            async with self._logins if request.code in _LOGINS else contextlib.nullcontext():
                return Status.OK, await execute(client, request.code, said), False
        except ShardError as error:
            _log.debug("request %d refused with %d: %s", request.code, error.status, error)
            return error.status, b"", error.close
        except WorkerLostError:
            raise
        except Exception:
            _log.exception("request %d failed", request.code)
            return Status.ERROR, b"", False

    def _write(self, request: Request, answer: bytes, room: Room, member: Member | None) -> None:
        """`member`: the room that was kept free for the answer; until it is read, what the answer has."""
        self._drop(request.stream_id)
        if self._gone or not answer or not self._flow.may_answer(request.stream_id):
            if member is not None:
                room.leave(member)
            return
        now_s = self._loop.time()
        if not self._unread:
            self._moved_at_s = now_s
        unread = len(answer) + sum(each.size for each in self._unread.values())
        due_s = now_s + self._shared.options.server.slow_reader_timeout_ms / 1000 + unread / BYTES_PER_S_MIN
        for each in self._unread.values():  # streams are served in turns: those before it end so much later
            each.due_s += len(answer) / BYTES_PER_S_MIN
        self._unread[request.stream_id] = Unread(len(answer), due_s, room, member)
        if member is not None:
            room.resize(member, len(answer))
            room.works_for(member, GRACE_S)
        self._quic.send_stream_data(request.stream_id, answer, end_stream=True)
        self._transmit_soon()

    def _drop(self, stream_id: int) -> None:
        if (request := self._requests.pop(stream_id, None)) is not None:
            request.begun = True
            self._release(request)

    def _release(self, request: Request) -> None:
        """Its bytes are not kept any more: the client may send as many again. Room that was asked for and not used
        cannot be taken back: so whoever gives a long request up half-way loses the connection."""
        if request.is_released:
            return
        request.data, request.is_released = bytearray(), True
        self._owed += self._flow.drop(request.stream_id, request.came) - request.reserved
        if request.member is not None:
            self._shared.requests.leave(request.member)
            request.reserved, request.member = 0, None
        self._grant_owed()

    def _grant_owed(self) -> None:
        """What came behind a frame, or of a request that was refused, is dropped and granted again, too."""
        self._owed += self._flow.take_freed()
        if self._owed < 0:
            self.end(Status.INVALID_COMMAND)
        elif self._owed * OWED_SHARE >= self._shared.options.quic.receive_window_bytes:
            self._flow.grant(self._owed)
            self._owed = 0
            if not self._gone:
                self._transmit_soon()

    # ---- time ----

    def datagram_received(self, data: bytes | str, addr: tuple[str, int]) -> None:
        self._has_begun = True
        super().datagram_received(data, addr)
        self._look_read()
        self._grant_owed()

    def _look_read(self) -> None:
        """Gives room back for answers that the client has."""
        taken = 0
        for stream_id in [*self._unread]:
            read = self._flow.taken_bytes(stream_id)
            if read is None:
                self._has_read(stream_id)
                self._moved_at_s = self._loop.time()
            else:
                taken += read
        if taken != self._taken:
            self._taken, self._moved_at_s = taken, self._loop.time()

    def _has_read(self, stream_id: int) -> None:
        unread = self._unread.pop(stream_id)
        if unread.member is not None:
            unread.room.leave(unread.member)

    def look(self, now_s: float) -> None:
        """Every second: who takes too long is closed, who is silent is asked."""
        if self._gone:
            return
        overdue = any(now_s >= each.due_s for each in self._unread.values())
        limits, quic = self._shared.options.server, self._shared.options.quic
        if self._client is None and now_s - self._came_at_s >= HANDSHAKE_S:
            self.end(Status.DISCONNECTED)
        oldest_s = min((each.came_at_s for each in self._requests.values() if not each.begun), default=now_s)
        if now_s - oldest_s >= limits.partial_frame_timeout_ms / 1000:
            self.end(Status.INVALID_COMMAND)
        elif overdue or (self._unread and now_s - self._moved_at_s >= limits.slow_reader_timeout_ms / 1000):
            self.end(Status.DISCONNECTED)
        elif self._client is not None and now_s - self._pinged_at_s >= quic.keep_alive_interval_ms / 1000 > 0:
            self._pinged_at_s = now_s
            self._quic.send_ping(0)
            self.transmit()


_closing: Final[set[asyncio.Task[None]]] = set()
