"""Calls that the engine still has when their askers have gone, because a device or a worker stands still.

Such a call keeps its place in the engine and the memory of its records until the shard of the partition answers. It
counts for its user at that shard, and within the user for an address. An asker with too many of them may begin no
further call to that shard; other shards take its calls as before. So a user leaves places to others, however long the
device takes.

What all doors may hand to the engine at once is at most half of the room, also where nobody knows yet that a device
stands still. From the first call on that is given up, calls to that shard count from their beginning. So who comes then
finds some. A user who has given up nothing there may begin a few, however much others have.

A `SharedRoom` (shardd/runtime/crowds.py) has the same shares, but refuses before it counts, and has one share for each
owner. A call counts here when it is given up, cannot be refused then, and an owner has a share at each shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from shardd.engine._native import CALLS_MAX
from shardd.protocol.errors import ShardError, Status
from shardd.runtime.asker import ASKER, Asker

T = TypeVar("T", bound=Hashable)
GIVEN_UP_MAX: Final = CALLS_MAX // 2  # the other half is more than all doors may have under way
RECORDS_POOL_PART: Final = 4  # their records are at most this part of the pool, whose blocks may be twice as large
NEWCOMER_MAX: Final = 16  # calls under way at a time of a user who has given up none


class GivenUpCalls:
    """Loop thread only. `pool_bytes`: of the engine. A call counts once, or once for each so many bytes."""

    def __init__(self, pool_bytes: int) -> None:
        self._bytes_of_one: Final = max(1, pool_bytes // RECORDS_POOL_PART // GIVEN_UP_MAX)
        self._all = 0
        self._of_shard: Counter[int] = Counter()
        self._of_owner: Counter[tuple[int, Hashable]] = Counter()
        self._of_address: Counter[tuple[int, Hashable, str]] = Counter()
        self._all_begun = 0  # of those that are under way, begun after others were given up
        self._begun: Counter[tuple[int, Hashable]] = Counter()

    @contextmanager
    def begun(self, shard: int, batch_bytes: int = 0) -> Iterator[None]:
        """While a call is under way. `ShardError` 11001 before that, and nothing has happened, when the asker has as
        many at this shard as are left, or its address half of what its user may still have."""
        if shard not in self._of_shard:
            yield
            return
        asker, size = ASKER.get(), self._size_of(batch_bytes)
        self._require_room(shard, asker)
        self._count_begun((shard, asker.owner), size)
        try:
            yield
        finally:
            self._count_begun((shard, asker.owner), -size)

    def _require_room(self, shard: int, asker: Asker) -> None:
        left = GIVEN_UP_MAX - self._all - self._all_begun
        given_up, begun = self._of_owner[shard, asker.owner], self._begun[shard, asker.owner]
        if not given_up and begun < NEWCOMER_MAX:
            return
        own, of_address = given_up + begun, self._of_address[shard, *asker]
        if own >= left or (of_address and 2 * of_address >= left - own):
            raise ShardError(Status.SHARD_COMMUNICATION_ERROR, f"too many calls still wait for shard {shard}")

    def given_up(self, shard: int, batch_bytes: int) -> Callable[[], None]:
        """The asker of this task goes, the engine keeps the call: until what is returned here is called."""
        asker, size = ASKER.get(), self._size_of(batch_bytes)
        self._count(shard, asker, size)
        return lambda: self._count(shard, asker, -size)

    def _size_of(self, batch_bytes: int) -> int:
        return max(1, batch_bytes // self._bytes_of_one)

    def _count_begun(self, key: tuple[int, Hashable], size: int) -> None:
        self._all_begun += size
        _add(self._begun, key, size)

    def _count(self, shard: int, asker: Asker, size: int) -> None:
        self._all += size
        _add(self._of_shard, shard, size)
        _add(self._of_owner, (shard, asker.owner), size)
        _add(self._of_address, (shard, *asker), size)


def _add(counter: Counter[T], key: T, size: int) -> None:
    counter[key] += size
    if not counter[key]:
        del counter[key]
