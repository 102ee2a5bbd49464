"""Judges what polls give of a partition whose messages expire: none is missing that has not expired, none is served
that has. Exact to the microsecond where a timestamp is known; each poll lies between two looks at the same clock that
the server has."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support import wire

ALL = 1_000_000  # more than a poll here finds


def now_us() -> int:
    return time.time_ns() // 1000


@dataclass(slots=True)
class Sent:
    """One message. `at_us`: its timestamp when it was seen, before that the moment at which it was sent, at most."""

    payload: bytes
    at_us: int
    acknowledged: bool = False
    offset: int | None = None


@dataclass
class ExpiryObserver:
    """Of one partition that one thread writes to and reads. `expiry_us` 0: nothing expires. `kept`: so many of the last
    messages may stay of those that have not expired, where a limit takes others (None: no such limit)."""

    expiry_us: int
    kept: int | None = None
    clock: Callable[[], int] = now_us
    sent: list[Sent] = field(default_factory=list)
    polls: int = 0
    served: int = 0
    findings: list[str] = field(default_factory=list)
    _places: dict[bytes, int] = field(default_factory=dict)

    @property
    def acknowledged(self) -> int:
        return sum(each.acknowledged for each in self.sent)

    def send(self, connection: wire.Wire, stream: str, topic: str, payloads: Sequence[bytes]) -> None:
        """OSError, StatusError: whether they are stored nobody knows."""
        new = [Sent(payload, self.clock()) for payload in payloads]
        self._places |= {each.payload: len(self.sent) + number for number, each in enumerate(new)}
        self.sent += new
        connection.send(stream, topic, wire.to_partition(0), [wire.message(each) for each in payloads])
        for each in new:
            each.acknowledged = True

    def look(self, connection: wire.Wire, stream: str, topic: str) -> None:
        """Polls everything and judges it."""
        before_us = self.clock()
        found = connection.poll(stream, topic, 0, strategy=wire.POLL_FIRST, count=ALL).messages
        self.judge(found, before_us, self.clock())

    def judge(self, found: Sequence[wire.Message], before_us: int, after_us: int) -> None:
        """`found`: all that a poll gave that began and ended at these moments."""
        self.polls += 1
        self.served += len(found)
        places = [self._places.get(each.payload, -1) for each in found]
        if -1 in places or places != sorted(set(places)):
            self.findings.append("altered: foreign, repeated or reordered messages")
            return
        offsets = [each.offset for each in found]
        if offsets and offsets != list(range(offsets[0], offsets[0] + len(offsets))):
            self.findings.append(f"lost: offsets from {offsets[0]} on are not dense")
        for place, message in zip(places, found, strict=True):
            self._see(self.sent[place], message, before_us)
        there = set(places)
        due = self.sent if self.kept is None else self.sent[-self.kept :]
        early = [each for each in due if each.acknowledged and self._must_be_there(each, after_us)]
        missing = [each for each in early if self._places[each.payload] not in there]
        if missing:
            ages = [after_us - each.at_us for each in (missing[0], missing[-1])]
            self.findings.append(f"lost: {len(missing)} messages, {ages[0]} to {ages[1]} us old at most")

    def _must_be_there(self, each: Sent, after_us: int) -> bool:
        return not self.expiry_us or each.at_us + self.expiry_us > after_us

    def _see(self, each: Sent, message: wire.Message, before_us: int) -> None:
        if each.offset is not None and (each.offset, each.at_us) != (message.offset, message.timestamp_us):
            self.findings.append(f"altered: offset {each.offset} is now {message.offset}, or has another timestamp")
        each.offset, each.at_us = message.offset, message.timestamp_us
        late_us = before_us - each.at_us - self.expiry_us
        if self.expiry_us and late_us >= 0:
            self.findings.append(f"late: offset {each.offset} is served {late_us} us after it has expired")
