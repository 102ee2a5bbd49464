"""What was sent, what was acknowledged, what must be there after a power cut: the judge of tests/power.

A ledger belongs to one partition (or one stored offset, or the metadata) and to the one thread that writes to it, one
request at a time: so the place of every message is known, and a repeat or a swap is seen as such. After a cut `judge`
compares with what the server gives back; what it found is the truth for the next cut (`LogLedger.rebase`), because
everything that a server finds at its start was on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.support.checker import make_payload
from tests.support.wire import Message

DURABLE: Final = "durable"


@dataclass(frozen=True, slots=True)
class Finding:
    """kind: lost, foreign, reordered, gap, reuse, clock, returned, offset, metadata, unreadable, start, stuck."""

    kind: str
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.place}: {self.text}"


@dataclass(slots=True)
class Tally:
    """Counts over cuts. `required`: messages that had to be there; `lost`: acknowledged ones that were not."""

    acknowledged: int = 0
    required: int = 0
    lost: int = 0
    lossy_cuts: int = 0
    withheld: int = 0  # offsets between messages that are there: damaged, behind everything that is due
    offsets_lost: int = 0
    returned: int = 0

    def add(self, other: Tally) -> None:
        for name in Tally.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class LogLedger:
    """One partition that one producer fills. `sent[i]` was or will be at offset `base + i` (base None: not known).

    `acknowledged`, `synced`, `read`: how many of `sent` are at least there by an answer to a send, by an answer to
    FLUSH_UNSAVED_BUFFER with fsync (or an earlier start), by having been read. `first`: index of the first message
    that DELETE_SEGMENTS has surely left; `first_max`: the last index that it may have gone up to.
    """

    place: str
    level: str
    sent: list[bytes | None] = field(default_factory=list)  # None: withheld since an earlier cut
    acknowledged: int = 0
    synced: int = 0
    read: int = 0
    first: int = 0
    first_max: int = 0
    base: int | None = 0

    @property
    def required(self) -> int:
        """How many of `sent` must survive a power cut (from `first_max` on)."""
        return max(self.acknowledged, self.synced, self.read) if self.level == DURABLE else self.synced

    def prepare(self, payloads: Sequence[bytes]) -> None:
        """The producer is about to send these."""
        self.sent += payloads

    def last(self, count: int) -> int:
        """Index from which on there are the last `count` messages; what is withheld is none."""
        for index in range(len(self.sent) - 1, -1, -1):
            count -= self.sent[index] is not None
            if count == 0:
                return index
        return 0

    def judge(self, found: Sequence[Message], tally: Tally, end: int = 0) -> list[Finding]:
        """`found`: everything that the partition gives; `end`: the offset that it says comes next (0: not known).

        Then this is the truth."""
        places = {payload: index for index, payload in enumerate(self.sent) if payload is not None}
        findings = self._content(found, places)
        there = {places[message.payload] for message in found if message.payload in places}
        missing = self._missing(range(self.first_max, self.required), there)
        if missing:
            text = f"{len(missing)} of messages {self.first_max} to {self.required}, the first is {missing[0]}"
            findings.append(Finding("lost", self.place, f"{text}; {len(found)} are there"))
        lost = len(self._missing(range(self.first_max, self.acknowledged), there))
        tally.returned += sum(index < self.first for index in there)
        tally.acknowledged += self.acknowledged - min(self.synced, self.acknowledged)
        tally.required += max(0, self.required - self.first_max)
        tally.lost += lost
        tally.lossy_cuts += lost > 0
        tally.withheld += (max(there) - min(there) + 1 - len(there)) if there else 0
        self._rebase(found, end)
        return findings

    def _missing(self, due: range, there: set[int]) -> list[int]:
        return [index for index in due if self.sent[index] is not None and index not in there]

    def _content(self, found: Sequence[Message], places: Mapping[bytes, int]) -> list[Finding]:
        clock = 0
        previous = -1
        findings = []
        for message in found:
            index = places.get(message.payload)
            if index is None:
                findings.append(Finding("foreign", self.place, f"offset {message.offset}: nobody sent this"))
                break
            if self.base is None:
                self.base = message.offset - index
            if message.offset - index != self.base:
                text = f"message {index} is at offset {message.offset} instead of {self.base + index}"
                findings.append(Finding("reordered", self.place, text))
                break
            if index <= previous:
                findings.append(Finding("reordered", self.place, f"message {index} follows message {previous}"))
                break
            if message.timestamp_us < clock:
                findings.append(Finding("clock", self.place, f"the timestamp falls at offset {message.offset}"))
                break
            clock, previous = message.timestamp_us, index
        return findings

    def _rebase(self, found: Sequence[Message], end: int) -> None:
        """What is there now is the truth. Offsets that nothing is read at were withheld: they stay empty."""
        if found and self.base is None:
            self.base = found[0].offset
        if not found and (self.sent or self.first_max):
            self.base = None  # the next message tells it
        self.sent = []
        for message in found:
            assert self.base is not None
            self.sent += [None] * (message.offset - self.base - len(self.sent))
            self.sent.append(message.payload)
        if self.base is not None:
            self.sent += [None] * (end - self.base - len(self.sent))
        self.acknowledged = self.synced = self.read = len(self.sent)
        self.first = self.first_max = 0


@dataclass(slots=True)
class EpochLedger:
    """A partition that is purged now and then: one log for what came after the last purge that was answered, and the
    log before it while an answer is missing."""

    log: LogLedger
    pending: LogLedger | None = None  # what holds if the purge under way has happened

    def begin_purge(self) -> None:
        self.pending = LogLedger(self.log.place, self.log.level)

    def end_purge(self) -> None:
        assert self.pending is not None
        self.log, self.pending = self.pending, None

    def judge(self, found: Sequence[Message], tally: Tally, end: int = 0) -> list[Finding]:
        """As LogLedger.judge."""
        if self.pending is not None and not found:
            self.end_purge()
        self.pending = None
        return self.log.judge(found, tally, end)


@dataclass(slots=True)
class OffsetLedger:
    """One consumer's stored offset: every value that was asked for, in order; None is "nothing stored"."""

    place: str
    level: str
    values: list[int | None] = field(default_factory=lambda: [None])
    acknowledged: int = 0  # index into values
    synced: int = 0

    def prepare(self, value: int) -> None:
        self.values.append(value)

    def judge(self, found: int | None, last_offset: int | None, tally: Tally) -> list[Finding]:
        """`last_offset`: of the last message that is there now; a stored offset beyond it is clamped to it."""
        required = self.acknowledged if self.level == DURABLE else self.synced
        legal = {self._clamped(value, last_offset) for value in self.values[required:]}
        findings = []
        if found not in legal:
            text = f"{found} is stored; due is {self.values[required]} or one of the {len(legal)} asked for later"
            findings.append(Finding("offset", self.place, text))
        tally.offsets_lost += found != self._clamped(self.values[self.acknowledged], last_offset)
        self.values, self.acknowledged, self.synced = [found], 0, 0
        return findings

    @staticmethod
    def _clamped(value: int | None, last_offset: int | None) -> int | None:
        if value is None or last_offset is None:
            return None
        return min(value, last_offset)


Fact = tuple[str, ...]  # ("stream", name), ("topic", stream, name, partitions), ("group", ...), ("user", name)


@dataclass(slots=True)
class MetadataLedger:
    """Every acknowledged change of metadata must be there at every level; of the one under way all or nothing."""

    facts: frozenset[Fact] = frozenset()
    pending: frozenset[Fact] | None = None
    changes: int = 0

    def begin(self, after: frozenset[Fact]) -> None:
        self.pending = after

    def end(self) -> None:
        assert self.pending is not None
        self.facts, self.pending = self.pending, None
        self.changes += 1

    def judge(self, found: frozenset[Fact]) -> list[Finding]:
        findings = []
        if found != self.facts and found != self.pending:
            missing, more = sorted(self.facts - found), sorted(found - self.facts)
            findings.append(Finding("metadata", "metadata", f"missing {missing}, too much {more}"))
        self.facts, self.pending = found, None
        return findings


def payload_of(producer: int, sequence: int, size_bytes: int) -> bytes:
    """Every message of a run is different, and knows who sent it."""
    return make_payload(producer, sequence, max(size_bytes, 20))
