"""What a partition may say to producers whose batches are stored once: by what its log holds of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shardd.protocol.producers import Produced, ProducedKind

WINDOW = 32  # batches whose place is told again


class Run(NamedTuple):
    """A producer in one of its epochs."""

    producer: int
    epoch: int


class Part(NamedTuple):
    """What a message is of."""

    run: Run
    sequence: int
    position: int
    messages: int


class Place(NamedTuple):
    """Of a batch in the log."""

    first: int
    messages: int


class OnceModel:
    """Finds: a sequence number that is stored twice, one that is left out, a batch of an epoch that has ended, a part
    of a batch, an answer that the log does not bear out, and state that was lost without a reason."""

    def __init__(self, report: Callable[[str], None]) -> None:
        """`report` gets a sentence for each violation. Messages have numbers of the caller's own."""
        self._report = report
        self._parts: dict[int, Part] = {}
        self._stored: dict[Run, dict[int, Place]] = defaultdict(dict)
        self._torn: dict[Run, set[int]] = defaultdict(set)  # batches of which there is a part, since a power cut
        self.forgot_at = -1  # record of the metadata: who began up to it may be a stranger
        self._places_known = True  # no power cut has hidden any

    def next_of(self, run: Run) -> int:
        """The sequence number that has to come."""
        return max(self._stored[run], default=-1) + 1

    def sending(self, number: int, part: Part) -> None:
        """A message with this number, for the first time."""
        self._parts[number] = part

    def purged(self, record: int) -> None:
        self._stored.clear()
        self._torn.clear()
        self.forgot_at = record

    def power_cut(self, record: int) -> None:
        self.forgot_at = record

    # ---- answers ----

    def answered(self, run: Run, begun: int, sequence: int, count: int, answer: Produced) -> None:
        """To a batch that was not refused for want of something, at a level that producers may use."""
        batch = f"batch {sequence} of producer {run.producer} in epoch {run.epoch}"
        due, kind = self.next_of(run), answer.kind
        if kind is ProducedKind.UNKNOWN_PRODUCER:
            if begun > self.forgot_at and (due or not sequence):
                self._report(f"{batch}: the producer is unknown, and nothing has made the server forget it")
        elif self._torn[run]:
            self._report(f"{batch}: {answer}, and of a batch before there is only a part")
        elif kind is ProducedKind.STORED:
            self._judge_stored(run, batch, sequence, count, answer)
        elif kind is ProducedKind.DUPLICATE:
            self._judge_duplicate(run, batch, sequence, answer)
        elif kind is not ProducedKind.GAP or sequence <= due or answer.first != due:
            self._report(f"{batch}: {answer}, number {due} has to come")

    def _judge_stored(self, run: Run, batch: str, sequence: int, count: int, answer: Produced) -> None:
        due = self.next_of(run)
        if sequence < due:
            self._report(f"{batch} is accepted twice: it is at {self._stored[run].get(sequence)} already")
        if sequence > due:
            self._report(f"{batch} leaves a hole: number {due} has to come")
        if answer.count != count:
            self._report(f"{batch} has {count} messages, not {answer.count}")
        if any(other.producer == run.producer and other.epoch > run.epoch for other in self._stored):
            self._report(f"{batch} is of a stale epoch and is accepted")
        self._stored[run][sequence] = Place(answer.first, count)

    def _judge_duplicate(self, run: Run, batch: str, sequence: int, answer: Produced) -> None:
        due, known = self.next_of(run), self._stored[run].get(sequence)
        if sequence >= due:
            self._report(f"{batch} is lost: it is told to be stored, and the log ends before number {due}")
        elif answer.count and known is not None and Place(answer.first, answer.count) != known:
            self._report(f"{batch} is at {known}, told is {answer}")
        elif not answer.count and due - sequence <= WINDOW and self._places_known:
            self._report(f"{batch} is at {known}, and its place is not told")

    def answered_stale(self, run: Run, epoch: int, begun: int, answer: Produced | None) -> None:
        """To a batch of an epoch before `epoch`, of which the partition has something."""
        if answer is None or (answer.kind is ProducedKind.UNKNOWN_PRODUCER and begun <= self.forgot_at):
            return
        if answer != Produced(ProducedKind.STALE_EPOCH, epoch, 0):
            self._report(f"a batch of producer {run.producer} in the stale epoch {run.epoch} gets {answer}")

    # ---- crashes ----

    def recovered(self, numbers: Sequence[int | None], first: int, *, power_was_cut: bool) -> None:
        """`numbers`: of all messages from the offset `first` on; None: it is withheld."""
        self._places_known &= not power_was_cut
        before, self._stored = self._stored, defaultdict(dict)
        for run, places in before.items():
            self._stored[run] = {number: place for number, place in places.items() if place.first < first}
        before_torn, self._torn = self._torn, defaultdict(set)
        at = 0
        while at < len(numbers):
            part = self._part_of(numbers[at])
            if part is None:
                at += 1
                continue
            length = self._whole(numbers[at : at + part.messages], part)
            withheld = None in numbers[:at]
            may_be_part = power_was_cut or part.sequence in before_torn[part.run]
            self._there(
                part, first + at, length, is_first=at == 0 and first > 0, may_be_part=may_be_part, withheld=withheld
            )
            at += max(1, length)

    def _part_of(self, number: int | None) -> Part | None:
        return None if number is None else self._parts.get(number)

    def _whole(self, numbers: Sequence[int | None], part: Part) -> int:
        """How many of its messages follow each other from this one on."""
        due = range(part.position, part.messages)
        for length, (position, number) in enumerate(zip(due, numbers, strict=False)):
            if self._part_of(number) != part._replace(position=position):
                return length
        return min(len(due), len(numbers))

    def _there(
        self, part: Part, offset: int, length: int, *, is_first: bool, may_be_part: bool, withheld: bool
    ) -> None:
        run, sequence = part.run, part.sequence
        batch = f"batch {sequence} of producer {run.producer} in epoch {run.epoch}"
        places = self._stored[run]
        if part.position and is_first and sequence in places:
            return
        if part.position + length < part.messages or part.position:
            self._torn[run].add(sequence)
            if not may_be_part:
                self._report(f"of {batch} there is only a part at offset {offset}")
            return
        if sequence in places:
            self._report(f"{batch} is stored twice, at {places[sequence].first} and {offset}")
        if withheld and sequence != self.next_of(run):  # what is missing may be among it
            self._torn[run].add(sequence)
        elif sequence != self.next_of(run) and (places or not self._may_begin_late(offset)):
            self._report(f"{batch} at offset {offset} leaves a hole: number {self.next_of(run)} has to come")
        if any(other.producer == run.producer and other.epoch > run.epoch and self._stored[other]
               for other in list(self._stored)):  # fmt: skip
            self._report(f"{batch} at offset {offset} is behind one of a later epoch")
        places[sequence] = Place(offset, part.messages)

    @staticmethod
    def _may_begin_late(offset: int) -> bool:
        """What came before it may have been deleted."""
        return offset > 0
