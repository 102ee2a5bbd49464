"""Room that a crowd shares: whoever has much gives way to an owner that has little.

Room is counted in places, or in bytes. An owner is a user once the user is known, else the address that a stranger
comes from. While room is free, an owner may have all of it: clients that share one account lose nothing. When none is
free, a newcomer takes the room of the newest members of the owner with most, unless the newcomer's owner would have as
much. So no crowd, of however many addresses and accounts, keeps out an owner with less than its share.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable

from shardd.runtime.fair_turns import FairQueue


class Member:
    """`size`: its part of the room. `give_way` is called once, when another owner needs the room: it is taken then."""

    __slots__ = ("address", "give_way", "owner", "size")

    def __init__(self, owner: Hashable, address: str, give_way: Callable[[], None], size: int) -> None:
        self.owner = owner
        self.address = address
        self.give_way = give_way
        self.size = size


class FullError(Exception):
    """`of_address`: the address has as much as one may have for this owner."""

    def __init__(self, of_address: bool) -> None:
        super().__init__("no room is free")
        self.of_address = of_address


class _Owner:
    __slots__ = ("members", "size")

    def __init__(self) -> None:
        self.members: dict[Member, None] = {}
        self.size = 0


_NOBODY = _Owner()
_Turn = tuple[int, "asyncio.Future[None]"]
"""Of a newcomer that waits: its size, and what tells it that there is room."""


class Room:
    """`size_max` in all, `of_address_max` for one address of an owner (as much: no share). Loop thread only."""

    def __init__(self, size_max: int, of_address_max: int) -> None:
        assert 0 < of_address_max <= size_max
        self._max = size_max
        self._of_address_max = of_address_max
        self._used = 0
        self._promised = 0  # to those that waited and have not come in yet
        self._waiting: FairQueue[_Turn] = FairQueue()
        self._next: _Turn | None = None  # the first of those that wait: there is not enough room for it
        self._owners: dict[Hashable, _Owner] = {}
        self._of_address: Counter[tuple[Hashable, str]] = Counter()

    @property
    def used(self) -> int:
        return self._used

    def enter(self, owner: Hashable, address: str, give_way: Callable[[], None], size: int = 1) -> Member:
        """Room until `leave`, or until `give_way` is called. FullError."""
        assert 0 < size <= self._max
        if self._of_address_max < self._max and self._of_address[owner, address] + size > self._of_address_max:
            raise FullError(of_address=True)
        if not self._fits(size):
            self._make_room(owner, size)
        member = Member(owner, address, give_way, size)
        mine = self._owners.setdefault(owner, _Owner())
        mine.members[member] = None
        mine.size += size
        self._of_address[owner, address] += size
        self._used += size
        assert self._used <= self._max
        return member

    async def take(self, owner: Hashable, address: str, give_way: Callable[[], None], size: int = 1) -> Member:
        """As `enter`; waits where no room is free, owners in turns. FullError: the address has its share."""
        while True:
            try:
                return self.enter(owner, address, give_way, size)
            except FullError as error:
                if error.of_address:
                    raise
            turn = asyncio.get_running_loop().create_future()
            self._waiting.put((str(owner),), (size, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._promised -= size
                self._wake()
                raise
            self._promised -= size

    def leave(self, member: Member) -> None:
        """Nothing happens where the member has given way."""
        mine = self._owners.get(member.owner)
        if mine is None or member not in mine.members:
            return
        del mine.members[member]
        mine.size -= member.size
        if not mine.members:
            del self._owners[member.owner]
        key = (member.owner, member.address)
        self._of_address[key] -= member.size
        if not self._of_address[key]:
            del self._of_address[key]
        self._used -= member.size
        self._wake()

    def _fits(self, size: int) -> bool:
        return self._used + self._promised + size <= self._max

    def _wake(self) -> None:
        while self._next is not None or self._waiting:
            size, turn = self._next or self._waiting.take()
            self._next = None
            if turn.done():
                continue
            if not self._fits(size):
                self._next = size, turn
                return
            self._promised += size
            turn.set_result(None)

    def _make_room(self, owner: Hashable, size: int) -> None:
        """Of the owner with most, the newest; nothing is taken where it would not be enough."""
        own = self._owners.get(owner, _NOBODY).size
        largest = max(self._owners.values(), key=lambda each: each.size, default=_NOBODY)
        victims, left = list[Member](), largest.size
        missing = self._used + self._promised + size - self._max
        for newest in reversed(largest.members):
            if missing <= 0 or left <= own + size:
                break
            victims.append(newest)
            left -= newest.size
            missing -= newest.size
        if missing > 0:
            raise FullError(of_address=False)
        self._promised += size  # to the newcomer: none of those that wait gets the room
        for victim in victims:
            self.leave(victim)
            victim.give_way()
        self._promised -= size
