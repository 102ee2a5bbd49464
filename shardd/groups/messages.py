"""What workers and shard 0 say to each other about consumer groups (bus methods, MessagePack).

Workers ask the hub on shard 0 (`METHOD_HUB`); the hub tells workers the assignments of their connections
(`METHOD_ASSIGN`) and hears in the answer which pending partitions they let go of.
"""

from __future__ import annotations

from typing import Final

import msgspec

METHOD_HUB: Final = "groups"
METHOD_ASSIGN: Final = "group assignments"


class GroupRef(msgspec.Struct, array_like=True, frozen=True):
    """A group: where it is, and its incarnation, which no later group has."""

    stream_id: int
    topic_id: int
    group_id: int
    incarnation: int


class Join(msgspec.Struct, array_like=True, frozen=True, tag="join"):
    """`moves` of the session, here and below: of two shards that claim a connection the later one has it."""

    group: GroupRef
    key: str
    shard: int
    moves: int


class Leave(msgspec.Struct, array_like=True, frozen=True, tag="leave"):
    """The connection leaves these groups, by command or because it is gone. Repeating it changes nothing."""

    groups: list[GroupRef]
    key: str


class Moved(msgspec.Struct, array_like=True, frozen=True, tag="moved"):
    """The connection is on `shard` now."""

    groups: list[GroupRef]
    key: str
    shard: int
    moves: int


class Released(msgspec.Struct, array_like=True, frozen=True, tag="released"):
    """The worker has let go of pending partitions."""

    group: GroupRef
    key: str
    partitions: list[int]


class Announced(msgspec.Struct, array_like=True, frozen=True):
    """A membership as its worker knows it."""

    group: GroupRef
    key: str
    member_id: int
    place: int
    partitions: list[int]
    generation: int
    moves: int


class Announce(msgspec.Struct, array_like=True, frozen=True, tag="announce"):
    """The memberships of a shard, after its own start or after one of shard 0, in pieces."""

    shard: int
    members: list[Announced]
    first: bool = True
    last: bool = True


class Members(msgspec.Struct, array_like=True, frozen=True, tag="members"):
    """Asks for the members of these groups. With `settled` the answer waits until every worker knows its assignment.
    Without `partitions` the answer does not list them."""

    groups: list[GroupRef]
    settled: bool = False
    partitions: bool = True


Question = Join | Leave | Moved | Released | Announce | Members


class MemberEntry(msgspec.Struct, array_like=True, frozen=True):
    id: int
    partitions: list[int]


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """Of each group that `Members` asked about: `members`, in the order of their places; `used_us`, when a member came
    or went last, by the clock of this process of shard 0; 0: none did since it began. `quiet_us`: how long ago that is,
    or that this process began."""

    status: int
    members: list[list[MemberEntry]] = []
    used_us: list[int] = []
    quiet_us: list[int] = []


class Assignment(msgspec.Struct, array_like=True, frozen=True):
    """What one member has. `pending` ones are among `partitions`."""

    group: int
    key: str
    generation: int
    member_id: int
    place: int
    partitions: list[int]
    pending: list[int]


Assignments = list[Assignment]
Releases = list[list[int] | None]
"""For each assignment what was let go of; None: the connection is not here, or is not a member."""

encode: Final = msgspec.msgpack.Encoder().encode
decode_question: Final = msgspec.msgpack.Decoder(Question).decode
decode_answer: Final = msgspec.msgpack.Decoder(Answer).decode
decode_assignments: Final = msgspec.msgpack.Decoder(Assignments).decode
decode_releases: Final = msgspec.msgpack.Decoder(Releases).decode
