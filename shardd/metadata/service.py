"""The face of the metadata that every worker has, whatever its part in the replication."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from shardd.metadata.commands import Command, Ref
from shardd.metadata.records import Record
from shardd.metadata.state import State

Applied = Callable[[State, State, Record], None]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """Answer to a submitted command. `status` 0: done, and `state` is the one right after it on this worker.

    `id`: of what was created, else 0.
    """

    status: int
    id: int
    state: State


class Metadata(ABC):
    """This worker's replica and the way to change it. Loop thread only."""

    def __init__(self) -> None:
        self.state = State()
        self._subscribers: list[Applied] = []

    @abstractmethod
    async def submit(self, user: Ref, command: Command) -> Result:
        """Has shard 0 make the change; returns when every live shard has applied it. Refusals are statuses.

        `user` is whose rights count; nobody's do (41) when its id belongs to another user by then.
        Raises PeerLost when shard 0 died with the command in its hands: nobody knows whether it was done.
        """

    def subscribe(self, applied: Applied) -> None:
        """Calls `applied(old, new, record)` for every record from now on, before the record is acknowledged."""
        self._subscribers.append(applied)

    @abstractmethod
    async def close(self) -> None:
        """Ends the part that this worker has in the replication."""

    def _publish(self, new: State, record: Record) -> None:
        old, self.state = self.state, new
        for applied in self._subscribers:
            try:
                applied(old, new, record)
            except Exception:  # one part that cannot follow must not keep the others from it
                _log.exception("record %d of the metadata was not followed everywhere", record.index)
