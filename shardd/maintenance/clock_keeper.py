"""Jobs of shard 0 about the clocks, whatever else is off (docs/adr/0127-one-believed-clock.md): `clock` looks at the
wall clock for all shards, `clock_memory` writes down what is known."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from shardd.engine import Engine, ExpiryClock
from shardd.maintenance import clock_memory
from shardd.maintenance.job import Job, JobThread, Turn
from shardd.maintenance.scheduler import JobScheduler

_log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 1.0  # for as long other shards do not see that a clock is slewed
WRITE_INTERVAL_S: Final = 30.0
_THREAD: Final = JobThread("clock")  # of its own: no seal and no compression is in its way


class ClockKeeper:
    """Lives on the loop thread of shard 0. The looks wait for no disk: what writes is a job of its own."""

    def __init__(self, engine: Engine, data: Path, jump_max_us: int, jobs: JobScheduler) -> None:
        self._engine, self._data, self._jump_max_us = engine, data, jump_max_us
        self._jumps = 0  # one that a start has found is told, too
        self._seen: tuple[int, int, int] | None = None
        self._refusal = ""
        jobs.add(Job("clock", self._look, LOOK_INTERVAL_S))
        self._write = jobs.add(Job("clock_memory", self._remember, WRITE_INTERVAL_S, thread=_THREAD))

    async def _look(self, _turn: Turn) -> None:
        clock = self._engine.expiry_clock()
        if clock.jumps > self._jumps and clock.jump_us:
            self._tell(clock)
        self._jumps = clock.jumps
        kind = clock.jumps, clock.doubts_ended, int(clock.jump_us != 0)
        if kind != self._seen:
            self._write()
        self._seen = kind

    async def _remember(self, turn: Turn) -> None:
        """A file that cannot be written is tried again like any other time: a job that fails would pause."""
        known = clock_memory.known_of(self._engine.expiry_clock())
        try:
            await turn.beside(clock_memory.remember, self._data, known)
        except OSError as error:
            if str(error) != self._refusal:
                _log.warning("what is known of the clock is not written down, it is tried again: %s", error)
            self._refusal = str(error)
        else:
            self._refusal = ""

    def _tell(self, clock: ExpiryClock) -> None:
        far_us = abs(clock.jump_us)
        _log.warning(
            "the clock is %.0f s %s all at once: nothing expires by it for %.0f s",
            far_us / 1e6, "ahead" if clock.jump_us > 0 else "behind", min(far_us, self._jump_max_us) / 1e6,
        )  # fmt: skip
