"""Job `clock` of shard 0: looks at the wall clock for all shards, and writes down what is known, whatever else is off
(docs/adr/0127-one-believed-clock.md)."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

from shardd.engine import Engine, ExpiryClock
from shardd.maintenance import clock_memory
from shardd.maintenance.job import Job, JobThread, Turn
from shardd.maintenance.scheduler import JobScheduler

_log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 1.0  # for as long other shards do not see that a clock is slewed
WRITE_INTERVAL_S: Final = 30.0
_THREAD: Final = JobThread("sealing", nice=19)  # that of the sealer


class ClockKeeper:
    """Lives on the loop thread of shard 0."""

    def __init__(self, engine: Engine, data: Path, jump_max_us: int, jobs: JobScheduler) -> None:
        self._engine, self._data, self._jump_max_us = engine, data, jump_max_us
        self._jumps = 0  # one that a start has found is told, too
        self._written: tuple[int, int, int] | None = None
        self._write_at_s = 0.0
        jobs.add(Job("clock", self._look, LOOK_INTERVAL_S, thread=_THREAD))

    async def _look(self, turn: Turn) -> None:
        clock = self._engine.expiry_clock()
        if clock.jumps > self._jumps and clock.jump_us:
            self._tell(clock)
        self._jumps = clock.jumps
        kind = clock.jumps, clock.doubts_ended, int(clock.jump_us != 0)
        if kind == self._written and time.monotonic() < self._write_at_s:
            return
        self._write_at_s = time.monotonic() + WRITE_INTERVAL_S
        await turn.beside(clock_memory.remember, self._data, clock_memory.known_of(clock))
        self._written = kind

    def _tell(self, clock: ExpiryClock) -> None:
        far_us = abs(clock.jump_us)
        _log.warning(
            "the clock is %.0f s %s all at once: nothing expires by it for %.0f s",
            far_us / 1e6, "ahead" if clock.jump_us > 0 else "behind", min(far_us, self._jump_max_us) / 1e6,
        )  # fmt: skip
