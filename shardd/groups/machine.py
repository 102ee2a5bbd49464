"""Who has which partition of a topic in one consumer group (iggy-protocol 5.4).

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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Move:
    """A hand-over that waits for its owner: the key of the member that gets the partition, and since when."""

    target: str
    since_us: int


@dataclass(slots=True)
class Member:
    """`key` names the connection, `id` is what clients see. `pending` partitions are in `partitions` too."""

    key: str
    id: int
    place: int
    partitions: list[int] = field(default_factory=list)
    pending: dict[int, Move] = field(default_factory=dict)
    version: int = 0


class GroupMachine:
    """Members, assignment and hand-overs of one group. `now_us` is any clock that does not go back."""

    def __init__(self, partitions_count: int, generation: int = 0) -> None:
        self.partitions_count = partitions_count
        self.generation = generation
        self._members: dict[str, Member] = {}
        self._free_places: list[int] = []  # last freed at the end

    # ---- what is so ----

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, key: str) -> bool:
        return key in self._members

    def get(self, key: str) -> Member | None:
        return self._members.get(key)

    def members(self) -> list[Member]:
        """In the order of their places: a freed place is taken again first (iggy-protocol 5.4)."""
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
        taken = {partition for each in self._members.values() for partition in each.partitions}
        kept = [partition for partition in partitions if partition < self.partitions_count and partition not in taken]
        member.partitions = list(dict.fromkeys(kept))

    def leave(self, key: str, now_us: int) -> bool:
        """False when it is no member."""
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
        member = self._members.get(key)
        move = None if member is None else member.pending.get(partition)
        if member is None or move is None:
            return False
        del member.pending[partition]
        member.partitions.remove(partition)
        target = self._members[move.target]
        target.partitions.append(partition)
        self._changed(member, target)
        return True

    def expire(self, now_us: int, timeout_us: int) -> int:
        """Completes what has been pending for `timeout_us`, committed or not; how many."""
        overdue = [
            (member.key, partition)
            for member in self.members()
            for partition, move in member.pending.items()
            if now_us - move.since_us >= timeout_us
        ]
        for key, partition in overdue:
            self.complete(key, partition)
        return len(overdue)

    def rebalance(self, now_us: int) -> None:
        """Gives out free partitions and plans the moves that a fair share needs; plans that are not needed end."""
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
        receivers: dict[str, Member] = {}
        for partition in range(self.partitions_count):
            if partition not in owned:
                poorest = min(members, key=lambda member: len(member.partitions))
                poorest.partitions.append(partition)
                receivers[poorest.key] = poorest
        for member in receivers.values():
            member.partitions.sort()  # clients see the list (record: group-disconnect)

    def _plan_moves(self, members: Sequence[Member], planned: dict[int, Move], now_us: int) -> None:
        """`planned`: moves under way; of a member's partitions they are the first choice, and they keep their age."""
        shares = {member.key: len(member.partitions) for member in members}
        while True:
            richest = max(members, key=lambda member: shares[member.key])
            poorest = min(members, key=lambda member: shares[member.key])
            if shares[richest.key] - shares[poorest.key] < 2:
                return
            movable = [partition for partition in reversed(richest.partitions) if partition not in richest.pending]
            partition = next((each for each in movable if each in planned), movable[0])
            since_us = planned[partition].since_us if partition in planned else now_us
            richest.pending[partition] = Move(poorest.key, since_us)
            shares[richest.key] -= 1
            shares[poorest.key] += 1
