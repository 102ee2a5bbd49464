"""The lines of a room that a crowd shares (shardd/runtime/crowds.py)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Protocol, TypeVar


class _Newcomer(Protocol):
    owner: Hashable
    address: str


Kind = TypeVar("Kind", bound=_Newcomer)


class Turn(Generic[Kind]):
    """A newcomer that waits for `size` of the room. `passed`: as much came in before it, while it was the first of
    those that others keep from their share."""

    __slots__ = ("came", "member", "passed", "size")

    def __init__(self, member: Kind, size: int) -> None:
        self.member = member
        self.size = size
        self.passed = 0
        self.came: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Lines(Generic[Kind]):
    """Those that wait: owners take turns, and within an owner its addresses."""

    def __init__(self) -> None:
        self._owners: OrderedDict[Hashable, OrderedDict[str, dict[Turn[Kind], None]]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._owners)

    def has(self, owner: Hashable) -> bool:
        return owner in self._owners

    def put(self, turn: Turn[Kind]) -> None:
        addresses = self._owners.setdefault(turn.member.owner, OrderedDict())
        addresses.setdefault(turn.member.address, {})[turn] = None

    def first_ones(self, may: Callable[[Turn[Kind]], bool]) -> Iterator[Turn[Kind]]:
        """Of each owner the first, in the order of the owners' turns. One that is cancelled waits no more, and is there
        until its task runs."""
        for addresses in self._owners.values():
            for turns in addresses.values():
                first = next((turn for turn in turns if not turn.came.done()), None)
                if first is not None and may(first):
                    yield first
                    break

    def take(self, turn: Turn[Kind]) -> None:
        """Its owner and its address come last next time."""
        self.drop(turn)
        addresses = self._owners.get(turn.member.owner)
        if addresses is not None:
            self._owners.move_to_end(turn.member.owner)
            if turn.member.address in addresses:
                addresses.move_to_end(turn.member.address)

    def drop(self, turn: Turn[Kind]) -> None:
        owner, address = turn.member.owner, turn.member.address
        addresses = self._owners[owner]
        del addresses[address][turn]
        if not addresses[address]:
            del addresses[address]
        if not addresses:
            del self._owners[owner]
