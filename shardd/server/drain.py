"""A drain: clients that are here stay until they go by themselves, no new ones come, then the server stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardd.runtime.control_messages import SupervisorMessage, WorkerMessage
from shardd.server.worker_process import WorkerProcess

_QUIET_BEATS: Final = 4  # of each worker: a connection that moves between two of them is nobody's for a moment


class Drain:
    """Lives in the supervisor."""

    def __init__(self, workers: Sequence[WorkerProcess]) -> None:
        self._workers: Final = workers
        self._quiet_beats = [0 for _ in workers]
        self.begun = False

    def begin(self) -> None:
        self.begun = True
        for worker in self._workers:
            self.tell(worker)

    def tell(self, worker: WorkerProcess) -> None:
        """Also one that has just been started."""
        if self.begun:
            self._quiet_beats[worker.shard] = 0
            worker.send(SupervisorMessage(drain=True))

    def heard(self, worker: WorkerProcess, message: WorkerMessage) -> None:
        """How many connections it has, if that is what it says."""
        if message.connections is None:
            return
        self._quiet_beats[worker.shard] = 0 if message.connections else self._quiet_beats[worker.shard] + 1
        if message.connections:  # one that has moved may have been counted nowhere
            self._quiet_beats = [0 for _ in self._workers]

    @property
    def over(self) -> bool:
        """Nobody is connected any more."""
        serving = [beats for worker, beats in zip(self._workers, self._quiet_beats, strict=True) if worker.running]
        return self.begun and all(beats >= _QUIET_BEATS for beats in serving)
