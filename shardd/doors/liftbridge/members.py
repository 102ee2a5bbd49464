"""Who of a consumer group subscribes to a partition: one at a time, remembered with its epoch. A newer one takes over;
membership is not looked at, as Liftbridge has it."""

from __future__ import annotations

from collections.abc import Callable

SlotKey = tuple[int, int, str]
"""Incarnation of the stream, partition, group."""


class Slot:
    """`lost`: somebody else has it."""

    def __init__(self, epoch: int, wake: Callable[[], None]) -> None:
        self.epoch = epoch
        self.lost = False
        self._wake = wake

    def lose(self) -> None:
        self.lost = True
        self._wake()


class Slots:
    """Loop thread only."""

    def __init__(self) -> None:
        self._of: dict[SlotKey, Slot] = {}

    def is_newer(self, key: SlotKey, epoch: int) -> bool:
        """Whether whoever has it has a greater epoch."""
        held = self._of.get(key)
        return held is not None and held.epoch > epoch

    def take(self, key: SlotKey, epoch: int, wake: Callable[[], None]) -> Slot:
        held = self._of.get(key)
        if held is not None:
            held.lose()
        slot = self._of[key] = Slot(epoch, wake)
        return slot

    def leave(self, key: SlotKey, slot: Slot) -> None:
        if self._of.get(key) is slot:
            del self._of[key]
