"""The stream `__activity`: one ActivityStreamEvent for each change of streams and groups, in their order, at least
once. Ids are those of metadata records; the last one that is written is found at the end of the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError

from shardd.doors.door import Door
from shardd.doors.liftbridge.internal import InternalLog
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge import api
from shardd.protocol.liftbridge.records import LiftbridgeMessage
from shardd.protocol.liftbridge.requests import ActivityOp, Event, Events

STREAM: Final = "__activity"
_BACK_OFF_S: Final = (1.0, 2.0, 4.0, 8.0, 10.0)
_BATCH: Final = 128
_log = logging.getLogger(__name__)


class Activity:
    """Loop thread only."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._log = InternalLog(door, STREAM, 0)
        self._written = 0  # the id of the last event
        self._noticed = asyncio.Event()

    async def load(self) -> None:
        """ShardError, WorkerLostError."""
        newest = await self._log.last()
        if newest is not None:
            try:
                self._written = api.message_class("ActivityStreamEvent").FromString(newest.value).id
            except DecodeError:
                _log.error("the last record of %s is no event: all that is known is written again", STREAM)
        self._noticed.set()

    def notice(self) -> None:
        """A worker has a newer record."""
        self._noticed.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        failures = 0
        while True:
            await self._noticed.wait()
            self._noticed.clear()
            try:
                while await self._write_some():
                    failures = 0
            except (ShardError, WorkerLostError) as error:
                _log.log(logging.WARNING if failures else logging.DEBUG, "events are written later: %s", error)
                self._noticed.set()
                await asyncio.sleep(_BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)])
                failures += 1

    async def _write_some(self) -> bool:
        """Whether there was something."""
        said = await self._door.task("events", Events(self._written))
        events = _some_of(msgspec.convert(said, list[Event], strict=False))
        if events:
            await self._log.append([LiftbridgeMessage(encoded(event)) for event in events])
            self._written = events[-1].id
        return bool(events)


def _some_of(events: list[Event]) -> list[Event]:
    """The first ones, with all that have the id of the last: one append takes all of a record or nothing, as after a
    death only the id of the newest says what is written."""
    end = min(_BATCH, len(events))
    while 0 < end < len(events) and events[end].id == events[end - 1].id:
        end += 1
    return events[:end]


def encoded(event: Event) -> bytes:
    """An ActivityStreamEvent."""
    described = api.message_class("ActivityStreamEvent")(id=event.id, op=int(event.op))
    operation: Any = getattr(described, _FIELDS[event.op])
    operation.SetInParent()
    if event.op in (ActivityOp.JOIN_CONSUMER_GROUP, ActivityOp.LEAVE_CONSUMER_GROUP):
        operation.groupId, operation.consumerId = event.group, event.consumer
    else:
        operation.stream = event.stream
    if event.op is ActivityOp.JOIN_CONSUMER_GROUP:
        operation.streams.extend(event.names)
    elif event.op is ActivityOp.LEAVE_CONSUMER_GROUP:
        operation.expired = event.flag
    elif event.op is not ActivityOp.DELETE_STREAM:
        operation.partitions.extend(_ids(event.partitions))
    if event.op is ActivityOp.PAUSE_STREAM:
        operation.resumeAll = event.flag
    elif event.op is ActivityOp.SET_STREAM_READONLY:
        operation.readonly = event.flag
    return bytes(described.SerializeToString())


def _ids(partitions: Iterable[int]) -> list[int]:
    return sorted(partitions)


_FIELDS: Final = {
    ActivityOp.CREATE_STREAM: "createStreamOp",
    ActivityOp.DELETE_STREAM: "deleteStreamOp",
    ActivityOp.PAUSE_STREAM: "pauseStreamOp",
    ActivityOp.RESUME_STREAM: "resumeStreamOp",
    ActivityOp.SET_STREAM_READONLY: "setStreamReadonlyOp",
    ActivityOp.JOIN_CONSUMER_GROUP: "joinConsumerGroupOp",
    ActivityOp.LEAVE_CONSUMER_GROUP: "leaveConsumerGroupOp",
}
