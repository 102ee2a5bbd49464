"""What one partition of a topic must hold, by what its only writer was answered. Knows no server.

A ledger begins anew with each life of the partition (a purge, or the topic made again). Every message has a number and
is sent by one thread. What got no answer may be there, also in a later life: its request may have been waiting."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tests.support import wire
from tests.support.checker import identity_of, make_payload

SEGMENT_BYTES: Final = 32 << 10
HEAD_BYTES: Final = 64
SIZES: Final = (40, 200, 900)  # of payloads
COUNTS: Final = (1, 1, 2, 5, 20, 40)  # of messages in a batch
BATCH_BYTES_MOST: Final = max(COUNTS) * (HEAD_BYTES + max(SIZES))
SEGMENT_BYTES_MOST: Final = SEGMENT_BYTES + 2 * BATCH_BYTES_MOST  # one fills it, one finds it full
LATE_S: Final = 60.0  # by then a deletion without an answer has been carried out, or its worker is gone
JOURNAL_MAX: Final = 400
SOONER: Final = 0.9  # of an expiry: nothing goes before


@dataclass(frozen=True, slots=True)
class Rules:
    """What may remove messages of a partition from its start. 0: this one does not."""

    retention: bool = False
    messages: int = 0
    partition_bytes: int = 0
    topic_bytes: int = 0
    expiry_s: float = 0.0

    @property
    def removes(self) -> bool:
        limits = self.messages, self.partition_bytes, self.topic_bytes, self.expiry_s
        return self.retention and any(limits)


@dataclass(slots=True)
class Sent:
    """`unanswered`: sends of it that may have been carried out; `once`: however often it is sent, it is stored once."""

    size: int
    at_s: float
    once: bool
    unanswered: int = 0
    acknowledged: bool = False
    left: bool = False  # before its place was seen
    offsets: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Seen:
    number: int
    timestamp_us: int


@dataclass(slots=True)
class Late:
    """A DELETE_SEGMENTS without an answer: what it may still remove, and when it is not under way any more."""

    bytes_left: int
    until_s: float


@dataclass(slots=True)
class Look:
    """All that a partition had at one moment: offsets from `start` to before `end`."""

    start: int
    end: int
    messages: Sequence[wire.Message]

    @property
    def size_bytes(self) -> int:
        return sum(len(each.raw) for each in self.messages)


class Ledger:
    """Of one partition. `find` gets a sentence for each violation."""

    def __init__(self, topic: int, partition: int, find: Callable[[str], None]) -> None:
        self.topic, self.partition = topic, partition
        self._find_any = find
        self.sent: dict[int, Sent] = {}
        self.earlier: dict[int, Sent] = {}  # of lives before this one, where something got no answer
        self.seen: dict[int, Seen] = {}
        self.start = 0  # at the last look
        self.rules = [Rules()]  # that held at some time since the last look; the last one holds
        self.budget_bytes = 0  # what DELETE_SEGMENTS may have removed since the last look
        self.late: list[Late] = []  # the same of requests without an answer, in their order
        self.looked_s = time.monotonic()  # when the last look was judged
        self.retained = False  # whether retention has removed something: a kill may give it back
        self.life = 0
        self.looks = 0
        self.journal: deque[tuple[float, str]] = deque(maxlen=JOURNAL_MAX)  # what was done at which time, for a finding
        self.found = False

    def find(self, sentence: str) -> None:
        self.found = True
        self.note(f"FINDING {sentence}")
        self._find_any(f"topic {self.topic}, partition {self.partition}, life {self.life}: {sentence}")

    def note(self, sentence: str) -> None:
        self.journal.append((time.monotonic(), sentence))

    @property
    def late_budget_bytes(self) -> int:
        """What DELETE_SEGMENTS without an answer may have removed since the last look."""
        return sum(each.bytes_left for each in self._under_way())

    def _under_way(self) -> list[Late]:
        """At the last look, or later."""
        return [each for each in self.late if each.until_s >= self.looked_s]

    # ---- what was done ----

    def sending(self, numbers: Sequence[int], size: int, *, once: bool) -> None:
        """Each of them may be there from now on."""
        now_s = time.monotonic()
        for number in numbers:
            known = self.sent.setdefault(number, Sent(size, now_s, once))
            known.once &= once
            known.unanswered += 1
        self.note(f"sends numbers {numbers[0]} to {numbers[-1]}, {size} bytes each")

    def acknowledged(self, numbers: Sequence[int], first: int | None = None) -> None:
        """`first`: the offset of the first one, where that was told."""
        for place, number in enumerate(numbers):
            known = self.sent[number]
            known.unanswered -= not known.acknowledged
            known.acknowledged = True
            if first is not None:
                self._see(first + place, number, 0)
        at = "" if first is None else f" at {first}"
        self.note(f"numbers {numbers[0]} to {numbers[-1]} are acknowledged{at}")

    def again(self, numbers: Sequence[int]) -> None:
        """Acknowledged ones were sent once more, and this was answered: nothing of it was stored."""
        for number in numbers:
            self.sent[number].unanswered -= 1

    def changes(self, rules: Rules) -> None:
        """These hold from now on, or some time before they are answered."""
        self.rules.append(rules)
        self.note(f"is to go by {rules}")

    def deletes(self, segments: int) -> None:
        """By DELETE_SEGMENTS; without an answer it may happen at any time."""
        self.late.append(Late(segments * SEGMENT_BYTES_MOST, time.monotonic() + LATE_S))
        self.note(f"deletes {segments} segments")

    def deleted(self, segments: int) -> None:
        """The last request was answered."""
        self.late.pop()
        self.budget_bytes += segments * SEGMENT_BYTES_MOST
        self.note(f"{segments} segments are deleted")

    def new_life(self, rules: Rules) -> None:
        """Everything that was acknowledged is gone by right."""
        self.earlier |= {number: each for number, each in self.sent.items() if each.unanswered}
        self.sent, self.seen = {}, {}
        self.start, self.rules = 0, [rules]
        self.budget_bytes, self.late = 0, []
        self.retained = False
        self.life += 1
        self.note(f"begins life {self.life}, goes by {rules}")

    def content_of(self, number: int) -> bytes:
        known = self.sent.get(number) or self.earlier[number]
        return make_payload(self._producer, number, known.size)

    @property
    def _producer(self) -> int:
        return self.topic * 100 + self.partition

    def payload(self, number: int, size: int) -> bytes:
        return make_payload(self._producer, number, size)

    # ---- what must hold ----

    def judge(self, look: Look) -> None:
        self.looks += 1
        self.note(f"has {look.start} to {look.end}, {look.size_bytes} bytes")
        offsets = [each.offset for each in look.messages]
        if offsets != list(range(look.start, look.start + len(offsets))) or look.start + len(offsets) != look.end:
            self.find(
                f"gap: {len(offsets)} messages from {offsets[:1]} to {offsets[-1:]}, not {look.start} to {look.end}"
            )
            return
        if look.start < self.start and not self.retained:
            self.find(f"returned: the log begins at {look.start}, and began at {self.start}")
        for each in look.messages:
            self._judge_message(each)
        for one, other in pairwise(look.messages):
            if other.timestamp_us < one.timestamp_us:
                self.find(f"clock: the timestamp falls at offset {other.offset}")
        self._judge_there(look)
        self._judge_start(look)
        self.start, self.rules, self.budget_bytes = look.start, self.rules[-1:], 0
        self.looked_s = time.monotonic()
        self.late = self._under_way()

    def _judge_message(self, message: wire.Message) -> None:
        identity = identity_of(message.payload)
        if identity is None or identity[0] != self._producer:
            self.find(f"foreign: offset {message.offset} has {identity}")
            return
        number = identity[1]
        if number not in self.sent and number in self.earlier:
            known = self.earlier[number]
            self.sent[number] = Sent(known.size, known.at_s, known.once, known.unanswered)
        if number not in self.sent:
            self.find(f"foreign: offset {message.offset} has number {number}, which is not of this life")
            return
        if message.payload != self.content_of(number):
            self.find(f"altered: offset {message.offset}, number {number}")
        self._see(message.offset, number, message.timestamp_us)

    def _see(self, offset: int, number: int, timestamp_us: int) -> None:
        """`timestamp_us` 0: not known."""
        seen = self.seen.get(offset)
        if seen is not None and seen.number != number:
            self.find(f"reuse: offset {offset} had number {seen.number} and has {number}")
            return
        if seen is not None and timestamp_us and seen.timestamp_us not in (0, timestamp_us):
            self.find(f"altered: the timestamp of offset {offset}")
        self.seen[offset] = Seen(number, timestamp_us or (seen.timestamp_us if seen else 0))
        known = self.sent[number]
        if offset not in known.offsets:
            known.offsets.append(offset)
            most = 1 if known.once else known.acknowledged + known.unanswered
            if len(known.offsets) > most:
                self.find(f"twice: number {number} at {known.offsets}, at most {most} times by right")

    def _judge_there(self, look: Look) -> None:
        """What was acknowledged is behind the start, or before it by right, which `_judge_start` says."""
        gone = [offset for offset in self.seen if offset >= look.end]
        if gone:
            self.find(f"lost: {len(gone)} offsets from {min(gone)} on were told or read, the log ends at {look.end}")
        waiting = (number for number, each in self.sent.items() if each.acknowledged and not each.left)
        unseen = sorted(number for number in waiting if not self.sent[number].offsets)
        first = min((self.seen[each.offset].number for each in look.messages if each.offset in self.seen), default=-1)
        lost = [number for number in unseen if look.messages and number > first]
        room = look.start - sum(offset < look.start for offset in self.seen)  # offsets that have left unseen
        room -= sum(each.left and not each.offsets for each in self.sent.values())  # some were told of since
        if unseen and (lost or len(unseen) > room):
            self.find(
                f"lost: {len(unseen)} acknowledged messages, number {(lost or unseen)[0]} the first, {room} left unseen"
            )
        for number in unseen:
            self.sent[number].left = True
        order = [self.seen[each.offset].number for each in look.messages if each.offset in self.seen]
        firsts = [number for number, offset in zip(order, range(look.start, look.end), strict=False)
                  if (known := self.sent.get(number)) and known.acknowledged and min(known.offsets) == offset
                  and known.unanswered == 0]  # fmt: skip
        if any(other < one for one, other in pairwise(firsts)):
            self.find("reordered: acknowledged messages are not in the order of their sends")

    def _judge_start(self, look: Look) -> None:
        """Nothing leaves that no rule has removed. Deletions go on where the rules have come to: the bound of a rule is
        a place, that of a deletion is a length from wherever the log began at that moment."""
        if look.start <= self.start:
            return
        now_s = time.monotonic()
        by_rules = max(self._allowed(rules, look, now_s) for rules in self.rules)
        allowed = self._deleted(look, by_rules)
        self.retained |= any(rules.removes for rules in self.rules)
        if look.start > allowed:
            self.find(
                f"removed: the log begins at {look.start}, by right at {allowed} at most,"
                f" {by_rules} without deletions; began at {self.start}"
            )
        by_deletions = sum(self._bytes_least(offset) for offset in range(by_rules, look.start))
        self._charge(by_deletions - self.budget_bytes)

    def _charge(self, size_bytes: int) -> None:
        """Of deletions without an answer those that end first: which of them it was is not known."""
        for each in self._under_way():
            taken = min(max(size_bytes, 0), each.bytes_left)
            each.bytes_left -= taken
            size_bytes -= taken

    def _allowed(self, rules: Rules, look: Look, now_s: float) -> int:
        if not rules.retention:
            return self.start
        allowed = self.start
        if rules.messages:
            allowed = max(allowed, look.end - rules.messages)
        if rules.partition_bytes:
            allowed = max(allowed, self._last_of(rules.partition_bytes - SEGMENT_BYTES_MOST, look))
        if rules.topic_bytes:  # judged for all partitions together
            allowed = look.end
        if rules.expiry_s:
            since_s = now_s - SOONER * rules.expiry_s
            sent = ((offset, self.sent.get(seen.number)) for offset, seen in self.seen.items())
            young = [offset for offset, each in sent if each is not None and each.at_s > since_s]
            allowed = max(allowed, min(young, default=look.end))
        return allowed

    def _last_of(self, size_bytes: int, look: Look) -> int:
        """Where the last so many bytes begin, or behind that. Some of them may have left."""
        offset = look.end
        while offset > self.start and size_bytes > 0:
            offset -= 1
            size_bytes -= self._bytes_most(offset)
        return offset

    def _deleted(self, look: Look, start: int) -> int:
        """How far DELETE_SEGMENTS may have come in a log that began at `start`."""
        budget = self.budget_bytes + self.late_budget_bytes
        offset = start
        while offset < look.end and budget > 0:
            budget -= self._bytes_least(offset)
            offset += 1
        return offset

    def _bytes_least(self, offset: int) -> int:
        return HEAD_BYTES + self._size_at(offset, min(SIZES))

    def _bytes_most(self, offset: int) -> int:
        return HEAD_BYTES + self._size_at(offset, max(SIZES))

    def _size_at(self, offset: int, unknown: int) -> int:
        """Of the payload; `unknown` for what has left unseen."""
        seen = self.seen.get(offset)
        known = self.sent.get(seen.number) if seen else None
        return known.size if known else unknown

    def counts(self) -> Counter[str]:
        """Of this life."""
        return Counter(acknowledged=sum(each.acknowledged for each in self.sent.values()), looks=self.looks)
