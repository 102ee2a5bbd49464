"""The partitions as consumer groups see them: how many messages there are, stored offsets, and who may commit.

Outlives every process, as the files do. It judges each request that an owner accepts by the history of the group: a
request of a member counts only while nobody who got the partition after it has been accepted.
"""

from __future__ import annotations

import asyncio

from shardd.groups.hub import GroupHub
from shardd.metadata import Topic
from tests.sim.findings import Trace

Turn = tuple[int, int, int]  # incarnation of the group, partition, generation
GroupPartition = tuple[int, int, int]  # namespace, incarnation of the partition, group


class PartitionStore:
    """Shared by all shards of a run."""

    def __init__(self, trace: Trace, loop: asyncio.AbstractEventLoop) -> None:
        self._trace = trace
        self._loop = loop
        self._ends: dict[tuple[int, int], int] = {}  # (namespace, incarnation) -> next offset
        self.offsets: dict[GroupPartition, int] = {}
        self._turns: dict[Turn, int] = {}  # how many members had the partition before, by generation
        self._holders: dict[tuple[int, int], list[str]] = {}  # (group, partition) -> members in their turns
        self._accepted: dict[GroupPartition, int] = {}  # turn of the last accepted request
        self._owners: dict[GroupPartition, int] = {}  # who accepted it; what it knows ends with it
        self._polled: set[tuple[GroupPartition, int | None]] = set()  # and the turns in which messages went out
        self._seen: dict[int, int] = {}  # group -> generation of its machine

    # ---- messages and offsets ----

    def end(self, namespace: int, incarnation: int, more: int) -> int:
        """Next offset after `more` messages have come."""
        key = namespace, incarnation
        self._ends[key] = self._ends.get(key, 0) + more
        return self._ends[key]

    def owner_died(self, owner: int) -> None:
        """Its fences are gone (docs/guarantees.md): an old member may be heard once more."""
        for key in [key for key, each in self._owners.items() if each == owner]:
            del self._owners[key], self._accepted[key]

    def power_cut(self) -> None:
        """All members are gone."""
        self._accepted.clear()
        self._owners.clear()
        self._seen.clear()

    def forget(self, place: GroupPartition) -> None:
        """The group was deleted."""
        for known in (self.offsets, self._accepted, self._owners):
            known.pop(place, None)

    # ---- who has what ----

    def watch(self, hub: GroupHub) -> None:
        """Called after every step of the hub: notes new assignments, and that no partition has two owners."""
        for incarnation, group in hub._groups.items():
            machine = group.machine
            if self._seen.get(incarnation) == machine.generation:
                continue
            self._seen[incarnation] = machine.generation
            owned: list[int] = []
            for member in machine.members():
                owned += member.partitions
                for partition in member.partitions:
                    self._note(incarnation, partition, member.version, member.key)
            if len(owned) != len(set(owned)):
                self._trace.report(f"a group shares its partitions as {sorted(owned)}")

    def _note(self, incarnation: int, partition: int, generation: int, key: str) -> None:
        holders = self._holders.setdefault((incarnation, partition), [])
        if not holders or holders[-1] != key:
            holders.append(key)
        turn = self._turns.setdefault((incarnation, partition, generation), len(holders) - 1)
        if holders[turn] != key:
            self._trace.report(f"partition {partition} has two owners in generation {generation}")

    def accepted(self, owner: int, place: GroupPartition, generation: int) -> None:
        """The owner shard has let a request of a member pass."""
        namespace = place[0]
        turn = self._turn(place, generation)
        if turn is None:
            self._trace.report(f"a request in generation {generation} is accepted, which nobody was given")
            return
        if turn < self._accepted.get(place, 0):
            self._trace.report(
                f"a request of turn {turn} on partition {namespace & 0xFFFFF} is accepted after one of turn "
                f"{self._accepted[place]}: its member has lost the partition"
            )
        self._accepted[place], self._owners[place] = turn, owner

    def polled(self, place: GroupPartition, generation: int) -> None:
        """A member gets messages."""
        self._polled.add((place, self._turn(place, generation)))

    def has_polled(self, place: GroupPartition, generation: int) -> bool:
        """Else what it commits is from a turn before the last member's; the partition has come back to it."""
        return (place, self._turn(place, generation)) in self._polled

    def _turn(self, place: GroupPartition, generation: int) -> int | None:
        namespace, _, group = place
        return self._turns.get((group, namespace & 0xFFFFF, generation))

    def committed(self, place: GroupPartition, offset: int, *, known: bool) -> None:
        """`known`: the owner has heard of the group's members before, so that it could tell an old one."""
        before = self.offsets.get(place, -1)
        if known and offset < before:
            self._trace.report(f"the offset of a group goes back from {before} to {offset}")
        self.offsets[place] = offset

    def has_heard(self, place: GroupPartition) -> bool:
        return place in self._accepted

    # ---- the end ----

    def settled(self, hub: GroupHub, topics: dict[int, Topic], members: dict[int, dict[str, list[int]]]) -> str | None:
        """Why the groups are not at rest; None: they are. `members`: group -> member -> partitions as workers know."""
        for incarnation, group in hub._groups.items():
            machine = group.machine
            shares = {member.key: member.partitions for member in machine.members()}
            if machine.pending_count or group.news() or group.suspects:
                return f"group {incarnation} still moves {machine.pending_count} partitions"
            if incarnation in topics and machine.partitions_count != len(topics[incarnation].partitions):
                return f"group {incarnation} shares {machine.partitions_count} partitions"
            sizes = [len(each) for each in shares.values()]
            if sizes and sum(sizes) != machine.partitions_count:
                return f"group {incarnation} has {machine.partitions_count} partitions and shares {sum(sizes)}"
            if sizes and max(sizes) - min(sizes) > 1:
                return f"group {incarnation} is shared unevenly: {sizes}"
            if shares != members.get(incarnation, {}):
                return f"group {incarnation} is {shares} on shard 0 and {members.get(incarnation, {})} on the workers"
        lost = [incarnation for incarnation, those in members.items() if those and incarnation not in hub._groups]
        return f"groups {lost} have members that shard 0 does not know" if lost else None
