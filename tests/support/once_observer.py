"""Judges what a partition holds of producers whose batches are to be stored once, and what they are answered. Knows no
server: the caller says what was sent, what came back and what a read of everything found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardd.protocol.producers import Produced, ProducedKind
from tests.support import wire

FILLER = b" of which much is the same" * 24


class Batch(NamedTuple):
    """Of a producer with a name of the test's own; `epoch` -1: a plain one, which is sent once. Without an answer a
    kill may leave its beginning."""

    producer: int
    epoch: int
    sequence: int


def payloads(batch: Batch, count: int) -> list[bytes]:
    return [b"%d %d %d %d %d" % (*batch, position, count) + FILLER for position in range(count)]


@dataclass
class OnceObserver:
    """Of one partition. What was acknowledged or seen stays where it is; each batch is there whole and once; those of
    an epoch are in order. `kept`: messages before the last so many may have left."""

    kept: int | None = None
    polls: int = 0
    served: int = 0
    acknowledged: int = 0
    findings: list[str] = field(default_factory=list)
    _places: dict[Batch, tuple[int, int]] = field(default_factory=dict)  # first offset, count
    _sent: set[Batch] = field(default_factory=set)

    def sending(self, batch: Batch) -> None:
        """From now on it may be there."""
        self._sent.add(batch)

    def answered(self, batch: Batch, count: int, answer: Produced) -> None:
        """To a batch of the producer's own epoch that comes when it has to."""
        known = self._places.get(batch)
        place = answer.first, answer.count
        if answer.kind is ProducedKind.STORED:
            if known is not None:
                self.findings.append(f"twice: {batch} was at {known} and is stored again at {place}")
        elif answer.kind is not ProducedKind.DUPLICATE or known not in (None, place):
            self.findings.append(f"answer: {batch}, which is at {known}, gets {answer}")
            return
        if answer.count != count:
            self.findings.append(f"answer: {batch} has {count} messages, not {answer.count}")
        self.acknowledged += count
        self._keep(batch, place)

    def stored(self, batch: Batch, count: int) -> None:
        """A plain one, whose place nobody has told."""
        self.acknowledged += count
        self._places.setdefault(batch, (-1, count))

    def _keep(self, batch: Batch, place: tuple[int, int]) -> None:
        if self._places.get(batch, (-1, 0))[0] < 0:
            self._places[batch] = place

    def judge(self, found: Sequence[wire.Message]) -> None:
        """`found`: all that the partition has."""
        self.polls += 1
        self.served += len(found)
        start = found[0].offset if found else 0
        if [each.offset for each in found] != list(range(start, start + len(found))):
            self.findings.append(f"lost: offsets from {start} on are not dense")
            return
        if start > 0 and (self.kept is None or len(found) < self.kept):
            self.findings.append(f"lost: the log begins at {start} and has {len(found)} messages")
        places = self._batches(found, start)
        self._judge_order(places)
        for batch, place in places.items():
            if batch not in self._sent:
                self.findings.append(f"foreign: {batch} at {place}")
            elif self._places.get(batch, (-1, 0))[0] not in (-1, place[0]):
                self.findings.append(f"moved: {batch} was at {self._places[batch]} and is at {place}")
            self._keep(batch, place)
        for batch, (first, count) in self._places.items():
            if batch not in places and ((first < 0 and start == 0) or first >= start):
                self.findings.append(f"lost: {batch} of {count} messages at {first}")

    def _batches(self, found: Sequence[wire.Message], start: int) -> dict[Batch, tuple[int, int]]:
        """Of all that are whole; the first one may have lost its beginning with a segment that has left."""
        places: dict[Batch, tuple[int, int]] = {}
        at = 0
        while at < len(found):
            *name, position, count = map(int, found[at].payload.split(b" ", 5)[:5])
            batch = Batch(*name)
            due = payloads(batch, count)[position:]
            there = [each.payload for each in found[at : at + len(due)]]
            same = next((n for n, pair in enumerate(zip(there, due, strict=False)) if pair[0] != pair[1]), len(there))
            may_be_cut = batch.epoch < 0 and batch not in self._places
            if (same < len(due) and not may_be_cut) or same == 0 or (position and (at or not start)):
                self.findings.append(f"altered: {batch} at {start + at} is not whole")
            elif batch in places:
                self.findings.append(f"twice: {batch} at {places[batch]} and {start + at}")
            if same == len(due):
                places[batch] = start + at - position, count
            at += max(same, 1)
        return places

    def _judge_order(self, places: dict[Batch, tuple[int, int]]) -> None:
        """`places` in the order of the log."""
        last: dict[tuple[int, int], int] = {}
        for batch in places:
            before = last.get(batch[:2])
            if batch.epoch >= 0 and before is not None and batch.sequence != before + 1:
                self.findings.append(f"order: {batch} comes after {before}")
            last[batch[:2]] = batch.sequence
