"""Room for polls and places for streams of events: an answer is in memory until its client has taken it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable
from typing import Final

from starlette.responses import Response, StreamingResponse

from shardd.doors.asgi import PEER, Peer, Receive, Scope, Send
from shardd.doors.expected import Expected, GaveWayError
from shardd.doors.http.errors import RejectedError
from shardd.doors.taking import BYTES_PER_S_MIN
from shardd.runtime.crowds import FullError, Member, Room, SharedRoom

POLL_BYTES: Final = 8 << 20  # of one until its answer is there, then what the answer has
POLLS_BYTES_MAX: Final = 128 << 20
POLLS_OF_ADDRESS_BYTES_MAX: Final = 64 << 20  # here and below: of one user
# With workers at a time, of a user one: further requests wait here, without a place at a worker. A worker that does not
# answer keeps those of one user.
SNAPSHOTS_MAX: Final = 3
STORING_POLLS_MAX: Final = 12  # that store offsets, and are with a worker: they keep their room until it answers
WAIT_S: Final = 30.0  # for room
STREAMS_MAX: Final = 64  # of events at a time: each holds up to 8 MiB of records
STREAMS_OF_ADDRESS_MAX: Final = 16
SEND_S: Final = 60.0  # for a whole answer, and a second for each 16 KiB of it: one that keeps coming is not silence
GRACE_S: Final = 1.0  # for the worker's answer, and for the client to take it: then a user that has less has the room


class Place:
    """Of a poll or a stream of events."""

    def __init__(self, room: Room, member: Member) -> None:
        self._room = room
        self._member = member

    def resize(self, size: int) -> None:
        self._room.resize(self._member, max(size, 1))

    def is_answered(self) -> None:
        """The client has a moment to take it: then a user that has less may have the room."""
        self._room.works_for(self._member, GRACE_S)

    def leave(self) -> None:
        self._room.leave(self._member)


class Polls:
    """Loop thread only. `peer`: its connection ends when the room of an answer, or the place of a stream, goes to a
    user that has less."""

    def __init__(self) -> None:
        self._polls = Room(POLLS_BYTES_MAX, POLLS_OF_ADDRESS_BYTES_MAX)
        self._storing = SharedRoom(STORING_POLLS_MAX, of_addresses=False)
        self._streams = Room(STREAMS_MAX, STREAMS_OF_ADDRESS_MAX)
        self.snapshots = SharedRoom(SNAPSHOTS_MAX, of_addresses=False)

    @contextlib.asynccontextmanager
    async def expect(self, owner: Hashable, host: str, peer: Peer, *, stores: bool) -> AsyncIterator[Place]:
        """Around the question to a worker: room for the answer of a poll, which it has until it leaves. `stores`: an
        offset, before the answer is there. RejectedError 503: no room comes, or it has given way."""
        expected = Expected(self._polls, peer.abort)
        async with contextlib.AsyncExitStack() as held:
            try:
                async with asyncio.timeout(WAIT_S):
                    if stores:
                        await held.enter_async_context(self._storing.place(owner, host))
                    await expected.enter(owner, host, POLL_BYTES)
            except TimeoutError:
                raise _too_many() from None
            assert expected.member is not None
            place = Place(self._polls, expected.member)
            try:
                async with expected.asked(None if stores else GRACE_S):
                    yield place
            except GaveWayError:
                raise _too_many() from None
            except BaseException:
                place.leave()
                raise

    def follow(self, owner: Hashable, host: str, peer: Peer) -> Place:
        """Of a stream of events. RejectedError 503."""
        try:
            return Place(self._streams, self._streams.enter(owner, host, peer.abort))
        except FullError:
            raise RejectedError(503, "Too many streams of events at a time") from None


class HeldResponse(Response):
    """An answer of so many bytes that has its room until it is taken, or until it has had time enough."""

    def __init__(self, answer: Response, size: int, place: Place) -> None:
        self._answer = answer
        self._place = place
        self._whole_s = SEND_S + size / BYTES_PER_S_MIN
        place.resize(size)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer: Peer = scope[PEER]
        self._place.is_answered()
        try:
            with peer.holding():
                async with asyncio.timeout(self._whole_s):
                    await self._answer(scope, receive, send)
                    await peer.taken()
        except TimeoutError:
            peer.abort()
            raise
        finally:
            self._place.leave()
            self._forget()

    def _forget(self) -> None:
        """What is not written goes at once, whatever still refers to the answer: over TLS the collector alone would
        find it."""
        answer, self._answer = self._answer, Response()
        answer.body = b""
        if isinstance(answer, StreamingResponse):
            answer.body_iterator = _nothing()


def _too_many() -> RejectedError:
    return RejectedError(503, "Too many polls at a time", again=True)


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""
