"""What one producer was told about its partition, in a few numbers however long it runs, and the check of what is read.

The producer alone writes to the partition: batches of rising sequences, each sent again until it is acknowledged. So
the log must hold the batches in order, one that was sent n times up to n times in a row (of a try that a kill cut short
its first records), and nothing else. Batches that were sent more than once are remembered until a later one is read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

import xxhash

from tests.support.checker import Finding, identity_of, make_payload
from tests.support.wire import Message

FINDINGS_MAX = 50
PAYLOAD_BYTES = 200


@dataclass(slots=True)
class _Repeat:
    first: int
    count: int
    left: int  # how many more times it may come


class PartitionTruth:
    """The producer and one reader may use it from different threads."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.findings: list[Finding] = []
        self.repeats = 0
        self.next_offset = 0  # all below are read and checked
        self._lock = threading.Lock()
        self._acknowledged = 0  # all sequences below
        self._attempted = 0
        self._expected = 0  # the next sequence in the log
        self._resent: list[_Repeat] = []

    @property
    def acknowledged(self) -> int:
        return self._acknowledged

    @property
    def remembered(self) -> int:
        """Batches that are kept in memory."""
        return len(self._resent)

    def attempt(self, count: int) -> list[bytes]:
        """Payloads of the batch that comes behind the acknowledged ones; the same count again when it is sent again."""
        with self._lock:
            first = self._acknowledged
            if self._attempted > first:
                self._note_repeat(first, count)
            self._attempted = first + count
        return [make_payload(self.partition, sequence, PAYLOAD_BYTES) for sequence in range(first, first + count)]

    def _note_repeat(self, first: int, count: int) -> None:
        if self._attempted != first + count:
            raise ValueError("a batch is sent again with another count")
        if self._resent and self._resent[-1].first == first:
            self._resent[-1].left += 1
        else:
            self._resent.append(_Repeat(first, count, 1))

    def acknowledge(self) -> None:
        with self._lock:
            self._acknowledged = self._attempted

    def check(self, messages: Iterable[Message]) -> None:
        """The next messages of the partition, in the order of the log."""
        with self._lock:
            for message in messages:
                self._check(message)

    def finish(self) -> None:
        """Everything has been read and nobody sends any more."""
        with self._lock:
            if self._expected < self._acknowledged:
                self._find("lost", f"acknowledged up to {self._acknowledged}, the log ends with {self._expected}")

    def _find(self, kind: str, text: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(kind, self.partition, text))

    def _check(self, message: Message) -> None:
        if message.offset != self.next_offset:
            self._find("gap", f"offset {message.offset} where {self.next_offset} is due")
        self.next_offset = message.offset + 1
        if xxhash.xxh3_64_intdigest(message.raw[8:]) != message.checksum:
            self._find("checksum", f"offset {message.offset}")
        identity = identity_of(message.payload)
        if identity is None or identity[0] != self.partition or identity[1] >= self._attempted:
            self._find("foreign", f"offset {message.offset}: {identity}")
            return
        sequence = identity[1]
        if message.payload != make_payload(self.partition, sequence, PAYLOAD_BYTES):
            self._find("altered", f"offset {message.offset}: {identity}")
        if sequence > self._expected:
            self._find("lost", f"offset {message.offset}: sequence {sequence} comes where {self._expected} is due")
        elif sequence < self._expected and not self._may_repeat(sequence):
            self._find("duplicate", f"offset {message.offset}: sequence {sequence} where {self._expected} is due")
        while self._resent and self._resent[0].first + self._resent[0].count <= sequence:
            del self._resent[0]
        self._expected = sequence + 1

    def _may_repeat(self, sequence: int) -> bool:
        """Whether a batch that was sent again begins here, at most up to its own end after it was last seen."""
        for each in self._resent:
            if each.first == sequence and each.left > 0 and self._expected <= each.first + each.count:
                each.left -= 1
                self.repeats += self._expected - sequence
                return True
        return False
