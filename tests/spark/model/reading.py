"""What a task may bring, judged row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from shardd.spark.piece import PieceOrigin
from shardd.spark.planner import Slice
from tests.spark.model.world import BrokenPromiseError, History, Key


@dataclass
class Expected:
    """What one slice may bring."""

    slice: Slice
    history: History
    changes: int  # of the history, when it was planned
    next_offset: int

    @property
    def reason(self) -> bool:
        """Whether something of it may be gone: since it was planned, or between the archive and the server."""
        gone = any(self.slice.start <= each < self.slice.end for each in self.history.isolated)
        return gone or self.history.changes > self.changes or self.slice.start < self.history.floor


@dataclass
class Reading:
    """One task on its way."""

    tasks: Iterator[pa.RecordBatch]
    parts: list[Expected]
    lenient: bool
    counts: Counter[str]
    read: int = 0
    oldest_us: int | None = None  # of its rows, where it has their times
    newest_us: int | None = None

    def has_files(self) -> bool:
        return any(piece.place is PieceOrigin.SEGMENT for part in self.parts for piece in part.slice.pieces)

    def has_unproven_files(self) -> bool:
        return any(
            piece.place is PieceOrigin.SEGMENT
            for part in self.parts
            for piece in part.slice.pieces
            if part.slice.mark is None
        )

    def behind(self, counts: Mapping[Key, int]) -> bool:
        """Whether it is to have messages that a copy does not have."""
        places = ((part.slice, (part.slice.name.topic, part.slice.partition)) for part in self.parts)
        return any(each.end > counts.get((*place, each.incarnation), each.end) for each, place in places)

    def take(self, partition: int, topic: str, offset: int, value: bytes) -> None:
        """One row. `BrokenPromiseError` when it is not the next one of its history."""
        while self.parts and not self._of_this(self.parts[0], topic, partition, offset):
            self.finish(self.parts.pop(0))
        if not self.parts:
            raise BrokenPromiseError(f"{topic} {partition}: offset {offset} was not planned, or came twice")
        each = self.parts[0]
        if offset > each.next_offset:
            self._missing(each, offset)
        if value != each.history.payloads[offset]:
            raise BrokenPromiseError(
                f"{topic} {partition}: offset {offset} is {value!r}, planned was {each.history.payloads[offset]!r}"
            )
        each.next_offset = offset + 1
        self.read += 1

    @staticmethod
    def _of_this(each: Expected, topic: str, partition: int, offset: int) -> bool:
        same = (each.slice.name.topic, each.slice.partition) == (topic, partition)
        return same and each.next_offset <= offset < each.slice.end

    def finish(self, each: Expected) -> None:
        if each.next_offset < each.slice.end:
            self._missing(each, each.slice.end)

    def _missing(self, each: Expected, upto: int) -> None:
        """The offsets from the next one up to `upto` did not come."""
        history = each.history
        gone = [offset for offset in range(each.next_offset, upto) if offset not in history.sparse]
        if not gone:
            self.counts["gaps passed"] += 1
            return
        what = f"{each.slice}: offsets {gone[0]} to {gone[-1]} are missing"
        if not self.lenient:
            raise BrokenPromiseError(f"{what} and nothing is said")
        kept = [offset for offset in gone if offset not in history.isolated]
        if kept and not history.over and kept[-1] >= history.floor:
            raise BrokenPromiseError(f"{what}, but kept from {history.floor} on")
        self.counts["isolated passed"] += len(kept) < len(gone)
