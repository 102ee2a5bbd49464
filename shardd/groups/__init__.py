"""Consumer groups as pure state machines: no sockets, no clock, no metadata; time comes in (docs/protocol/groups.md).

`GroupMachine` decides on shard 0 who has which partition. `Membership` is what the worker of a connection knows about
one membership: the assignment, the rotation of polls, and what was polled and not committed yet.
"""

from shardd.groups.machine import GroupMachine, Member, Move
from shardd.groups.membership import Mark, Membership

__all__ = ["GroupMachine", "Mark", "Member", "Membership", "Move"]
