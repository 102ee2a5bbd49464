"""Which clock decides what (docs/adr/0127-one-believed-clock.md)."""

from __future__ import annotations

import time

from shardd.engine import Engine


class StampClock:
    """What records of the metadata are stamped with."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def now_us(self) -> int:
        return self._engine.stamp_us()


def forgotten_us(engine: Engine) -> int:
    """What has ended by this may be deleted for good. Tokens are judged by the wall clock: that has to say so, too."""
    return min(engine.now_us(), time.time_ns() // 1000)
