"""The stream `__activity`: one ActivityStreamEvent for each change of streams and groups, in their order, at least
once. Ids are those of metadata records; the last one that is written is found at the end of the log."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from shardd.doors.door import Door
from shardd.doors.liftbridge.internal import InternalLog
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge.api_messages import (
    ActivityStreamEvent,
    CreateStreamOp,
    DeleteStreamOp,
    JoinConsumerGroupOp,
    LeaveConsumerGroupOp,
    PauseStreamOp,
    ResumeStreamOp,
    SetStreamReadonlyOp,
)
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
                self._written = ActivityStreamEvent.FromString(newest.value).id
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
    described = _described(event)
    described.id, described.op = event.id, int(event.op)
    return described.SerializeToString()


def _described(event: Event) -> ActivityStreamEvent:
    """What has happened, without id and kind."""
    stream, partitions = event.stream, sorted(event.partitions)
    match event.op:
        case ActivityOp.CREATE_STREAM:
            return ActivityStreamEvent(createStreamOp=CreateStreamOp(stream=stream, partitions=partitions))
        case ActivityOp.DELETE_STREAM:
            return ActivityStreamEvent(deleteStreamOp=DeleteStreamOp(stream=stream))
        case ActivityOp.PAUSE_STREAM:
            paused = PauseStreamOp(stream=stream, partitions=partitions, resumeAll=event.flag)
            return ActivityStreamEvent(pauseStreamOp=paused)
        case ActivityOp.RESUME_STREAM:
            return ActivityStreamEvent(resumeStreamOp=ResumeStreamOp(stream=stream, partitions=partitions))
        case ActivityOp.SET_STREAM_READONLY:
            changed = SetStreamReadonlyOp(stream=stream, partitions=partitions, readonly=event.flag)
            return ActivityStreamEvent(setStreamReadonlyOp=changed)
        case ActivityOp.JOIN_CONSUMER_GROUP:
            joined = JoinConsumerGroupOp(groupId=event.group, consumerId=event.consumer, streams=event.names)
            return ActivityStreamEvent(joinConsumerGroupOp=joined)
        case ActivityOp.LEAVE_CONSUMER_GROUP:
            left = LeaveConsumerGroupOp(groupId=event.group, consumerId=event.consumer, expired=event.flag)
            return ActivityStreamEvent(leaveConsumerGroupOp=left)
