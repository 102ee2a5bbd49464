"""The face of the metadata that every worker has, whatever its part in the replication."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from shardd.metadata.apply import apply
from shardd.metadata.commands import Command, CreateUser, Ref, UpdatePermissions
from shardd.metadata.records import Record
from shardd.metadata.state import State
from shardd.metadata.steps import steps_concerned
from shardd.protocol.permissions import entries_count
from shardd.runtime.threads import T, Threads, Ts

APPLY_INLINE_STEPS: Final = (
    2_000  # records that cost more (partitions, members of groups) are applied in a helper thread
)
INLINE_ENTRIES: Final = 1_000  # changes with more permissions are encoded in a helper thread
INLINE_BYTES: Final = 16 * 1024  # larger records and changes are decoded in a helper thread

Applied = Callable[[State, State, Record], None]
Follow = Callable[[State, State], Awaitable[None]]
_log = logging.getLogger(__name__)


class Result(msgspec.Struct, frozen=True):
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
        self._follow: list[Follow] = []
        self._followed: int | None = None  # while a record is being followed: the index before it

    @property
    def followed_index(self) -> int:
        """The last record that this worker has followed to the end; behind `state.index` while it opens and closes
        partitions."""
        return self.state.index if self._followed is None else self._followed

    @abstractmethod
    async def submit(self, user: Ref, command: Command) -> Result:
        """Has shard 0 make the change; returns when every live shard has applied it. Refusals are statuses.

        `user` is whose rights count; nobody's do (41) when its id belongs to another user by then.
        Raises PeerLost when shard 0 died with the command in its hands: nobody knows whether it was done.
        """

    def subscribe(self, applied: Applied) -> None:
        """Calls `applied(old, new, record)` for every record from now on, before the record is acknowledged."""
        self._subscribers.append(applied)

    def follow_with(self, follow: Follow) -> None:
        """Awaits `follow(old, new)` for every record from now on, one after the other, before it is acknowledged and
        after the subscribers: for what takes too long to be done in one go."""
        self._follow.append(follow)

    @abstractmethod
    async def close(self) -> None:
        """Ends the part that this worker has in the replication."""

    async def _publish(self, new: State, record: Record) -> None:
        """Returns when this worker has followed. `state` is the new one at once."""
        old, self.state = self.state, new
        for applied in self._subscribers:
            try:
                applied(old, new, record)
            except Exception:  # one part that cannot follow must not keep the others from it
                _log.exception("record %d of the metadata was not followed everywhere", record.index)
        self._followed = old.index
        try:
            for follow in self._follow:
                await self._follow_one(follow, old, new, record.index)
        finally:
            self._followed = None

    @staticmethod
    async def _follow_one(follow: Follow, old: State, new: State, index: int) -> None:
        try:
            await follow(old, new)
        except Exception:
            _log.exception("record %d of the metadata was not followed everywhere", index)


async def beside_when(threads: Threads, large: bool, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """What the function returns or raises; of what is large in a helper thread, so that the loop goes on."""
    return await threads.run(function, *arguments) if large else function(*arguments)


def is_large(command: Command) -> bool:
    """Whether it takes long to encode."""
    if isinstance(command, CreateUser | UpdatePermissions):
        return entries_count(command.permissions) > INLINE_ENTRIES
    return False


async def apply_beside(threads: Threads, state: State, record: Record) -> State:
    """`apply`; of a record that costs much in a helper thread, so that the loop goes on. ApplyError."""
    if steps_concerned(state, record.command) <= APPLY_INLINE_STEPS:
        return apply(state, record)
    return await threads.run(apply, state, record)
