"""What the door for Liftbridge asks the workers, and what it hears: commands in the name of a client
(`shardd/dispatch/door/commands.py`), and tasks that are the server's own (`shardd/dispatch/door/tasks.py`). They have
no form on the classic wire. Where a refusal has a text of Liftbridge, the door gives it; statuses are those here."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final

import msgspec

NAMES_MAX: Final = 1_000  # of streams or partitions in one request
BATCH_MESSAGES_MAX: Final = 1_024
NO_EXPECTED_OFFSET: Final = -1
STREAMS_OF_MEMBER_MAX: Final = 256


class CreateStream(msgspec.Struct, frozen=True):
    """`settings`: those of a CreateStreamRequest that it has, by the names of their fields (Lb 1.2, 6 to 18); sizes in
    bytes, times in milliseconds. 1012/2013 (exists), 2 with a sentence for a setting that is refused, 41."""

    name: str
    subject: str
    group: str
    partitions: int
    settings: dict[str, int | bool] = {}


class DeleteStream(msgspec.Struct, frozen=True):
    """2010, 41; 5 for `__cursors` and `__activity`."""

    name: str


class PauseStream(msgspec.Struct, frozen=True):
    """`partitions` empty: all. 2010, 3007 (nothing is paused then), 41."""

    name: str
    partitions: tuple[int, ...] = ()
    resume_all: bool = False


class ResumeStream(msgspec.Struct, frozen=True):
    """What publishing and `Subscribe(resume=true)` do first. With `resume_all` of the stream all are resumed."""

    name: str
    partition: int


class SetReadonly(msgspec.Struct, frozen=True):
    """`partitions` empty: all. 2010, 3007, 41."""

    name: str
    partitions: tuple[int, ...]
    readonly: bool


class ListStreams(msgspec.Struct, frozen=True):
    """Streams that the client may see. `names` empty: all of them; unknown ones are left out of the answer."""

    names: tuple[str, ...] = ()


class Right(StrEnum):
    """What a caller may do with a stream."""

    POLL = "poll"
    SEND = "send"
    CHANGE = "change"


class RequireRight(msgspec.Struct, frozen=True):
    """Asked before a call is refused for a reason that tells something about a stream. UNAUTHORIZED (41) unless the
    client has the right to one of the streams. A name without a stream, and no name at all, stand for every stream of
    the namespace: only a client with the right to all of them may hear that a stream does not exist."""

    right: Right
    names: tuple[str, ...] = ()


class EventTimes(msgspec.Struct, frozen=True):
    """First and latest, nanoseconds; 0: never."""

    first_ns: int = 0
    latest_ns: int = 0


class StreamInfo(msgspec.Struct, frozen=True):
    """`stream_id`, `topic_id`: where its messages are, for `poll_messages` and `get_partition_bounds`. `native`: made
    in another way (`liftbridge.expose_native`). `paused`, `readonly`: ids of partitions. `pause_times`,
    `readonly_times`: by partition, those that have any."""

    name: str
    subject: str
    group: str
    stream_id: int
    topic_id: int
    incarnation: int
    partitions: int
    created_at_ns: int
    settings: dict[str, int | bool]
    paused: tuple[int, ...] = ()
    readonly: tuple[int, ...] = ()
    pause_times: dict[int, EventTimes] = {}
    readonly_times: dict[int, EventTimes] = {}
    native: bool = False


class Publish(msgspec.Struct, frozen=True):
    """A batch in the form of the classic wire, as SendMessages has it (docs/protocol/messages.md#batch).
    `expected_offset` -1: any. `fsync`: answered when the device has it. 2010, 3007, 41, that of a partition that is
    read-only, that of a wrong expected offset, and those of a send."""

    stream_id: int
    topic_id: int
    incarnation: int
    partition: int
    count: int
    batch: bytes
    expected_offset: int = NO_EXPECTED_OFFSET
    fsync: bool = False


class Published(msgspec.Struct, frozen=True):
    """Message i of the batch has `base_offset + i` and `timestamp_us + i`."""

    base_offset: int
    timestamp_us: int


class JoinGroup(msgspec.Struct, frozen=True):
    """`streams` as they were sent, STREAMS_OF_MEMBER_MAX different ones at most. 2010 (a stream is unknown), 5004
    (already a member), 5 (too many members, streams or groups), 41."""

    group: str
    consumer: str
    streams: tuple[str, ...]


class LeaveGroup(msgspec.Struct, frozen=True):
    """5000 (no such group), 5006 (no such member), 41."""

    group: str
    consumer: str


class GetGroups(msgspec.Struct, frozen=True):
    """Those of `names` that there are."""

    names: tuple[str, ...]


class GroupMember(msgspec.Struct, frozen=True):
    """`assigned`: partitions by stream, ascending."""

    streams: tuple[str, ...]
    assigned: dict[str, tuple[int, ...]]


class GroupInfo(msgspec.Struct, frozen=True):
    """`epoch`: 0 at first, then the number of the metadata record that changed it."""

    name: str
    epoch: int
    members: dict[str, GroupMember]


# --- tasks of the server itself -------------------------------------------------------------------------------------


CURSOR_RECORDS_MAX: Final = 524_288
"""Kept in a partition of `__cursors`. The door writes cursors that are alive again long before."""
CURSOR_SEGMENT_BYTES: Final = 16 << 20


class Prepare(msgspec.Struct, frozen=True):
    """Makes the native stream of the namespace, `__cursors` and `__activity`, as the settings want them."""


class Prepared(msgspec.Struct, frozen=True):
    server_id: str


class AllStreams(msgspec.Struct, frozen=True):
    """Answer: a list of every StreamInfo, for the router; native ones as `expose_native` says."""


class AllUsers(msgspec.Struct, frozen=True):
    """Which users there are."""


class UsersThere(msgspec.Struct, frozen=True):
    """`incarnations`: of all users at the metadata record `index`."""

    index: int
    incarnations: list[int]


class InternalPublish(msgspec.Struct, frozen=True):
    """Into `__cursors` or `__activity`, which clients do not write."""

    name: str
    partition: int
    count: int
    batch: bytes


class InternalPoll(msgspec.Struct, frozen=True):
    """Of `__cursors` or `__activity`, from `offset` on. Answer: PolledMessages of the services."""

    name: str
    partition: int
    offset: int
    count: int


class TellFigures(msgspec.Struct, frozen=True):
    """Counters of the door since it began, instead of those that it has told before. `nats_lost`: by reason, at most
    32."""

    nats_messages: int = 0
    nats_lost: dict[str, int] = {}


class PausePartitions(msgspec.Struct, frozen=True):
    """Automatic pause (Lb 2.6): `resume_all` becomes false."""

    name: str
    partitions: tuple[int, ...]


class PartitionEnds(msgspec.Struct, frozen=True):
    """Answer: the offset of the next message of each, however the others came. 2010, 3007, 3 for too many."""

    name: str
    partitions: tuple[int, ...]


class ExpireMember(msgspec.Struct, frozen=True):
    """A member was silent for too long. Nothing happens when the epoch is another one."""

    group: str
    consumer: str
    epoch: int


class AllGroups(msgspec.Struct, frozen=True):
    """Answer: a list of every GroupInfo, `assigned` empty: for the clocks of their members after a start."""


class ActivityOp(IntEnum):
    """`proto.ActivityStreamOp`."""

    CREATE_STREAM = 0
    DELETE_STREAM = 1
    PAUSE_STREAM = 2
    RESUME_STREAM = 3
    SET_STREAM_READONLY = 4
    JOIN_CONSUMER_GROUP = 5
    LEAVE_CONSUMER_GROUP = 6


class Events(msgspec.Struct, frozen=True):
    """Changes behind the record with this index; the newest EVENTS_MAX are known. Answer: a list of Event."""

    after_index: int


EVENTS_MAX: Final = 1_024  # fewer when they are long (EVENTS_BYTES_MAX of shardd/metadata/liftbridge_state.py)


class Event(msgspec.Struct, frozen=True, array_like=True):
    """`id`: index of the metadata record. `flag`: resumeAll, readonly or expired, as the operation has it. `names`:
    streams of a join."""

    id: int
    op: ActivityOp
    stream: str = ""
    partitions: tuple[int, ...] = ()
    flag: bool = False
    group: str = ""
    consumer: str = ""
    names: tuple[str, ...] = ()
