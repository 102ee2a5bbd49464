"""What the metadata know of Liftbridge (docs/adr/0092-liftbridge-metadata.md): values of `state.py`, as immutable.

A stream of Liftbridge is a topic. Marks of partitions are runs: a thousand that are paused together are one. What the
members of a consumer group have is not stored by partition: it follows from the shares, by calculation
(liftbridge_groups.py)."""

from __future__ import annotations

from typing import Final

import msgspec
from immutables import Map

NAME_BYTES_MAX: Final = 511  # of a stream: "STREAM/TOPIC" has the names of both
SUBJECT_BYTES_MAX: Final = 4_096
ID_BYTES_MAX: Final = 255  # of groups, consumers, queue groups
RUNS_MAX: Final = 4_096  # of one kind, of one stream
NO_OWNER: Final = 0
MEMBERS_MAX: Final = 2_048  # of one group
GROUP_SIZE_MAX: Final = 16_384  # members of a group and the streams of each, all in all
GROUPS_SIZE_MAX: Final = 65_536  # the same of all groups, which bounds their number: a group has a member with a stream
USER_SIZE_MAX: Final = 8_192  # the same of the members that one user has made
EVENTS_BYTES_MAX: Final = 1 << 20  # of all events that are kept, as `Activity.cost_bytes` counts
_EVENT_BYTES: Final = 96

Range = tuple[int, int]  # partitions from the first on, before the second


class Run(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Partitions `first` to `end` - 1, whose mark was changed `first_ns` and `latest_ns`: the same for all of them."""

    first: int
    end: int
    on: bool
    first_ns: int
    latest_ns: int


class LiftbridgeStream(msgspec.Struct, frozen=True, gc=False):
    """`settings`: those of its creation, by the names of Liftbridge (shardd/protocol/liftbridge/requests.py).
    `resume_all`: with one partition all are resumed."""

    name: str
    subject: str
    group: str
    settings: tuple[tuple[str, int | bool], ...] = ()
    paused: tuple[Run, ...] = ()
    readonly: tuple[Run, ...] = ()
    resume_all: bool = False


class Share(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How many partitions of a stream a member has; `base`: what it had of other streams when they were shared out."""

    consumer: str
    base: int
    count: int


class SharedStream(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A stream as a group has shared it out. `shares`: of all its subscribers, by their ids."""

    partitions: int
    shares: tuple[Share, ...]


class Charge(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The user that has made a member, and what it counts there until it leaves: itself and its streams. `owner`: the
    incarnation of the user, NO_OWNER: the member counts for no user."""

    user_id: int
    size: int
    owner: int = NO_OWNER


class LiftbridgeGroup(msgspec.Struct, frozen=True, gc=False):
    """`members`: by id, the names of their streams in order. `loads`: partitions of each member, of all its streams.
    `size`: members and their streams. `charges`: of each member."""

    name: str
    epoch: int
    members: Map[str, tuple[str, ...]] = Map()
    streams: Map[str, SharedStream] = Map()
    loads: Map[str, int] = Map()
    charges: Map[str, Charge] = Map()
    size: int = 0


class Activity(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An event of the activity stream; `op`: as ActivityOp. `index`: of the record."""

    index: int
    op: int
    stream: str = ""
    partitions: tuple[Range, ...] = ()
    flag: bool = False
    group: str = ""
    consumer: str = ""
    names: tuple[str, ...] = ()

    @property
    def cost_bytes(self) -> int:
        names = sum(len(name) + 8 for name in self.names)
        return (
            _EVENT_BYTES + len(self.stream) + 16 * len(self.partitions) + len(self.group) + len(self.consumer) + names
        )


class Liftbridge(msgspec.Struct, frozen=True):
    """`home`: id and incarnation of the native stream whose topics are the streams of Liftbridge. `names`: of every
    one, the ids of its native stream and its topic. `groups_of`: the groups that have subscribed to a stream, in
    order. `charged`: what members count, by owner, of users that there are; `charged_gone`: of users that are gone;
    `charged_all`: all in all. `events`: the newest, oldest first."""

    home: tuple[int, int] | None = None
    server_id: str = ""
    names: Map[str, tuple[int, int]] = Map()
    groups: Map[str, LiftbridgeGroup] = Map()
    groups_of: Map[str, tuple[str, ...]] = Map()
    groups_size: int = 0
    charged: Map[int, int] = Map()
    charged_gone: int = 0
    charged_all: int = 0
    events: tuple[Activity, ...] = ()
    events_bytes: int = 0


NO_LIFTBRIDGE: Final = Liftbridge()
