"""The supervisor's watch over one worker that stands still: how much of its silence is excused, and from when to when.

A worker that beats is looked at now and then: its loop may go on while its other threads wait for a device. One that
is silent is looked at in every tick.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from shardd.config.schema import Watchdog
from shardd.runtime.control_messages import Standing
from shardd.server.standstill import Cause, ThreadSample, WorkerSample, excuse, stuck_threads

LOOK_INTERVAL_S: Final = 1.0  # at a worker that beats
SILENT_AFTER_S: Final = 0.5  # two heartbeats are missing
TOLD_AFTER_S: Final = {Cause.DEVICE: 0.75, Cause.CPU: 2.0}  # sooner than any peer gives up
_log = logging.getLogger(__name__)


class StallWatch:
    """Of one worker's process. Times are of the monotonic clock, in seconds. `sample(everything)`: its threads now."""

    def __init__(self, shard: int, limits: Watchdog, sample: Callable[[bool], WorkerSample | None]) -> None:
        self._shard = shard
        self._limits_s = {
            Cause.DEVICE: limits.device_stall_limit_ms / 1000,
            Cause.CPU: limits.starvation_limit_ms / 1000,
        }
        self._sample = sample
        self._before: WorkerSample | None = None
        self._looked_at = 0.0
        self._excused_s = dict.fromkeys(Cause, 0.0)  # of the present silence
        self._cause: Cause | None = None  # of the stall that was told
        self._silent = False  # the loop itself stands still
        self._since = 0.0
        self.stalls = dict.fromkeys(Cause, 0)
        self.stalled_s = dict.fromkeys(Cause, 0.0)

    @property
    def standing(self) -> Standing | None:
        """What others are told; None: it goes on."""
        if self._cause is None:
            return None
        return Standing(self._shard, self._cause.value, int(self._since * 1e6))

    def is_excused(self, now: float) -> bool:
        """It stands still, and not for longer than the setting allows."""
        return self._cause is not None and now - self._since < self._limits_s[self._cause]

    def look(self, now: float, silent_s: float, *, starting: bool) -> float:
        """How many seconds of a silence that has lasted for `silent_s` are excused by this look."""
        elapsed_s = now - self._looked_at
        if silent_s <= SILENT_AFTER_S:
            self._look_at_beating(now, elapsed_s)
            return 0.0
        before, after = self._before, self._sample(False)
        self._before, self._looked_at = after, now
        found = None if before is None or after is None else excuse(before, after, min(elapsed_s, silent_s))
        if after is None or found is None:
            return 0.0
        cause, seconds = found
        self._excused_s[cause] += seconds
        busy_start = starting and cause is Cause.CPU  # it beats only when it has loaded its modules
        if self._excused_s[cause] > TOLD_AFTER_S[cause] and not busy_start:
            self._silent = True
            self._change(cause, now, self._excused_s[cause], [after.loop])
        return seconds if self._excused_s[cause] < self._limits_s[cause] else 0.0

    def _look_at_beating(self, now: float, elapsed_s: float) -> None:
        self._excused_s = dict.fromkeys(Cause, 0.0)
        if self._silent:
            self._silent = False
            self._change(None, now, 0.0, [])
        if elapsed_s < LOOK_INTERVAL_S:
            return
        before, after = self._before, self._sample(True)
        self._before, self._looked_at = after, now
        if before is not None and after is not None:
            stuck = stuck_threads(before, after)
            self._change(Cause.DEVICE if stuck else None, now, elapsed_s, stuck)

    def ended(self, now: float) -> None:
        """The process is gone; the next one begins anew."""
        self._before, self._silent = None, False
        self._excused_s = dict.fromkeys(Cause, 0.0)
        if self._cause is not None:
            self.stalled_s[self._cause] += now - self._since
            self._cause = None

    def _change(self, cause: Cause | None, now: float, for_s: float, threads: list[ThreadSample]) -> None:
        if cause is self._cause:
            return
        if self._cause is not None:
            self.stalled_s[self._cause] += now - self._since
            ended = "the device answers again" if self._cause is Cause.DEVICE else "it gets its CPU again"
            _log.warning("shard %d stood still for %.1f s: %s", self._shard, now - self._since, ended)
        self._cause = cause
        if cause is None:
            return
        self._since = now - for_s
        self.stalls[cause] += 1
        if cause is Cause.DEVICE:
            place = next((thread.waits_in for thread in threads if thread.waits_in not in ("", "0")), "unknown")
            _log.warning(
                "shard %d stands still: it waits for the device (in %s); it is not replaced", self._shard, place
            )
        else:
            _log.warning("shard %d stands still: it gets no CPU, others run there; it is not replaced", self._shard)
