"""The replicated metadata: immutable values, shared structure (HAMT maps), no clock, no I/O.

Every worker holds one `State`; shard 0 alone makes the records that change it. Ids start at 0; freed ids of
streams, topics, groups and users are given out again, last freed first (docs/protocol/primitives.md#ids).

Values never lead back to themselves: `gc=False`, so that the collector has nothing to look at in 100,000 partitions
(docs/adr/0038-bounded-steps.md).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from immutables import Map

from shardd.metadata.liftbridge_state import NO_LIFTBRIDGE, Liftbridge, LiftbridgeStream
from shardd.protocol.permissions import Permissions, StreamPermissions, TopicPermissions

__all__ = [
    "EMPTY",
    "ConsumerGroup",
    "Partition",
    "Permissions",
    "Producer",
    "State",
    "Stream",
    "StreamPermissions",
    "Token",
    "Topic",
    "TopicPermissions",
    "User",
    "has_expired",
]


ROOT_USER_ID: Final = 0
EMPTY: Final[Map[Any, Any]] = Map()  # one for all


class Partition(msgspec.Struct, frozen=True, gc=False):
    """Id is the position in `Topic.partitions`. `slot`: place in the shared statistics table."""

    id: int
    created_at_us: int
    incarnation: int
    slot: int


class ConsumerGroup(msgspec.Struct, frozen=True, gc=False):
    """The definition only: members and assignments are in memory of shard 0 (`shardd.groups`). `owner`: incarnation of
    the user that made it; 0: it counts for no user."""

    id: int
    name: str
    created_at_us: int
    incarnation: int
    owner: int = 0

    @property
    def offsets_id(self) -> int:
        """What its stored offsets are filed under: never that of an earlier group with the same id."""
        return self.incarnation & 0xFFFF_FFFF


class Topic(msgspec.Struct, frozen=True, gc=False):
    """`message_expiry_us` and `max_topic_size_bytes` are resolved values (2^64-1 = never, unlimited). `settings`: those
    of `shardd.protocol.topic_setting_table` that are set, canonical; the others follow the server's. `liftbridge`: what
    it is as a stream of Liftbridge; None: it is none, or what its name says (shardd/metadata/liftbridge.py)."""

    id: int
    name: str
    created_at_us: int
    incarnation: int
    compression: int
    message_expiry_us: int
    max_topic_size_bytes: int
    replication_factor: int
    partitions: tuple[Partition, ...] = ()
    groups: Map[int, ConsumerGroup] = EMPTY
    group_ids: Map[str, int] = EMPTY
    free_group_ids: tuple[int, ...] = ()
    settings: Map[str, str] = EMPTY
    liftbridge: LiftbridgeStream | None = None


class Stream(msgspec.Struct, frozen=True, gc=False):
    id: int
    name: str
    created_at_us: int
    incarnation: int
    topics: Map[int, Topic] = EMPTY
    topic_ids: Map[str, int] = EMPTY
    free_topic_ids: tuple[int, ...] = ()  # last freed at the end


class Token(msgspec.Struct, frozen=True, gc=False):
    """A personal access token. `digest`: `shardd.security.tokens.digest` of the secret; `expires_at_us` 0: never."""

    name: str
    digest: bytes
    expires_at_us: int


def has_expired(token: Token, now_us: int) -> bool:
    return 0 < token.expires_at_us <= now_us


class Producer(msgspec.Struct, frozen=True, gc=False):
    """A producer whose batches are stored once (docs/adr/0073). Its id is the record that made it, so none is given out
    twice. `begun`: the record that began its epoch; `renewed_at_us`: from then on it counts as idle."""

    id: int
    epoch: int
    begun: int
    renewed_at_us: int


class User(msgspec.Struct, frozen=True, gc=False):
    """`password_hash` is a PHC string (argon2id). `incarnation`: the record that made the user; ids are reused.
    `revoked`: access tokens that were given back, by id, until they expire (microseconds); `access_mark`: the record
    that ended all of them at once, 0: none did; `kept_access`: the one that the last change of the password left, by
    id, b"": it left none."""

    id: int
    name: str
    created_at_us: int
    active: bool
    password_hash: str
    permissions: Permissions | None
    incarnation: int = 0
    tokens: Map[str, Token] = EMPTY
    revoked: Map[bytes, int] = EMPTY
    access_mark: int = 0
    producers: Map[int, Producer] = EMPTY
    kept_access: bytes = b""


class GroupShares(msgspec.Struct, frozen=True):
    """Counts of consumer groups (`shardd.metadata.group_shares`). `gone`: of users that are gone; `of`: of those that
    there are and that have some, by incarnation."""

    total: int = 0
    gone: int = 0
    of: Map[int, int] = EMPTY


NO_GROUPS: Final = GroupShares()


class State(msgspec.Struct, frozen=True):
    """`index` and `digest` are those of the last applied record (index 0, 32 zero bytes: empty log)."""

    index: int = 0
    digest: bytes = bytes(32)
    streams: Map[int, Stream] = EMPTY
    stream_ids: Map[str, int] = EMPTY
    free_stream_ids: tuple[int, ...] = ()
    users: Map[int, User] = EMPTY
    user_ids: Map[str, int] = EMPTY
    free_user_ids: tuple[int, ...] = ()
    token_owners: Map[bytes, tuple[int, str]] = EMPTY  # digest -> user id, name of the token
    producer_owners: Map[int, int] = EMPTY  # id of a producer -> user id
    free_slots: tuple[int, ...] = ()
    next_slot: int = 0
    liftbridge: Liftbridge = NO_LIFTBRIDGE
    groups: GroupShares = NO_GROUPS
