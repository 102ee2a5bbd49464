"""Which cursors there are, and whose they are (docs/adr/0137-cursors-have-owners.md). A user may have as many as are
left free. Cursors of users that are gone count for no user, and their places count as free; those without an owner (of
root, and of earlier versions) count for no user either, but take places."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import Final, NamedTuple

import msgspec

NO_OWNER: Final = 0
UNSET: Final = -1  # the offset of a cursor that there is not
_Order = OrderedDict["Cursor", None]  # the longest unused first


class Cursor(NamedTuple):
    """What a cursor is known by."""

    stream: str
    partition: int
    id: str


class Kept(msgspec.Struct, gc=False):
    """`owner`: the incarnation of the user that set it last, or NO_OWNER. `used_us`: when it was set or fetched last;
    `written_us`: the same as its newest record says."""

    offset: int
    owner: int
    used_us: int
    written_us: int


class CursorTable:
    """Has no I/O."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._kept: dict[Cursor, Kept] = {}
        self._orders: dict[int, _Order] = {}  # of owners that there are, and of NO_OWNER
        self._gone: dict[int, _Order] = {}  # of owners that there are not
        self._gone_count = 0
        self._leaving: set[Cursor] = set()
        self._reserved = Counter[int]()  # by owner: places of cursors that are not in the log yet

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, cursor: Cursor) -> bool:
        return cursor in self._kept

    def get(self, cursor: Cursor) -> Kept | None:
        return self._kept.get(cursor)

    def items(self) -> Iterator[tuple[Cursor, Kept]]:
        return iter(self._kept.items())

    def count_of(self, owner: int) -> int:
        """0 for NO_OWNER: its cursors count for no user."""
        return len(self._orders.get(owner, ())) if owner != NO_OWNER else 0

    def put(self, cursor: Cursor, kept: Kept) -> None:
        """A cursor that is there passes to the owner of `kept`."""
        self.drop(cursor)
        self._kept[cursor] = kept
        order = self._gone.get(kept.owner)
        if order is None:
            order = self._orders.setdefault(kept.owner, OrderedDict())
        else:
            self._gone_count += 1
        order[cursor] = None

    def use(self, cursor: Cursor, now_us: int) -> None:
        """The cursor is there."""
        kept = self._kept[cursor]
        kept.used_us = now_us
        orders = self._gone if kept.owner in self._gone else self._orders
        orders[kept.owner].move_to_end(cursor)

    def drop(self, cursor: Cursor) -> None:
        """One that is not there is no error."""
        kept = self._kept.pop(cursor, None)
        if kept is None:
            return
        self._leaving.discard(cursor)
        orders = self._gone if kept.owner in self._gone else self._orders
        if orders is self._gone:
            self._gone_count -= 1
        del orders[kept.owner][cursor]
        if not orders[kept.owner]:
            del orders[kept.owner]

    def has_share(self, owner: int) -> bool:
        """Whether the share of `owner` has room for one more."""
        free = self._places - (len(self._kept) + self._reserved.total() - self._gone_count)
        reserved = self._reserved[owner] if owner != NO_OWNER else 0
        return self.count_of(owner) + reserved < free

    def reserve(self, owner: int) -> bool:
        """Takes a place until `release`; False when no place is left."""
        if len(self._kept) + self._reserved.total() >= self._places:
            return False
        self._reserved[owner] += 1
        return True

    def release(self, owner: int) -> None:
        self._reserved[owner] -= 1
        if not self._reserved[owner]:
            del self._reserved[owner]

    def settle(self, users: Collection[int], index: int) -> None:
        """`users`: incarnations of all users at this record of the metadata. Users that were made later are there,
        too."""
        for owner in [each for each in self._orders if each != NO_OWNER and each <= index and each not in users]:
            order = self._gone[owner] = self._orders.pop(owner)
            self._gone_count += len(order)

    def _sort(self) -> None:
        """After cursors were put in another order than that of their last use."""
        for orders in (self._orders, self._gone):
            for owner, order in orders.items():
                by_use = sorted(order, key=lambda cursor: self._kept[cursor].used_us)
                orders[owner] = OrderedDict.fromkeys(by_use)

    def trim(self) -> list[Cursor]:
        """Drops what has no place, and says what that was: cursors of users that are gone, then of the user that has
        the most at that moment, then those without an owner; of each the longest unused first."""
        self._sort()
        over = max(0, len(self._kept) - self._places)
        dropped = [*islice(self._least_due(), over)]
        for cursor in dropped:
            self.drop(cursor)
        return dropped

    def _least_due(self) -> Iterator[Cursor]:
        gone = [cursor for order in self._gone.values() for cursor in order]
        yield from sorted(gone, key=lambda cursor: self._kept[cursor].used_us)
        owners = [(-len(order), owner, iter(order)) for owner, order in self._orders.items() if owner != NO_OWNER]
        heapify(owners)
        while owners:
            negative, owner, order = owners[0]
            yield next(order)
            if negative == -1:
                heappop(owners)
            else:
                heapreplace(owners, (negative + 1, owner, order))
        yield from self._orders.get(NO_OWNER, ())

    def take_longest_unused(self) -> Cursor | None:
        """Of users that are gone. The cursor is there until it is dropped, and is not found a second time."""
        oldest: Cursor | None = None
        oldest_us = 0
        for order in self._gone.values():
            cursor = next((each for each in order if each not in self._leaving), None)
            if cursor is not None and (oldest is None or self._kept[cursor].used_us < oldest_us):
                oldest, oldest_us = cursor, self._kept[cursor].used_us
        if oldest is not None:
            self._leaving.add(oldest)
        return oldest

    def give_back(self, cursor: Cursor) -> None:
        """It was not removed: the next look finds it again."""
        self._leaving.discard(cursor)
