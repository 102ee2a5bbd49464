"""The process of one shard, as the supervisor sees it."""

from __future__ import annotations

from typing import Final

from shardd.server.child_process import ChildProcess

_COMMAND: Final = ("-m", "shardd.cli.worker")


class WorkerProcess(ChildProcess):
    """The worker of one shard."""

    def __init__(self, shard: int) -> None:
        super().__init__(_COMMAND)
        self.shard = shard
