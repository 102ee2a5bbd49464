"""Who has which partition of a topic in one consumer group (docs/protocol/groups.md#assignment).

Rules:
- Every partition has exactly one owner while there are members.
- A free partition goes to the member with the smallest share, at once.
- While two members differ by two or more, a partition moves from the richest to the poorest: from the end of its list.
- A partition that has an owner moves in two steps: it becomes *pending*, and moves when the owner lets go of it
  (`complete`) or after a time (`expire`). A pending partition counts for its target already.
- A move that has lost its reason before it was done is called off: nothing moves without need.

Every change gets a new `generation`; `Member.version` is the generation of the last change that concerned the member.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec


class Move(NamedTuple):
    """A hand-over that waits for its owner: the key of the member that gets the partition, and since when."""

    target: str
    since_us: int


class Member(msgspec.Struct):
    """`key` names the connection, `id` is what clients see. `pending` partitions are in `partitions` too."""

    key: str
    id: int
    place: int
    partitions: list[int] = msgspec.field(default_factory=list)
    pending: dict[int, Move] = msgspec.field(default_factory=dict)
    version: int = 0


class GroupMachine:
    """Members, assignment and hand-overs of one group. `now_us` is any clock that does not go back."""

    def __init__(self, partitions_count: int, generation: int = 0) -> None:
        self.partitions_count = partitions_count
        self.generation = generation
        self._members: dict[str, Member] = {}
        self._free_places: list[int] = []  # last freed at the end
        self._owned: set[int] | None = None  # what has an owner, while members are restored one by one

    # ---- what is so ----

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, key: str) -> bool:
        return key in self._members

    def get(self, key: str) -> Member | None:
        return self._members.get(key)

    def members(self) -> list[Member]:
        """In the order of their places: a freed place is taken again first (docs/protocol/groups.md#members)."""
        return sorted(self._members.values(), key=lambda member: member.place)

    @property
    def pending_count(self) -> int:
        return sum(len(member.pending) for member in self._members.values())

    # ---- changes ----

    def join(self, key: str, now_us: int) -> Member:
        """The new member, or the one that it is already (nothing changes then)."""
        member = self._members.get(key)
        if member is None:
            member = self._enter(key, 1 + max((each.id for each in self._members.values()), default=-1), None)
            self.rebalance(now_us)
        return member

    def restore(self, key: str, member_id: int, place: int, partitions: Iterable[int], generation: int) -> None:
        """Enters a member as it was known before this machine was made; `rebalance` follows when all are in.

        What another member has been restored with already is left out; later generations are to come first.
        """
        self.generation = max(self.generation, generation) + 1
        if key in self._members:
            return
        if any(member.id == member_id for member in self._members.values()):
            member_id = 1 + max(member.id for member in self._members.values())
        member = self._enter(key, member_id, place)
        if self._owned is None:
            self._owned = {partition for each in self._members.values() for partition in each.partitions}
        kept = {each: None for each in partitions if each < self.partitions_count and each not in self._owned}
        self._owned.update(kept)
        member.partitions = list(kept)

    def leave(self, key: str, now_us: int) -> bool:
        """False when it is not a member."""
        member = self._members.pop(key, None)
        if member is None:
            return False
        self._free_places.append(member.place)
        self.rebalance(now_us)
        return True

    def resize(self, partitions_count: int, now_us: int) -> None:
        """The topic has so many partitions now: 0 .. n-1."""
        self.partitions_count = partitions_count
        for member in self._members.values():
            kept = [partition for partition in member.partitions if partition < partitions_count]
            if len(kept) != len(member.partitions):
                member.partitions = kept
                member.pending = {each: move for each, move in member.pending.items() if each < partitions_count}
                self._changed(member)
        self.rebalance(now_us)

    def complete(self, key: str, partition: int) -> bool:
        """The owner has let go of a pending partition: it goes to the end of the target's list. False: not pending."""
        return not self.complete_all(key, [partition])

    def complete_all(self, key: str, partitions: Iterable[int]) -> list[int]:
        """`complete` for many in one pass; those that are not pending."""
        member = self._members.get(key)
        if member is None:
            return list(partitions)
        completed, refused = dict[int, Move](), list[int]()
        for partition in partitions:
            move = member.pending.pop(partition, None)
            if move is None:
                refused.append(partition)
            else:
                completed[partition] = move
        if completed:
            member.partitions = [each for each in member.partitions if each not in completed]
            concerned = {key: member}
            for partition, move in completed.items():
                target = concerned[move.target] = self._members[move.target]
                target.partitions.append(partition)
            self._changed(*concerned.values())
        return refused

    def expire(self, now_us: int, timeout_us: int) -> int:
        """Completes what has been pending for `timeout_us`, committed or not; how many."""
        count = 0
        for member in self.members():
            overdue = [each for each, move in member.pending.items() if now_us - move.since_us >= timeout_us]
            self.complete_all(member.key, overdue)
            count += len(overdue)
        return count

    def rebalance(self, now_us: int) -> None:
        """Gives out free partitions and plans the moves that a fair share needs; plans that are not needed end."""
        self._owned = None
        members = self.members()
        if not members:
            return
        before = [(len(member.partitions), dict(member.pending)) for member in members]
        planned = {partition: move for member in members for partition, move in member.pending.items()}
        for member in members:
            member.pending = {}
        self._give_out_free(members)
        self._plan_moves(members, planned, now_us)
        self._changed(
            *(
                member
                for member, (size, pending) in zip(members, before, strict=True)
                if len(member.partitions) != size or member.pending != pending
            )
        )

    # ---- inside ----

    def _enter(self, key: str, member_id: int, place: int | None) -> Member:
        used = {member.place for member in self._members.values()}
        if place is None or place in used:
            place = self._free_places.pop() if self._free_places else len(self._members)
            while place in used:  # places of restored members need not be dense
                place += 1
        elif place in self._free_places:
            self._free_places.remove(place)
        member = Member(key, member_id, place)
        self._members[key] = member
        self._changed(member)
        return member

    def _changed(self, *members: Member) -> None:
        if members:
            self.generation += 1
        for member in members:
            member.version = self.generation

    def _give_out_free(self, members: Sequence[Member]) -> None:
        owned = {partition for member in members for partition in member.partitions}
        if len(owned) == self.partitions_count:
            return
        shares = [(len(member.partitions), number) for number, member in enumerate(members)]
        heapq.heapify(shares)  # the poorest first, of equals the one with the lowest place
        receivers: set[int] = set()
        for partition in range(self.partitions_count):
            if partition not in owned:
                share, poorest = shares[0]
                members[poorest].partitions.append(partition)
                receivers.add(poorest)
                heapq.heapreplace(shares, (share + 1, poorest))
        for number in receivers:
            members[number].partitions.sort()  # clients see the list (golden: group-disconnect)

    def _plan_moves(self, members: Sequence[Member], planned: dict[int, Move], now_us: int) -> None:
        """`planned`: moves under way; of a member's partitions they are the first choice, and they keep their age."""
        richest = [(-len(member.partitions), number) for number, member in enumerate(members)]
        poorest = [(len(member.partitions), number) for number, member in enumerate(members)]
        heapq.heapify(richest)
        heapq.heapify(poorest)
        movable: dict[int, Iterator[int]] = {}
        # Nobody both gives and takes: who has given is at most one below the richest, who has taken at most one above
        # the poorest. So each heap has to know of its own side only.
        while (most := -richest[0][0]) - (least := poorest[0][0]) >= 2:
            giver, taker = richest[0][1], poorest[0][1]
            if giver not in movable:
                movable[giver] = _in_order_of_choice(members[giver].partitions, planned)
            partition = next(movable[giver])
            since_us = planned[partition].since_us if partition in planned else now_us
            members[giver].pending[partition] = Move(members[taker].key, since_us)
            heapq.heapreplace(richest, (1 - most, giver))
            heapq.heapreplace(poorest, (least + 1, taker))


def _in_order_of_choice(partitions: Sequence[int], planned: Mapping[int, Move]) -> Iterator[int]:
    """What a member gives away first: moves under way, then the rest, each from the end of its list."""
    yield from (each for each in reversed(partitions) if each in planned)
    yield from (each for each in reversed(partitions) if each not in planned)
