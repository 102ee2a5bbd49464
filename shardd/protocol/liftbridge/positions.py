"""Where a subscription starts and stops (docs/adr/0080-liftbridge.md): what a request says, in offsets of the log as it
was when the request came."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Final

import msgspec

NO_STOP: Final = -1
NS_PER_US: Final = 1_000
TIMESTAMP_BEFORE_LOG: Final = "Failed to lookup offset for timestamp: timestamp is before the beginning of the log"
TIMESTAMP_EMPTY_LOG: Final = "Failed to lookup offset for timestamp: failed to find log segment for timestamp: EOF"


class StartPosition(IntEnum):
    """`proto.StartPosition`."""

    NEW_ONLY = 0
    OFFSET = 1
    EARLIEST = 2
    LATEST = 3
    TIMESTAMP = 4


class StopPosition(IntEnum):
    """`proto.StopPosition`."""

    STOP_ON_CANCEL = 0
    STOP_OFFSET = 1
    STOP_LATEST = 2
    STOP_TIMESTAMP = 3


class Code(Enum):
    """Names of gRPC's status codes."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    INTERNAL = "INTERNAL"


class PositionError(Exception):
    """No subscription: the status that its call ends with."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


class Log(msgspec.Struct, frozen=True):
    """A partition. `oldest`, `newest`: offsets, -1 while it is empty."""

    oldest: int
    newest: int
    readonly: bool = False


class Asked(msgspec.Struct, frozen=True):
    """The positions of a SubscribeRequest. Numbers that no position has are kept, to be refused."""

    start: int = StartPosition.NEW_ONLY
    start_offset: int = 0
    start_timestamp_ns: int = 0
    stop: int = StopPosition.STOP_ON_CANCEL
    stop_offset: int = 0
    stop_timestamp_ns: int = 0


class Span(msgspec.Struct, frozen=True):
    """From `start` on, through `stop`. NO_STOP: until it is cancelled. `ends_readonly`: nothing is left to read of a
    partition that takes nothing more, so it ends with `End of readonly partition` and not at its stop."""

    start: int
    stop: int = NO_STOP
    ends_readonly: bool = False


def start_timestamp_us(timestamp_ns: int) -> int:
    """The first stored time that is not before `timestamp_ns`: the log has microseconds."""
    return max(0, -(-timestamp_ns // NS_PER_US))


def stop_timestamp_us(timestamp_ns: int) -> int:
    """The last stored time that is not after `timestamp_ns`. Negative: before every message."""
    return timestamp_ns // NS_PER_US


def span_of(asked: Asked, log: Log, first_from: Callable[[int], int | None]) -> Span:
    """`first_from(us)`: the offset of the first message that is not older, None where there is none; it is asked for
    timestamps only. PositionError."""
    start = _start_of(asked, log, first_from)
    stop = _stop_of(asked, log, first_from)
    if log.readonly and log.newest < 0:
        return Span(0, ends_readonly=True)
    if stop != NO_STOP and stop < start:
        raise PositionError(Code.INVALID_ARGUMENT, f"Stop offset is before start offset: {stop} < {start}")
    if start > log.newest:  # what comes next, whatever its offset
        start = log.newest + 1
    if log.readonly and (stop == NO_STOP or stop > log.newest):
        return Span(start, log.newest, ends_readonly=True)
    return Span(start, stop)


def _start_of(asked: Asked, log: Log, first_from: Callable[[int], int | None]) -> int:
    """Not before the oldest; an offset behind the end stays as it was asked for, since a stop is compared with it."""
    if asked.start == StartPosition.NEW_ONLY:
        start = log.newest + 1
    elif asked.start == StartPosition.OFFSET:
        start = asked.start_offset
    elif asked.start == StartPosition.EARLIEST:
        start = log.oldest
    elif asked.start == StartPosition.LATEST:
        start = log.newest
    elif asked.start == StartPosition.TIMESTAMP:
        found = None if log.newest < 0 else first_from(start_timestamp_us(asked.start_timestamp_ns))
        start = log.newest + 1 if found is None else found
    else:
        raise PositionError(Code.INVALID_ARGUMENT, f"Unknown StartPosition {asked.start}")
    return max(start, log.oldest, 0)


def _stop_of(asked: Asked, log: Log, first_from: Callable[[int], int | None]) -> int:
    if asked.stop == StopPosition.STOP_ON_CANCEL:
        return log.newest if log.readonly else NO_STOP
    if asked.stop == StopPosition.STOP_OFFSET:
        return asked.stop_offset
    if asked.stop == StopPosition.STOP_LATEST:
        if log.newest < 0:
            raise PositionError(Code.RESOURCE_EXHAUSTED, "Stream is empty")
        return log.newest
    if asked.stop == StopPosition.STOP_TIMESTAMP:
        return _last_until(stop_timestamp_us(asked.stop_timestamp_ns), log, first_from)
    raise PositionError(Code.INVALID_ARGUMENT, f"Unknown StopPosition {asked.stop}")


def _last_until(timestamp_us: int, log: Log, first_from: Callable[[int], int | None]) -> int:
    """The last offset that is not newer: the one before the first that is."""
    if log.newest < 0:
        raise PositionError(Code.INTERNAL, TIMESTAMP_EMPTY_LOG)
    after = first_from(max(0, timestamp_us + 1))
    last = log.newest if after is None else after - 1
    if last < log.oldest:
        raise PositionError(Code.INTERNAL, TIMESTAMP_BEFORE_LOG)
    return last
