"""What a broker knows of idempotent producers: epochs, and the numbers of their batches (docs/extensions.md)."""

from __future__ import annotations

import struct
from typing import Final

from shardd.protocol.producers import ProducedKind

EXPIRY_S: Final = 3600
_INITIATED: Final = struct.Struct("<QIQ")
_PRODUCED: Final = struct.Struct("<B3xIQ")
_NOT_FOUND: Final = 20
_ENDED: Final = 30


class Numbers:
    """Histories have numbers that are never given again, so a purge forgets what a partition knew."""

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        self._last = 0
        self._begun_at: dict[tuple[int, int], int] = {}  # (producer, epoch) -> the newest history at its beginning
        self._next: dict[tuple[int, int, int], int] = {}  # (history, producer, epoch) -> number that has to come
        self._known: dict[tuple[int, int, int, int], tuple[int, int]] = {}
        self.newest_history = 0

    def begun(self, producer: int) -> bytes | int:
        if producer == 0:
            self._last += 1
            producer, self._epochs[self._last] = self._last, -1
        if producer not in self._epochs:
            return _NOT_FOUND
        self._epochs[producer] += 1
        self._begun_at[producer, self._epochs[producer]] = self.newest_history
        return self._initiated(producer)

    def renewed(self, producer: int, epoch: int) -> bytes | int:
        if producer not in self._epochs:
            return _NOT_FOUND
        return self._initiated(producer) if self._epochs[producer] == epoch else _ENDED

    def _initiated(self, producer: int) -> bytes:
        return _INITIATED.pack(producer, self._epochs[producer], EXPIRY_S * 1_000_000)

    def forget(self) -> None:
        """All producers, as after an idle time."""
        self._epochs.clear()

    def judged(self, history: int, by: tuple[int, int, int], count: int, end: int) -> tuple[bytes, bool]:
        """The answer, and whether the batch is to be stored. A history that is newer than the epoch cannot know what
        was stored before it."""
        producer, sequence, epoch = by
        newest = self._epochs.get(producer)
        if newest is None:
            return _PRODUCED.pack(ProducedKind.UNKNOWN_PRODUCER, 0, 0), False
        if epoch != newest:
            return _PRODUCED.pack(ProducedKind.STALE_EPOCH, newest, 0), False
        key = history, producer, epoch
        if history > self._begun_at[producer, epoch]:
            return _PRODUCED.pack(ProducedKind.UNKNOWN_PRODUCER, 0, 0), False
        due = self._next.get(key, 0)
        if sequence < due:
            return _PRODUCED.pack(ProducedKind.DUPLICATE, *self._known[(*key, sequence)]), False
        if sequence > due:
            return _PRODUCED.pack(ProducedKind.GAP, 0, due), False
        self._next[key] = sequence + 1
        self._known[(*key, sequence)] = count, end
        return _PRODUCED.pack(ProducedKind.STORED, count, end), True
