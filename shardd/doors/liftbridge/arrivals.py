"""What is known of messages as they are stored through this door: who waits for them is woken, and how long a partition
has got nothing is counted from here."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from shardd.doors.liftbridge.followers import Followers
from shardd.doors.liftbridge.partitions import Key
from shardd.protocol.liftbridge.requests import EventTimes, StreamInfo

REMEMBERED_MAX: Final = 131_072  # partitions with times


class _Arrived(msgspec.Struct):
    first_ns: int
    latest_ns: int
    at_s: float
    end: int


class Arrivals:
    """Loop thread only."""

    def __init__(self, followers: Followers) -> None:
        self._followers = followers
        self._of: dict[Key, _Arrived] = {}

    def stored(self, stream: StreamInfo, partition: int, end: int, timestamp_ns: int) -> None:
        """Messages below `end` are there; the newest has this time."""
        self._followers.advanced(stream, partition, end)
        key = (stream.incarnation, partition)
        known = self._of.get(key)
        if known is not None:
            known.latest_ns, known.at_s, known.end = timestamp_ns, time.monotonic(), max(known.end, end)
        elif len(self._of) < REMEMBERED_MAX:
            self._of[key] = _Arrived(timestamp_ns, timestamp_ns, time.monotonic(), end)

    def times(self, stream: StreamInfo, partition: int) -> EventTimes:
        """Since the start of this door."""
        known = self._of.get((stream.incarnation, partition))
        return EventTimes() if known is None else EventTimes(known.first_ns, known.latest_ns)

    def latest_s(self, stream: StreamInfo, partition: int) -> float:
        """Of the monotonic clock; 0: nothing has come."""
        known = self._of.get((stream.incarnation, partition))
        return 0.0 if known is None else known.at_s

    def end(self, stream: StreamInfo, partition: int) -> int:
        """Behind the newest of these messages; 0: nothing has come."""
        known = self._of.get((stream.incarnation, partition))
        return 0 if known is None else known.end

    def forget(self, current: set[int]) -> None:
        """Streams that are gone: those that are there have one of these incarnations."""
        for key in [each for each in self._of if each[0] not in current]:
            del self._of[key]
