"""All workers of a server that may stand still: their silence is forgiven, and those that go on are told who does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from shardd.config.schema import Watchdog
from shardd.runtime.control_messages import Stalls, Standing, SupervisorMessage
from shardd.server.child_process import ProcessState
from shardd.server.stall_watch import SILENT_AFTER_S, StallWatch
from shardd.server.standstill import Cause, WorkerSample
from shardd.server.worker_process import WorkerProcess

_ZERO: Final = {cause.value: 0 for cause in Cause}
_NOTHING: Final = Stalls([], _ZERO, _ZERO)
Sample = Callable[[WorkerProcess, bool], WorkerSample | None]


class StallBoard:
    """Lives in the supervisor. Times are of the monotonic clock, in seconds."""

    def __init__(
        self, workers: Sequence[WorkerProcess], limits: Watchdog, sample: Sample, tell_doors: Callable[[Stalls], None]
    ) -> None:
        self._workers: Final = workers
        self._tell_doors = tell_doors
        self._told_doors: list[Standing] = []
        self._watches = [StallWatch(worker.shard, limits, partial(sample, worker)) for worker in workers]
        self._told = [_NOTHING for _ in workers]

    def look(self, now: float) -> None:
        for worker, watch in zip(self._workers, self._watches, strict=True):
            if worker.running:
                starting = worker.state is ProcessState.STARTING
                worker.forgive(watch.look(now, now - worker.heard_at, starting=starting))
        self._tell(now)

    def ended(self, worker: WorkerProcess, now: float) -> None:
        """Its process is gone; its successor has heard nothing."""
        self._watches[worker.shard].ended(now)
        self._told[worker.shard] = _NOTHING

    def any_excused(self, now: float) -> bool:
        """A stop has to wait for somebody."""
        return any(
            worker.running and watch.is_excused(now) for worker, watch in zip(self._workers, self._watches, strict=True)
        )

    def _tell(self, now: float) -> None:
        """Who is silent hears it when it is back: its end of the channel must not fill up."""
        standing = [each for watch in self._watches if (each := watch.standing) is not None]
        if standing != self._told_doors:
            self._told_doors = standing
            self._tell_doors(Stalls(standing, _ZERO, _ZERO))
        for worker, watch in zip(self._workers, self._watches, strict=True):
            times = {cause.value: watch.stalls[cause] for cause in Cause}
            total_ms = {cause.value: int(watch.stalled_s[cause] * 1000) for cause in Cause}
            stalls = Stalls(standing, times, total_ms)
            if stalls == self._told[worker.shard] or not worker.running or now - worker.heard_at > SILENT_AFTER_S:
                continue
            self._told[worker.shard] = stalls
            worker.send(SupervisorMessage(stalls=stalls))
