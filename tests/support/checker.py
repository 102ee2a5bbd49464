"""History checker: what producers were told against what a reader finds.

Every payload carries its own identity (producer, sequence), so a message is recognised wherever it turns up. Producers
record an attempt before they send and an acknowledgement after the answer; `judge` compares that with the whole content
of the partitions, read from offset 0. A repeat is legal only where the producer itself sent the message again.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import xxhash

from tests.support.wire import Message

_IDENTITY = struct.Struct("<8sIQ")
_MAGIC = b"shrdtest"
FINDINGS_MAX = 50  # a report stays readable when everything is wrong

Identity = tuple[int, int]  # (producer, sequence)
Destination = (
    int | bytes | None
)  # the partition, or the messages key, that the producer named; None: the server's choice


def make_payload(producer: int, sequence: int, size: int = 100) -> bytes:
    """A payload of at least 20 bytes: identity, then bytes that depend on it (so that a mix-up of two is seen)."""
    seed = _IDENTITY.pack(_MAGIC, producer, sequence)
    filler = hashlib.blake2b(seed).digest()
    need = max(0, size - len(seed))
    return seed + (filler * (need // len(filler) + 1))[:need]


def identity_of(payload: bytes) -> Identity | None:
    """The identity that a payload carries, or None when it carries none."""
    if len(payload) < _IDENTITY.size or not payload.startswith(_MAGIC):
        return None
    _magic, producer, sequence = _IDENTITY.unpack_from(payload)
    return producer, sequence


def digest_of(payload: bytes, headers: bytes) -> bytes:
    return xxhash.xxh3_128_digest(len(payload).to_bytes(4, "little") + payload + headers)


@dataclass(frozen=True, slots=True)
class Finding:
    """kind: lost, duplicate, reordered, altered, foreign, misplaced, gap, reuse, checksum, clock."""

    kind: str
    partition: int
    text: str

    def __str__(self) -> str:
        return f"{self.kind} in partition {self.partition}: {self.text}"


@dataclass(slots=True)
class _Attempt:
    digest: bytes
    place: Destination
    times: int = 0
    refused: int = 0  # of these times
    acknowledged: bool = False


@dataclass(slots=True)
class Report:
    """Counts of messages; `repeats` are legal ones, `unacknowledged` those that are there all the same."""

    acknowledged: int = 0
    stored: int = 0
    repeats: int = 0
    unacknowledged: int = 0
    findings: list[Finding] = field(default_factory=list)

    def kinds(self) -> set[str]:
        return {finding.kind for finding in self.findings}

    def require_clean(self) -> None:
        """AssertionError naming the first findings."""
        shown = "\n".join(str(finding) for finding in self.findings[:FINDINGS_MAX])
        assert not self.findings, f"{len(self.findings)} findings:\n{shown}"


class History:
    """What the producers and the readers of one topic saw. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts: dict[Identity, _Attempt] = {}
        self._observed: dict[tuple[int, int], bytes] = {}
        self._conflicts: list[Finding] = []

    def attempt(self, identity: Identity, payload: bytes, place: Destination, headers: bytes = b"") -> None:
        """The producer is about to send this message (again)."""
        digest = digest_of(payload, headers)
        with self._lock:
            known = self._attempts.setdefault(identity, _Attempt(digest, place))
            if known.digest != digest or known.place != place:
                raise ValueError(f"the producer sent {identity} with two contents or to two places")
            known.times += 1

    def acknowledge(self, identities: Iterable[Identity]) -> None:
        """The server answered 0 for these messages."""
        with self._lock:
            for identity in identities:
                self._attempts[identity].acknowledged = True

    def refuse(self, identities: Iterable[Identity]) -> None:
        """The server answered with a status that says: not carried out."""
        with self._lock:
            for identity in identities:
                self._attempts[identity].refused += 1

    def observe(self, partition: int, messages: Iterable[Message]) -> None:
        """A reader got these messages at some time before the end: their offsets now belong to them for ever."""
        with self._lock:
            for message in messages:
                self._see(partition, message)

    def _see(self, partition: int, message: Message) -> None:
        digest = digest_of(message.payload, message.headers)
        first = self._observed.setdefault((partition, message.offset), digest)
        if first != digest:
            self._conflicts.append(Finding("reuse", partition, f"offset {message.offset} held another message before"))

    def acknowledged_count(self) -> int:
        with self._lock:
            return sum(attempt.acknowledged for attempt in self._attempts.values())

    def acknowledged(self) -> frozenset[Identity]:
        """What the producers were told so far that is stored."""
        with self._lock:
            return frozenset(identity for identity, attempt in self._attempts.items() if attempt.acknowledged)

    def as_of(self, acknowledged: frozenset[Identity]) -> History:
        """The same attempts, of which only these were acknowledged: for a copy that was made at that moment."""
        earlier = History()
        with self._lock:
            for identity, known in self._attempts.items():
                earlier._attempts[identity] = replace(known, acknowledged=identity in acknowledged)
        return earlier

    def judge(self, partitions: Mapping[int, Sequence[Message]]) -> Report:
        """Compares the history with the final content of every partition, each read from offset 0 to its end."""
        for partition, messages in partitions.items():
            self.observe(partition, messages)
        with self._lock:
            report = Report(findings=list(self._conflicts))
            seen: Counter[Identity] = Counter()
            for partition, messages in sorted(partitions.items()):
                report.stored += len(messages)
                self._check_log(partition, messages, report)
                self._check_content(partition, messages, seen, report)
            for (partition, offset), _digest in self._observed.items():
                if offset >= len(partitions.get(partition, ())):
                    report.findings.append(Finding("lost", partition, f"offset {offset} was read once and is gone"))
            self._check_keys(partitions, report)
            self._check_counts(seen, report)
        return report

    def _check_log(self, partition: int, messages: Sequence[Message], report: Report) -> None:
        """Offsets dense from 0, stored checksums right, server clock never falling."""
        clock = 0
        for expected, message in enumerate(messages):
            if message.offset != expected:
                report.findings.append(Finding("gap", partition, f"offset {message.offset} where {expected} is due"))
                break
        for message in messages:
            if xxhash.xxh3_64_intdigest(message.raw[8:]) != message.checksum:
                report.findings.append(Finding("checksum", partition, f"offset {message.offset}"))
            if message.timestamp_us < clock:
                report.findings.append(Finding("clock", partition, f"the timestamp falls at offset {message.offset}"))
            clock = message.timestamp_us

    def _check_content(
        self, partition: int, messages: Sequence[Message], seen: Counter[Identity], report: Report
    ) -> None:
        """Only messages that were sent, unchanged, at their place, first occurrences in the order of sending."""
        newest: dict[int, int] = {}
        for message in messages:
            identity = identity_of(message.payload)
            attempt = self._attempts.get(identity) if identity is not None else None
            if identity is None or attempt is None:
                report.findings.append(Finding("foreign", partition, f"offset {message.offset}: nobody sent this"))
                continue
            if attempt.digest != digest_of(message.payload, message.headers):
                report.findings.append(Finding("altered", partition, f"offset {message.offset}, message {identity}"))
            if isinstance(attempt.place, int) and attempt.place != partition:
                report.findings.append(Finding("misplaced", partition, f"{identity} was sent to {attempt.place}"))
            producer, sequence = identity
            if seen[identity] == 0:
                if sequence < newest.get(producer, -1):
                    text = f"{identity} at offset {message.offset} comes after sequence {newest[producer]}"
                    report.findings.append(Finding("reordered", partition, text))
                newest[producer] = max(newest.get(producer, -1), sequence)
            seen[identity] += 1

    def _check_keys(self, partitions: Mapping[int, Sequence[Message]], report: Report) -> None:
        """All messages of one key lie in one partition."""
        home: dict[bytes, int] = {}
        for partition, messages in sorted(partitions.items()):
            for message in messages:
                identity = identity_of(message.payload)
                attempt = self._attempts.get(identity) if identity is not None else None
                if attempt is None or not isinstance(attempt.place, bytes):
                    continue
                if home.setdefault(attempt.place, partition) != partition:
                    report.findings.append(Finding("misplaced", partition, f"key {attempt.place!r} has two partitions"))

    def _check_counts(self, seen: Counter[Identity], report: Report) -> None:
        for identity, attempt in self._attempts.items():
            times = seen[identity]
            where = attempt.place if isinstance(attempt.place, int) else -1
            report.acknowledged += attempt.acknowledged
            if attempt.acknowledged and times == 0:
                report.findings.append(Finding("lost", where, f"{identity} was acknowledged and is not there"))
            if not attempt.acknowledged and times:
                report.unacknowledged += 1
            if times > attempt.times - attempt.refused:
                text = f"{identity} is there {times} times, was sent {attempt.times} times, refused {attempt.refused}"
                report.findings.append(Finding("duplicate", where, text))
            elif times > 1:
                report.repeats += times - 1
