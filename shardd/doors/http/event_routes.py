"""A partition as server-sent events: each message as it comes (docs/protocol/http.md#events)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from shardd.doors.asgi import Receive, Scope, Send
from shardd.doors.http.consumer_routes import consumer_of
from shardd.doors.http.endpoint import Call, Endpoint
from shardd.doors.http.errors import NotAuthenticatedError, RejectedError
from shardd.doors.http.message_shapes import POLLING, polled_messages
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


class EventQuery(msgspec.Struct, frozen=True):
    """Where it begins, unless `Last-Event-ID` says behind which offset: with `offset` (at `value`), `first` or `last`
    (the newest message)."""

    partition_id: U32 = 0
    kind: str = "last"
    value: U64 = 0


class EventResponse(Response):
    """Until its client leaves."""

    def __init__(self, call: Call, first: Any, at: int) -> None:
        self._call = call
        headers = {"cache-control": "no-store"}
        self._answer = StreamingResponse(_events(call, first, at), media_type=EVENTS, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        finally:
            self._call.polls.streams.leave(self._call.host)


async def follow(call: Call) -> Response:
    """What is wrong is answered before the stream begins."""
    said: EventQuery = call.query
    last = call.request.headers.get("last-event-id", "")
    if said.kind not in ("offset", "first", "last") or not (last == "" or (last.isascii() and last.isdecimal())):
        raise RejectedError(400, "Failed to deserialize query string: offset, first or last; Last-Event-ID: an offset")
    kind, value = (PollingKind.OFFSET, int(last[:20]) + 1) if last else (POLLING[said.kind], said.value)
    call.polls.streams.enter(call.host)
    try:
        at = value if kind is PollingKind.OFFSET else 0
        return EventResponse(call, await _poll(call, kind, value), at)
    except BaseException:
        call.polls.streams.leave(call.host)
        raise


async def _poll(call: Call, kind: PollingKind, value: int) -> Any:
    return await call.command(
        "poll_messages",
        {
            "consumer": consumer_of(0),
            **call.topic,
            "partition": call.query.partition_id,
            "strategy": int(kind),
            "value": value,
            "count": 1 if kind is PollingKind.LAST else _MESSAGES,
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


async def _events(call: Call, polled: Any, at: int) -> AsyncIterator[bytes]:
    """`at`: where it goes on when nothing was found. Ends with the token, and with what is followed: the client comes
    back, and hears why."""
    pause_s, alive_s = _PAUSE_FIRST_S, time.monotonic()
    yield b": follows\n\n"
    while True:
        for message in polled_messages(polled["records"], polled["count"]):
            at, pause_s, alive_s = message.header.offset + 1, _PAUSE_FIRST_S, time.monotonic()
            yield b"id: %d\ndata: %b\n\n" % (message.header.offset, msgspec.json.encode(message))
        if time.monotonic() - alive_s >= _ALIVE_S:
            alive_s = time.monotonic()
            yield b": nothing new\n\n"
        try:
            if not polled["count"] and not await _wait(call, at):
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)
            polled = await _poll(call, PollingKind.OFFSET, at)
        except (NotAuthenticatedError, ShardError, WorkerLostError):
            return


ENDPOINTS: Final = (
    Endpoint(
        "GET", f"{TOPIC}/events", follow, "Follow a partition as server-sent events", query=EventQuery, media=EVENTS
    ),
)
