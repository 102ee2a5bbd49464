"""What a run reports: violations of invariants, and the events that led to them."""

from __future__ import annotations

import hashlib
from collections import Counter, deque

EVENTS_KEPT = 40
EVENTS_SHOWN = 15


class Finding(Exception):  # noqa: N818 - a result, not a failure of the simulator
    """An invariant does not hold."""


class Trace:
    """Everything that happened, as one hash; the last events as text (`verbose`: all, printed)."""

    def __init__(self, *, verbose: bool = False) -> None:
        self._sha = hashlib.sha256()
        self._verbose = verbose
        self.last: deque[str] = deque(maxlen=EVENTS_KEPT)
        self.counts: Counter[str] = Counter()
        self.finding: str | None = None

    def add(self, now_s: float, kind: str, text: str = "") -> None:
        line = f"{now_s:11.6f} {kind} {text}"
        self._sha.update(line.encode())
        self.counts[kind] += 1
        self.last.append(line)
        if self._verbose:
            print(line, flush=True)

    def report(self, sentence: str) -> None:
        """Notes a violation; the first one counts. An exception would be swallowed by the code under test."""
        if self.finding is None:
            self.finding = sentence
            self.last.append(f"FINDING: {sentence}")

    @property
    def digest(self) -> str:
        return self._sha.hexdigest()[:16]
