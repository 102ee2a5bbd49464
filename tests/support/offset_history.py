"""Checker of consumer offsets: what was answered when they were stored against what the server has later.

Two numbers a key: the highest value that was acknowledged and the highest that was asked for. It holds for offsets that
only rise; whoever asks records the attempt before the request and the acknowledgement after its answer.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.support.checker import Finding

Key = tuple[str, int, str]  # (topic, partition, consumer or group)
NOTHING = -1  # no offset is stored


@dataclass(slots=True)
class _Known:
    acknowledged: int = NOTHING
    attempted: int = NOTHING


@dataclass
class OffsetHistory:
    """Methods may be called from any thread. Findings: `offset lost`, `offset foreign`."""

    findings: list[Finding] = field(default_factory=list)
    acknowledgements: int = 0
    _known: dict[Key, _Known] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def attempt(self, key: Key, value: int) -> None:
        """A value of at most this is about to be stored."""
        with self._lock:
            known = self._known.setdefault(key, _Known())
            known.attempted = max(known.attempted, value)

    def acknowledge(self, key: Key, value: int) -> None:
        with self._lock:
            known = self._known[key]
            known.acknowledged = max(known.acknowledged, value)
            known.attempted = max(known.attempted, value)
            self.acknowledgements += 1

    def settle(self, key: Key, value: int) -> None:
        """For a key with one writer, whose last attempt was answered: no more than this can be stored now."""
        with self._lock:
            self._known[key].attempted = value

    def attempted(self, key: Key) -> int:
        with self._lock:
            return self._known.get(key, _Known()).attempted

    def floors(self) -> dict[Key, int]:
        """The acknowledged values; taken before the request whose answer `observe` gets."""
        with self._lock:
            return {key: known.acknowledged for key, known in self._known.items()}

    def observe(self, key: Key, value: int, floor: int) -> None:
        """The server says that this is stored (NOTHING: that nothing is)."""
        topic, partition, who = key
        with self._lock:
            attempted = self._known.get(key, _Known()).attempted
            text = f"topic {topic}, {who}: {value} is stored, acknowledged {floor}, asked for {attempted}"
            if value < floor:
                self.findings.append(Finding("offset lost", partition, text))
            elif value > attempted:
                self.findings.append(Finding("offset foreign", partition, text))

    def judge(self, found: Mapping[Key, int]) -> list[Finding]:
        """All findings, with those of the values that are stored at the end (nobody asks any more)."""
        for key, floor in self.floors().items():
            self.observe(key, found.get(key, NOTHING), floor)
        return self.findings
