"""The replicated metadata: immutable values, shared structure (HAMT maps), no clock, no I/O.

Every worker holds one `State`; shard 0 alone makes the records that change it. Ids start at 0; freed ids of
streams, topics and users are given out again, last freed first (iggy-protocol 3.4).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from immutables import Map


@dataclass(frozen=True, slots=True)
class Partition:
    """Id is the position in `Topic.partitions`. `slot`: place in the shared statistics table."""

    id: int
    created_at_us: int
    incarnation: int
    slot: int


@dataclass(frozen=True, slots=True)
class Topic:
    """`message_expiry_us` and `max_topic_size_bytes` are resolved values (2^64-1 = never, unlimited)."""

    id: int
    name: str
    created_at_us: int
    incarnation: int
    compression: int
    message_expiry_us: int
    max_topic_size_bytes: int
    replication_factor: int
    partitions: tuple[Partition, ...] = ()


@dataclass(frozen=True, slots=True)
class Stream:
    id: int
    name: str
    created_at_us: int
    incarnation: int
    topics: Map[int, Topic] = field(default_factory=Map)
    topic_ids: Map[str, int] = field(default_factory=Map)
    free_topic_ids: tuple[int, ...] = ()  # last freed at the end


@dataclass(frozen=True, slots=True)
class TopicPermissions:
    manage_topic: bool = False
    read_topic: bool = False
    poll_messages: bool = False
    send_messages: bool = False


@dataclass(frozen=True, slots=True)
class StreamPermissions:
    manage_stream: bool = False
    read_stream: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False
    topics: Map[int, TopicPermissions] = field(default_factory=Map)


@dataclass(frozen=True, slots=True)
class Permissions:
    manage_servers: bool = False
    read_servers: bool = False
    manage_users: bool = False
    read_users: bool = False
    manage_streams: bool = False
    read_streams: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False
    streams: Map[int, StreamPermissions] = field(default_factory=Map)


@dataclass(frozen=True, slots=True)
class User:
    """`password_hash` is a PHC string (argon2id)."""

    id: int
    name: str
    created_at_us: int
    active: bool
    password_hash: str
    permissions: Permissions | None


@dataclass(frozen=True, slots=True)
class State:
    """`index` and `digest` are those of the last applied record (index 0, 32 zero bytes: empty log)."""

    index: int = 0
    digest: bytes = bytes(32)
    streams: Map[int, Stream] = field(default_factory=Map)
    stream_ids: Map[str, int] = field(default_factory=Map)
    free_stream_ids: tuple[int, ...] = ()
    users: Map[int, User] = field(default_factory=Map)
    user_ids: Map[str, int] = field(default_factory=Map)
    free_user_ids: tuple[int, ...] = ()
    free_slots: tuple[int, ...] = ()
    next_slot: int = 0
