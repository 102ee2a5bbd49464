"""One membership as the worker of its connection knows it: what to poll next, and which partitions it may let go of.

The worker alone knows what was polled, so it answers for "may still be at work on it": shard 0 marks a partition
pending, and the worker releases it when nothing polled from it is uncommitted and no request on it is under way. A
release is binding: the partition is lost here at that moment.
"""

from __future__ import annotations

import msgspec

from shardd.engine import SeatPartition, SeatState


class Mark(msgspec.Struct, array_like=True):
    """Highest offset that was polled from a partition and highest that was committed since it is owned."""

    polled: int | None = None
    committed: int | None = None

    @property
    def settled(self) -> bool:
        return self.polled is None or (self.committed is not None and self.committed >= self.polled)


class Membership(msgspec.Struct, array_like=True):
    """`group` is the incarnation of the group; the ids say where it is. Moves with the socket as MessagePack.

    `confirmed`: shard 0 has answered the join. `busy`: partition of the request that is under way on the connection.
    """

    group: int
    stream_id: int
    topic_id: int
    group_id: int
    confirmed: bool = False
    member_id: int = 0
    place: int = 0
    generation: int = 0
    partitions: list[int] = []
    pending: list[int] = []
    rotation: int = 0  # this, `last_polled` and `marks` are in the engine's seat while it has one (`lend`)
    last_polled: int | None = None
    busy: int | None = None
    busy_auto_commit: bool = False
    marks: dict[int, Mark] = {}

    def assign(self, generation: int, member_id: int, place: int, partitions: list[int], pending: list[int]) -> bool:
        """Takes an assignment; False when a later one was taken already."""
        if generation < self.generation:
            return False
        self.confirmed = True
        self.generation, self.member_id, self.place = generation, member_id, place
        self.partitions, self.pending = partitions, pending
        own = set(partitions)
        self.marks = {partition: mark for partition, mark in self.marks.items() if partition in own}
        return True

    def owns(self, partition: int) -> bool:
        """Also when it is pending."""
        return partition in self.partitions

    def usable(self, partitions_count: int) -> list[int]:
        """The own partitions that are not pending: what polls without a partition rotate over."""
        pending = set(self.pending)
        return [each for each in self.partitions if each not in pending and each < partitions_count]

    def lend(self, partitions_count: int) -> list[SeatPartition]:
        """What the engine may work on alone."""
        lent = []
        for each in self.usable(partitions_count):
            mark = self.marks.get(each)
            if mark is None:
                lent.append(SeatPartition((each, -1, -1)))
            else:
                polled, committed = (-1 if at is None else at for at in (mark.polled, mark.committed))
                lent.append(SeatPartition((each, polled, committed)))
        return lent

    def take_back(self, state: SeatState) -> None:
        """What became of a lent membership."""
        self.rotation = state.rotation
        self.last_polled = None if state.last_polled < 0 else state.last_polled
        self.busy, self.busy_auto_commit = None if state.busy < 0 else state.busy, state.auto_commit
        for each in state.partitions:
            if each.polled >= 0:
                self.marks[each.partition] = Mark(each.polled, None if each.committed < 0 else each.committed)

    def next_partition(self, partitions_count: int) -> int | None:
        """The next of the own partitions that are not pending; one step of the rotation. None: there is none."""
        own = self.usable(partitions_count)
        if not own:
            return None
        place = self.rotation % len(own)
        self.rotation = (place + 1) % len(own)
        return own[place]

    def current_partition(self) -> int | None:
        """Where a commit without a partition goes: to the last one polled, else to the next one of the rotation."""
        if self.last_polled is not None:
            return self.last_polled
        pending = set(self.pending)
        own = [each for each in self.partitions if each not in pending]
        return own[self.rotation % len(own)] if own else None

    def begin_poll(self, partition: int, *, auto_commit: bool) -> None:
        self.last_polled = self.busy = partition
        self.busy_auto_commit = auto_commit

    def end_poll(self, count: int, last_offset: int) -> None:
        """The poll under way was answered with `count` messages; nothing happens when none is."""
        partition, self.busy = self.busy, None
        if partition is None or count == 0 or not self.owns(partition):
            return
        mark = self.marks.setdefault(partition, Mark())
        mark.polled = last_offset if mark.polled is None else max(mark.polled, last_offset)
        if self.busy_auto_commit:
            mark.committed = last_offset

    def begin_commit(self, partition: int) -> None:
        self.busy = partition
        self.busy_auto_commit = False

    def end_commit(self, offset: int | None) -> None:
        """The commit under way has stored `offset`, or (None) failed."""
        partition, self.busy = self.busy, None
        if partition is not None and offset is not None and partition in self.marks:
            self.marks[partition].committed = offset

    def forget(self, partition: int) -> None:
        """The partition was purged: its messages are gone, so nobody can be at work on them."""
        self.marks.pop(partition, None)

    def release_idle(self) -> list[int]:
        """Lets go of the pending partitions that nobody works on any more, and tells which."""
        released = {
            partition: None
            for partition in self.pending
            if partition != self.busy and (partition not in self.marks or self.marks[partition].settled)
        }
        if released:
            self.pending = [each for each in self.pending if each not in released]
            self.partitions = [each for each in self.partitions if each not in released]
            for partition in released:
                self.marks.pop(partition, None)
        return list(released)
