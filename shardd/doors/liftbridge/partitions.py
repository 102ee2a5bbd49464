"""What the door asks about partitions in the name of a client: where they begin and end, and their records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from shardd.doors.liftbridge.calls import Call
from shardd.protocol.bounds import TOPICS_MAX
from shardd.protocol.liftbridge.positions import Log
from shardd.protocol.liftbridge.requests import StreamInfo
from shardd.protocol.primitives import ConsumerKind, PollingKind
from shardd.protocol.record_layout import OFFSET_AT, RECORD_HEAD, TIMESTAMP_AT
from shardd.runtime.crowds import SharedRoom

PARTITIONS_OF_REQUEST: Final = 1_000
# At a time; a user has at most as many as are left: a worker that does not answer keeps the others. With their shares
# all users together have 4 and 2. A worker keeps 8 MiB free for a poll and 16 MiB for bounds, of 64 MiB, and publishes
# go through the same connection.
POLLS_MAX: Final = 5
BOUNDS_MAX: Final = 3
_CONSUMER: Final = {"kind": int(ConsumerKind.CONSUMER), "identifier": 0}
_NUMBER_BYTES: Final = 8


class Bounds(msgspec.Struct, frozen=True):
    """Offsets [first, end) are there. `history`: a purge begins another one; 0: not known."""

    first: int
    end: int
    history: int = 0

    @property
    def newest(self) -> int:
        """-1: nothing is there."""
        return self.end - 1 if self.end > self.first else -1

    def log(self, *, readonly: bool) -> Log:
        return Log(self.first if self.newest >= 0 else -1, self.newest, readonly)


class Polled(msgspec.Struct, frozen=True):
    """`records`: `count` of them as they are stored, of a history with the offsets [first, end)."""

    count: int
    records: bytes
    history: int = 0
    first: int = 0
    end: int = 0


Wanted = tuple[StreamInfo, tuple[int, ...]]
"""Partitions of a stream."""
Key = tuple[int, int]
"""Incarnation of a stream, partition."""


class Partitions:
    """Loop thread only. Users have shares and take turns, and within a user its addresses."""

    def __init__(self) -> None:
        self._polls = SharedRoom(POLLS_MAX, of_addresses=False)
        self._bounds = SharedRoom(BOUNDS_MAX, of_addresses=False)

    async def bounds(self, call: Call, wanted: Iterable[Wanted]) -> dict[Key, Bounds]:
        """Of each one. ShardError, WorkerLostError, RpcError."""
        found: dict[Key, Bounds] = {}
        for piece in pieces(wanted):
            topics = [{"stream": s.stream_id, "topic": s.topic_id, "partitions": each} for s, each in piece]
            async with self._bounds.place(*call.line):
                said = await call.ask("get_partition_bounds", {"topics": topics})
            for (stream, _), topic in zip(piece, said, strict=True):
                for each in topic["partitions"]:
                    found[stream.incarnation, each["id"]] = Bounds(each["first"], each["end"], each["incarnation"])
        return found

    async def poll(
        self, call: Call, stream: StreamInfo, partition: int, kind: PollingKind, value: int, count: int
    ) -> Polled:
        """ShardError, WorkerLostError, RpcError."""
        async with self._polls.place(*call.line):
            said = await call.ask("poll_messages", _poll(stream, partition, kind, value, count))
        return Polled(said["count"], said["records"], said["incarnation"], said["first_offset"], said["end"])

    async def first_from(self, call: Call, stream: StreamInfo, partition: int, timestamp_us: int) -> int | None:
        """The offset of the first message that is not older."""
        polled = await self.poll(call, stream, partition, PollingKind.TIMESTAMP, timestamp_us, 1)
        return number_at(polled.records, OFFSET_AT) if polled.count else None

    async def times_us(self, call: Call, stream: StreamInfo, partition: int) -> tuple[int, int]:
        """Of the first message that is there and of the last one; (0, 0): there is none."""
        first = await self.poll(call, stream, partition, PollingKind.FIRST, 0, 1)
        last = await self.poll(call, stream, partition, PollingKind.LAST, 0, 1)
        if not first.count or not last.count:
            return 0, 0
        return number_at(first.records, TIMESTAMP_AT), number_at(last.records, TIMESTAMP_AT)


def pieces(wanted: Iterable[Wanted]) -> Iterator[list[Wanted]]:
    """What one request asks: each topic once, a bounded number of partitions."""
    piece: list[Wanted] = []
    count = 0
    for stream, partitions in wanted:
        for at in range(0, len(partitions), PARTITIONS_OF_REQUEST):
            some = partitions[at : at + PARTITIONS_OF_REQUEST]
            if count + len(some) > PARTITIONS_OF_REQUEST or len(piece) == TOPICS_MAX:
                yield piece
                piece, count = [], 0
            piece.append((stream, some))
            count += len(some)
    if piece:
        yield piece


def number_at(record: bytes, at: int) -> int:
    if len(record) < RECORD_HEAD.size:
        raise ValueError("the record is cut")
    return int.from_bytes(record[at : at + _NUMBER_BYTES], "little")


def _poll(stream: StreamInfo, partition: int, kind: PollingKind, value: int, count: int) -> dict[str, object]:
    return {
        "consumer": _CONSUMER,
        "stream": stream.stream_id,
        "topic": stream.topic_id,
        "partition": partition,
        "strategy": int(kind),
        "value": value,
        "count": count,
        "auto_commit": False,
    }
