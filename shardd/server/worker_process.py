"""The process of one shard, as the supervisor sees it."""

from __future__ import annotations

from typing import Final

from shardd.server.child_process import ChildProcess, RunningProcess
from shardd.server.worker_template import WorkerTemplate

_COMMAND: Final = ("-m", "shardd.cli.worker")


class WorkerProcess(ChildProcess):
    """The worker of one shard. `template`: what makes it, where there is one and it answers."""

    def __init__(self, shard: int, template: WorkerTemplate | None = None) -> None:
        super().__init__(_COMMAND)
        self.shard = shard
        self._template = template

    def _launched(self, inheritance_fd: int, descriptors: list[int]) -> RunningProcess:
        if self._template is not None:
            forked = self._template.fork(inheritance_fd, descriptors, wait=not self.respawns)
            if forked is not None:
                return forked
        return super()._launched(inheritance_fd, descriptors)
