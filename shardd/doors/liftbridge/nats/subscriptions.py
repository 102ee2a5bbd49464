"""The subscriptions at a NATS server that bring all messages of all streams: one for each pair of a subject of a
partition and a queue group, shared by all streams with that pair. A stream with many partitions and no group has one
subscription for all partitions but the first; the door ignores messages on other subjects that come there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from shardd.doors.liftbridge.router import partition_number, partition_subject
from shardd.protocol.liftbridge.requests import StreamInfo

SUBSCRIPTIONS_MAX: Final = 65_536
APART_MAX: Final = 8  # partitions that have a subscription each, in a stream without a group
ALL_BUT_FIRST: Final = -1
_STEP: Final = 1_000


class Wanted(NamedTuple):
    """Of streams on `subject` with this queue group: `partition`, or ALL_BUT_FIRST."""

    subject: str
    group: str
    partition: int

    @property
    def pattern(self) -> str:
        """What is subscribed to."""
        if self.partition == ALL_BUT_FIRST:
            return f"{self.subject}.*"
        return partition_subject(self.subject, self.partition)

    def partition_of(self, subject: str) -> int | None:
        """The partition that a message on this subject is for; None: for none."""
        if self.partition != ALL_BUT_FIRST:
            return self.partition
        return partition_number(subject.rpartition(".")[2]) or None


class AllWanted:
    """`wanted`: found so far; `left_out`: partitions without one, there are too many."""

    def __init__(self) -> None:
        self.wanted: set[Wanted] = set()
        self.left_out = 0

    def finding(self, streams: Iterable[StreamInfo]) -> Iterator[None]:
        """In short steps. A partition that is paused does not listen, so that others of its group may."""
        count = 0
        for stream in streams:
            for each in _of(stream):
                if each in self.wanted or len(self.wanted) < SUBSCRIPTIONS_MAX:
                    self.wanted.add(each)
                else:
                    self.left_out += 1
                count += 1
                if count % _STEP == 0:
                    yield
            yield


def _of(stream: StreamInfo) -> Iterator[Wanted]:
    paused = frozenset(stream.paused)
    if not stream.group and stream.partitions > APART_MAX:
        if 0 not in paused:
            yield Wanted(stream.subject, "", 0)
        if len(paused - {0}) < stream.partitions - 1:
            yield Wanted(stream.subject, "", ALL_BUT_FIRST)
        return
    for partition in range(stream.partitions):
        if partition not in paused:
            yield Wanted(stream.subject, stream.group, partition)
