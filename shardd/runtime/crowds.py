"""Room that a crowd shares: whoever has much gives way to an owner that has little.

Room is counted in places, or in bytes. An owner is a user once the user is known, else the address that a stranger
comes from. While room is free, an owner may have all of it: clients that share one account lose nothing. When none is
free, a newcomer takes the room of the newest members of the owner with most, unless the newcomer's owner would have as
much. So no crowd, of however many addresses and accounts, keeps out an owner with less than its share.

A member at work does not give way: what it began is soon over. Whoever waits for its client is not at work any more.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, nullcontext

from shardd.runtime.aside import aside


class Member:
    """`size`: its part of the room, 0 once it has left. `give_way` is called once, when another owner needs the room:
    it is taken then."""

    __slots__ = ("address", "at_work", "give_way", "grace", "owner", "size")

    def __init__(self, owner: Hashable, address: str, give_way: Callable[[], None], *, at_work: bool) -> None:
        self.owner = owner
        self.address = address
        self.give_way = give_way
        self.at_work = at_work
        self.grace: asyncio.TimerHandle | None = None
        self.size = 0

    def end_grace(self) -> None:
        if self.grace is not None:
            self.grace.cancel()
            self.grace = None


class FullError(Exception):
    """`of_address`: the address has as much as one may have for this owner."""

    def __init__(self, of_address: bool) -> None:
        super().__init__("no room is free")
        self.of_address = of_address


class _Owner:
    """`yielding`: what its members that are not at work have."""

    __slots__ = ("members", "size", "yielding")

    def __init__(self) -> None:
        self.members: dict[Member, None] = {}
        self.size = 0
        self.yielding = 0


_NOBODY = _Owner()


class _Turn:
    """A newcomer that waits for `size` of the room."""

    __slots__ = ("came", "member", "size")

    def __init__(self, member: Member, size: int) -> None:
        self.member = member
        self.size = size
        self.came: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Lines:
    """Those that wait: owners take turns, and within an owner its addresses."""

    def __init__(self) -> None:
        self._owners: OrderedDict[Hashable, OrderedDict[str, dict[_Turn, None]]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._owners)

    def has(self, owner: Hashable) -> bool:
        return owner in self._owners

    def put(self, turn: _Turn) -> None:
        addresses = self._owners.setdefault(turn.member.owner, OrderedDict())
        addresses.setdefault(turn.member.address, {})[turn] = None

    def first_ones(self, may: Callable[[_Turn], bool]) -> Iterator[_Turn]:
        """Of each owner the first, in the order of the owners' turns. One that is cancelled waits no more, and is there
        until its task runs."""
        for addresses in self._owners.values():
            for turns in addresses.values():
                first = next((turn for turn in turns if not turn.came.done()), None)
                if first is not None and may(first):
                    yield first
                    break

    def take(self, turn: _Turn) -> None:
        """Its owner and its address come last next time."""
        self.drop(turn)
        addresses = self._owners.get(turn.member.owner)
        if addresses is not None:
            self._owners.move_to_end(turn.member.owner)
            if turn.member.address in addresses:
                addresses.move_to_end(turn.member.address)

    def drop(self, turn: _Turn) -> None:
        owner, address = turn.member.owner, turn.member.address
        addresses = self._owners[owner]
        del addresses[address][turn]
        if not addresses[address]:
            del addresses[address]
        if not addresses:
            del self._owners[owner]


class Room:
    """`size_max` in all, `of_address_max` for one address of an owner (as much: no share). Loop thread only."""

    def __init__(self, size_max: int, of_address_max: int) -> None:
        assert 0 < of_address_max <= size_max
        self._max = size_max
        self._of_address_max = of_address_max
        self._used = 0
        self._waiting = _Lines()
        self._owners: dict[Hashable, _Owner] = {}
        self._of_address: dict[tuple[Hashable, str], int] = {}

    @property
    def used(self) -> int:
        return self._used

    def passes_nobody(self, owner: Hashable) -> bool:
        """Whether a newcomer of this owner is before nobody in the line: its owner does not wait, and the owners that
        wait have their shares already."""
        return not self._waiting.has(owner) and not self._first_ones()

    def is_wanted_beside(self, owner: Hashable) -> bool:
        """Whether another owner waits for room, and not for its own share."""
        return any(turn.member.owner != owner for turn in self._first_ones())

    def has_room(self, owner: Hashable, address: str, size: int) -> bool:
        """Whether so much is free for this owner, without a member that gives way."""
        return self._used + size <= self._max and not self._is_share_full(owner, address, size)

    def enter(
        self, owner: Hashable, address: str, give_way: Callable[[], None], size: int = 1, *, at_work: bool = False
    ) -> Member:
        """Room until `leave`, or until `give_way` is called. FullError."""
        member = Member(owner, address, give_way, at_work=at_work)
        self.grow(member, size)
        return member

    async def take(
        self, owner: Hashable, address: str, give_way: Callable[[], None], size: int = 1, *, at_work: bool = False
    ) -> Member:
        """As `enter`, but waits until there is room: owners take turns, and within an owner its addresses."""
        assert 0 < size <= self._of_address_max
        if not self._waiting and self.has_room(owner, address, size):
            member = Member(owner, address, give_way, at_work=at_work)
            self._count(member, size)
            return member
        turn = _Turn(Member(owner, address, give_way, at_work=True), size)
        self._waiting.put(turn)
        self._wake()
        try:
            await turn.came
        except asyncio.CancelledError:
            if turn.member.size:
                self.leave(turn.member)
            else:
                self._waiting.drop(turn)
                self._wake()
            raise
        if not at_work:
            self.may_give_way(turn.member)
        return turn.member

    def grow(self, member: Member, size: int) -> None:
        """So much more for it, as if it came in now. FullError: it has what it had."""
        assert 0 < size <= self._max
        if self._is_share_full(member.owner, member.address, size):
            raise FullError(of_address=True)
        victims = self._victims(member, size)
        if victims is None:
            raise FullError(of_address=False)
        self._replace(victims, member, size)
        if victims:
            self._wake()

    def resize(self, member: Member, size: int) -> None:
        """What it has turned out to be. It is not refused: while there is more than fits, no newcomer gets in without
        others that give way. Nothing happens where the member has left."""
        assert size > 0
        if member.size:
            self._count(member, size - member.size)
            self._wake()

    def count(self, member: Member, size: int) -> None:
        """What a member at work has now, 0: nothing; it may come back. It is not refused, as with `resize`: what has
        come is there. `has_room` says before whether more may come."""
        assert member.at_work and size >= 0
        if size != member.size:
            self._count(member, size - member.size)
            self._wake()

    def shrink(self, count: int) -> bool:
        """Where members have turned out to be more than fits, those that are not at work give way, `count` of them at
        most: the newest of the owner with most first. False: no further one has to, or can."""
        for _ in range(count):
            if self._used <= self._max or (victim := self._newest_of_most()) is None:
                self._wake()
                return False
            self._count(victim, -victim.size)
            victim.give_way()
        return True

    def _largest_first(self) -> Iterator[_Owner]:
        """Of the owners with a member that may give way. Mostly the first one is enough."""
        yielding = [each for each in self._owners.values() if each.yielding]
        if yielding:
            yield max(yielding, key=lambda each: each.size)
            yield from sorted(yielding, key=lambda each: -each.size)[1:]

    def _newest_of_most(self) -> Member | None:
        largest = next(self._largest_first(), _NOBODY)
        return next((each for each in reversed(largest.members) if not each.at_work), None)

    def works(self, member: Member) -> None:
        """From now on it is at work."""
        member.end_grace()
        if not member.at_work:
            member.at_work = True
            if member.size:
                self._owners[member.owner].yielding -= member.size

    def works_for(self, member: Member, grace_s: float) -> None:
        """From now on it is at work, for so long at most: then what it waits for stands still."""
        if member.size:
            self.works(member)
            member.grace = asyncio.get_running_loop().call_later(grace_s, self.may_give_way, member)

    def may_give_way(self, member: Member) -> None:
        """It is not at work any more."""
        member.end_grace()
        if member.at_work:
            member.at_work = False
            if member.size:
                self._owners[member.owner].yielding += member.size
                self._wake()

    def leave(self, member: Member) -> None:
        """Nothing happens where the member has given way."""
        if member.size:
            self._count(member, -member.size)
            self._wake()

    def _is_share_full(self, owner: Hashable, address: str, size: int) -> bool:
        has = self._of_address.get((owner, address), 0)
        return self._of_address_max < self._max and has + size > self._of_address_max

    def _wake(self) -> None:
        while self._waiting and (found := self._next()) is not None:
            turn, victims = found
            self._waiting.take(turn)
            self._replace(victims, turn.member, turn.size)
            turn.came.set_result(None)

    def _next(self) -> tuple[_Turn, list[Member]] | None:
        """Who waits and may come in now: the first in the line, else the owner that has least, if others give way."""
        first_ones = self._first_ones()
        if not first_ones:
            return None
        if self._used + first_ones[0].size <= self._max:
            return first_ones[0], []
        least = min(first_ones, key=lambda turn: self._owners.get(turn.member.owner, _NOBODY).size)
        victims = self._victims(least.member, least.size)
        return None if victims is None else (least, victims)

    def _first_ones(self) -> list[_Turn]:
        return [*self._waiting.first_ones(self._has_share)]

    def _has_share(self, turn: _Turn) -> bool:
        return not self._is_share_full(turn.member.owner, turn.member.address, turn.size)

    def _victims(self, member: Member, size: int) -> list[Member] | None:
        """Who gives way to it: of the owners with most, the newest of each. None: that would not be enough."""
        own = self._owners.get(member.owner, _NOBODY).size
        missing = self._used + size - self._max
        victims = list[Member]()
        for owner in self._largest_first() if missing > 0 else ():
            left = owner.size
            for newest in reversed(owner.members):
                if missing <= 0 or left <= own + size:
                    break
                if not newest.at_work:
                    victims.append(newest)
                    left -= newest.size
                    missing -= newest.size
            if missing <= 0 or owner.size <= own + size:
                break
        return victims if missing <= 0 else None

    def _replace(self, victims: list[Member], member: Member, size: int) -> None:
        for victim in victims:
            self._count(victim, -victim.size)
        self._count(member, size)
        assert self._used <= self._max
        for victim in victims:
            victim.give_way()

    def _count(self, member: Member, size: int) -> None:
        """Its part changes by so much; with nothing it is no member."""
        mine = self._owners.get(member.owner)
        if mine is None:
            mine = self._owners[member.owner] = _Owner()
        member.size += size
        mine.size += size
        mine.yielding += 0 if member.at_work else size
        if member.size:
            mine.members[member] = None
        else:
            member.end_grace()
            del mine.members[member]
        if not mine.members:
            del self._owners[member.owner]
        key = (member.owner, member.address)
        of_address = self._of_address.get(key, 0) + size
        if of_address:
            self._of_address[key] = of_address
        else:
            self._of_address.pop(key, None)
        self._used += size


class SharedRoom(Room):
    """Room that nobody gives back when another one needs it: an owner has at most as much as it leaves, and an address
    half of what its owner may still have. So another owner finds some. None owns as much as there is. No owner has more
    than `of_owner_max`. Without `of_addresses`, addresses have no share within an owner."""

    def __init__(self, size_max: int, of_owner_max: int | None = None, *, of_addresses: bool = True) -> None:
        super().__init__(size_max, size_max)
        self._of_owner_max = size_max if of_owner_max is None else of_owner_max
        self._of_addresses = of_addresses

    def _is_share_full(self, owner: Hashable, address: str, size: int) -> bool:
        has = self._owners.get(owner, _NOBODY).size
        if has + size > self._of_owner_max:
            return True
        if owner is None:
            return False
        left = self._max - self._used - has - 2 * size  # then, beside as much as it has
        has_address = self._of_address.get((owner, address), 0) if self._of_addresses else 0
        return left < 0 or (has_address > 0 and 2 * has_address > left)

    def leaves_as_much(self, owner: Hashable, address: str) -> bool:
        """Whether the owner may still have as much as the address has: room for what is small, beside an address that
        has its share."""
        return self.has_room(owner, "", max(self._of_address.get((owner, address), 0) // 2, 1))

    @asynccontextmanager
    async def place(self, owner: Hashable, address: str) -> AsyncIterator[None]:
        """One place while within; waits for it as `take` does, and steps aside for so long."""
        waits = bool(self._waiting) or not self.has_room(owner, address, 1)
        with aside() if waits else nullcontext():
            member = await self.take(owner, address, _stay, at_work=True)
        try:
            yield
        finally:
            self.leave(member)


def _stay() -> None:
    """A member at work is not asked to give way."""
