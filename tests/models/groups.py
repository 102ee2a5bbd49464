"""A consumer group of the broker: the machine of shard 0 and the memberships of one worker, as the server has them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from shardd.client import wire
from shardd.groups import GroupMachine, Membership

_GROUP: Final = struct.Struct("<III")


class Group:
    """`members`: by the number of their connection."""

    def __init__(self, partitions: int) -> None:
        self.machine = GroupMachine(partitions)
        self.members: dict[int, Membership] = {}

    def join(self, number: int) -> None:
        if number not in self.members:
            self.members[number] = Membership(group=1, stream_id=0, topic_id=0, group_id=0)
            self.machine.join(str(number), 0)
            self._tell()

    def leave(self, number: int) -> None:
        if self.members.pop(number, None) is not None:
            self.machine.leave(str(number), 0)
            self._tell()

    def resize(self, partitions: int) -> None:
        self.machine.resize(partitions, 0)
        self._tell()

    def purged(self, partitions: int) -> None:
        for member in self.members.values():
            for partition in range(partitions):
                member.forget(partition)
        self._tell()

    def expire(self) -> None:
        """The time of hand-overs is over."""
        self.machine.expire(1, 0)
        self._tell()

    def _tell(self) -> None:
        """Until nothing changes: what a member lets go of another one gets."""
        while True:
            for each in self.machine.members():
                self.members[int(each.key)].assign(
                    max(each.version, self.members[int(each.key)].generation),
                    each.id,
                    each.place,
                    list(each.partitions),
                    list(each.pending),
                )
            released = False
            for number, member in self.members.items():
                for partition in member.release_idle():
                    released |= self.machine.complete(str(number), partition)
            if not released:
                return

    def owns(self, number: int, partition: int) -> bool:
        return self.members[number].owns(partition)

    def turn(self, number: int, has_messages: Callable[[int], bool], count: int) -> int | None:
        """The partition of a poll that names none: the next one in turn, preferably one with messages."""
        member = self.members[number]
        own = len(member.usable(self.machine.partitions_count))
        if not count:
            return member.next_partition(self.machine.partitions_count)
        for _ in range(own):
            found = member.next_partition(self.machine.partitions_count)
            if found is not None and has_messages(found):
                return found
        return member.next_partition(self.machine.partitions_count)

    def polled(self, number: int, partition: int, offset: int) -> None:
        member = self.members[number]
        member.begin_poll(partition, auto_commit=False)
        member.end_poll(1, offset)

    def committed(self, number: int, partition: int, offset: int) -> None:
        member = self.members[number]
        member.begin_commit(partition)
        member.end_commit(offset)
        self._tell()

    def details(self) -> bytes:
        members = self.machine.members()
        head = _GROUP.pack(1, self.machine.partitions_count, len(members)) + wire.text8("g")
        return head + b"".join(
            wire.u32(int(each.key)) + wire.u32(len(each.partitions)) + b"".join(map(wire.u32, each.partitions))
            for each in members
        )
