"""A partition as server-sent events: each message as it comes (docs/protocol/http.md#events)."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from shardd.doors.asgi import PEER, Peer, Receive, Scope, Send
from shardd.doors.http.consumer_routes import consumer_of
from shardd.doors.http.endpoint import Call, Endpoint
from shardd.doors.http.errors import NotAuthenticatedError, RejectedError
from shardd.doors.http.message_shapes import POLLING, polled_messages
from shardd.doors.http.polls import Place as HeldPlace
from shardd.doors.http.shapes import U32, U64
from shardd.doors.http.stream_routes import TOPIC
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import PollingKind

EVENTS: Final = "text/event-stream"
_MESSAGES: Final = 64  # of one poll
_WAIT_S: Final = 5.0  # of one request to the worker, which goes on for so long when the client has left
_PAUSE_FIRST_S: Final = 0.02
_PAUSE_MAX_S: Final = 1.0
_ALIVE_S: Final = 15.0
_OFFSET_MAX: Final = (1 << 64) - 1
_EVENT_ID: Final = re.compile(r"(?:(\d{1,20})-(?:(\d{1,20})-)?)?(-1|\d{1,20})", re.ASCII)


class EventQuery(msgspec.Struct, frozen=True):
    """Where it begins, unless `Last-Event-ID` says behind which offset: with `offset` (at `value`), `first` or `last`
    (the newest message)."""

    partition_id: U32 = 0
    kind: str = "last"
    value: U64 = 0


class Place:
    """Where a stream goes on. `history`: the incarnation to which `at` belongs, 0: that of the next poll. `is_kept`:
    the client has had what is before `at`, so it is told when messages from there on are gone. `is_void`: another
    message is in front of it than the client has had."""

    def __init__(self, at: int, *, history: int = 0, is_kept: bool = False) -> None:
        self.at, self.history, self.is_kept, self.is_void = at, history, is_kept, False

    def compare(self, polled: Any, checksum: int) -> None:
        """`polled`: from the message on that the client has had last. A data directory that is put back as files has
        the histories it had (docs/adr/0140-marks-of-a-history.md)."""
        if polled["count"] and polled["incarnation"] == self.history:
            header = next(iter(polled_messages(polled["records"], 1))).header
            self.is_void = header.offset == self.at - 1 and header.checksum != checksum

    def reset(self, polled: Any) -> bytes | None:
        """The event that says that the client misses messages, or that those it had are of another history. The place
        moves to the oldest message there is."""
        here, at, first = self.history, self.at, polled["first_offset"]
        self.history = polled["incarnation"]
        put_back = here == self.history and self.is_kept and (self.is_void or at > polled["end"])
        if put_back or here not in (0, self.history) or (self.is_kept and at > polled["end"]):
            self.at = first
            polled["count"] = 0
        elif self.is_kept and at < first and (not polled["count"] or _first_of(polled) > at):
            self.at = _first_of(polled) if polled["count"] else first
        else:
            if not self.is_kept and not polled["count"]:
                self.at = max(at, first)
            self.is_kept = True
            return None
        self.is_kept, self.is_void = True, False
        histories = {"incarnation": self.history, "before": here or self.history}
        told = {"expected": at, "offset": self.at, **histories, "put_back": put_back}
        return b"event: reset\nid: %d-%d\ndata: %b\n\n" % (self.history, self.at - 1, msgspec.json.encode(told))


def _first_of(polled: Any) -> int:
    offset: int = next(iter(polled_messages(polled["records"], 1))).header.offset
    return offset


class EventResponse(Response):
    """Until its client leaves, or has to give way."""

    def __init__(self, call: Call, first: Any, place: Place, held: HeldPlace) -> None:
        self._held = held
        headers = {"cache-control": "no-store"}
        self._answer = StreamingResponse(_events(call, first, place), media_type=EVENTS, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer: Peer = scope[PEER]
        try:
            with peer.holding():
                await self._answer(scope, receive, send)
        finally:
            self._held.leave()


async def follow(call: Call) -> Response:
    """What is wrong is answered before the stream begins."""
    said: EventQuery = call.query
    last = _EVENT_ID.fullmatch(call.request.headers.get("last-event-id", "") or "-1")
    if said.kind not in ("offset", "first", "last") or last is None:
        raise RejectedError(
            400, "Failed to deserialize query string: offset, first or last; Last-Event-ID: an id of an event"
        )
    kind, value = POLLING[said.kind], said.value
    place = Place(value if kind is PollingKind.OFFSET else 0)
    if last[0] != "-1":
        kind, value = PollingKind.OFFSET, min(int(last[3]) + 1, _OFFSET_MAX)
        place = Place(value, history=int(last[1] or 0), is_kept=True)
    held = call.polls.follow(call.owner, call.host, call.peer)
    try:
        if last[2]:
            await _compare(call, place, int(last[2]))
        return EventResponse(call, await _poll(call, kind, value), place, held)
    except BaseException:
        held.leave()
        raise


async def _compare(call: Call, place: Place, checksum: int) -> None:
    try:
        place.compare(await _poll(call, PollingKind.OFFSET, max(0, place.at - 1), 1), checksum)
    except ShardError as error:
        if error.status not in (Status.INVALID_MESSAGE_CHECKSUM, Status.CANNOT_READ_FILE):
            raise  # a message that cannot be read says nothing of the others


async def _poll(call: Call, kind: PollingKind, value: int, count: int = _MESSAGES) -> Any:
    return await call.command(
        "poll_messages",
        {
            "consumer": consumer_of(0),
            **call.topic,
            "partition": call.query.partition_id,
            "strategy": int(kind),
            "value": value,
            "count": 1 if kind is PollingKind.LAST else count,
            "auto_commit": False,
        },
    )


async def _wait(call: Call, at: int) -> bool:
    """For a message at `at` or behind it, for a while. False: too many wait, whoever asks polls after a pause."""
    place = {**call.topic, "partition": call.query.partition_id}
    try:
        await call.command("wait_for_messages", {**place, "offset": at, "timeout_ms": int(_WAIT_S * 1000)})
    except ShardError as error:
        if error.status not in (Status.FEATURE_UNAVAILABLE, Status.SHARD_COMMUNICATION_ERROR):
            raise
        return False
    return True


async def _events(call: Call, polled: Any, place: Place) -> AsyncIterator[bytes]:
    """`place`: where it goes on when nothing was found. Ends with the token, and with what is followed: the client
    comes back, and hears why."""
    pause_s, alive_s = _PAUSE_FIRST_S, time.monotonic()
    yield b": follows\n\n"
    while True:
        told = place.reset(polled)
        if told is not None:
            yield told
        for message in polled_messages(polled["records"], polled["count"]):
            place.at, pause_s, alive_s = message.header.offset + 1, _PAUSE_FIRST_S, time.monotonic()
            mark = place.history, message.header.checksum, message.header.offset
            yield b"id: %d-%d-%d\ndata: %b\n\n" % (*mark, msgspec.json.encode(message))
        if time.monotonic() - alive_s >= _ALIVE_S:
            alive_s = time.monotonic()
            yield b": nothing new\n\n"
        try:
            if not polled["count"] and told is None and not await _wait(call, place.at):
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)
            polled = await _poll(call, PollingKind.OFFSET, place.at)
        except (NotAuthenticatedError, ShardError, WorkerLostError):
            return


ENDPOINTS: Final = (
    Endpoint(
        "GET", f"{TOPIC}/events", follow, "Follow a partition as server-sent events", query=EventQuery, media=EVENTS
    ),
)
