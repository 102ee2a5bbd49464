"""What the server knows and tells: values of the administration. Sizes in bytes, times in microseconds since 1970."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Stream:
    id: int
    created_at_us: int
    topics_count: int
    size_bytes: int
    messages_count: int
    name: str


@dataclass(frozen=True)
class Partition:
    """`current_offset`: that of the last message, 0 when it is empty."""

    id: int
    created_at_us: int
    segments_count: int
    current_offset: int
    size_bytes: int
    messages_count: int


@dataclass(frozen=True)
class Topic:
    """`partitions`: () in lists."""

    id: int
    created_at_us: int
    partitions_count: int
    message_expiry_us: int
    compression: int
    max_topic_size_bytes: int
    replication_factor: int
    size_bytes: int
    messages_count: int
    name: str
    partitions: tuple[Partition, ...] = ()


@dataclass(frozen=True)
class Member:
    id: int
    partitions: tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """`partitions_count`: of the topic. `members`: () in lists."""

    id: int
    partitions_count: int
    members_count: int
    name: str
    members: tuple[Member, ...] = ()


@dataclass(frozen=True)
class StoredOffset:
    """`current`: offset of the last message there is."""

    partition: int
    current: int
    stored: int


@dataclass(frozen=True)
class TopicRights:
    manage_topic: bool = False
    read_topic: bool = False
    poll_messages: bool = False
    send_messages: bool = False


@dataclass(frozen=True)
class StreamRights:
    """`topics`: by id."""

    manage_stream: bool = False
    read_stream: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False
    topics: dict[int, TopicRights] = field(default_factory=dict)


@dataclass(frozen=True)
class Permissions:
    """`streams`: by id."""

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
    streams: dict[int, StreamRights] = field(default_factory=dict)


@dataclass(frozen=True)
class User:
    """`permissions`: None in lists, and for who has none."""

    id: int
    created_at_us: int
    active: bool
    name: str
    permissions: Permissions | None = None


@dataclass(frozen=True)
class Token:
    """`expires_at_us` 0: never."""

    name: str
    expires_at_us: int


@dataclass(frozen=True)
class Connected:
    """A client of the server. `memberships`: ids of stream, topic and group; () in lists."""

    id: int
    user_id: int | None
    transport: int
    address: str
    memberships_count: int
    memberships: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class ClusterNode:
    name: str
    ip: str
    tcp_port: int
    leader: bool
    healthy: bool


@dataclass(frozen=True)
class Cluster:
    name: str
    nodes: tuple[ClusterNode, ...]


@dataclass(frozen=True)
class Stats:
    process_id: int
    cpu_percent: float
    total_cpu_percent: float
    memory_bytes: int
    total_memory_bytes: int
    available_memory_bytes: int
    run_time_us: int
    start_time_us: int
    read_bytes: int
    written_bytes: int
    messages_size_bytes: int
    streams_count: int
    topics_count: int
    partitions_count: int
    segments_count: int
    messages_count: int
    clients_count: int
    groups_count: int
    hostname: str
    os_name: str
    os_version: str
    kernel_version: str
    protocol_version: str
    threads_count: int
    free_disk_bytes: int
    total_disk_bytes: int


@dataclass(frozen=True)
class Extension:
    """A command that only shardd has."""

    code: int
    version: int
    name: str


@dataclass(frozen=True)
class Extensions:
    server_version: str
    commands: tuple[Extension, ...]


@dataclass(frozen=True)
class UnusedOffset:
    """What a consumer, or with `group` a group, has stored. `user`: whose it is, None: nobody's. `members`: a group
    that has some now. `may_come_back`: a group whose last member went lately, or that none has joined since the server
    started lately. A deletion leaves both."""

    group: bool
    consumer: int
    stored: int
    used_us: int
    user: int | None
    members: bool
    may_come_back: bool


@dataclass(frozen=True)
class UnusedOffsets:
    """`next_first`: what the next page is asked for with; 0: there is none."""

    next_first: int
    offsets: tuple[UnusedOffset, ...]


@dataclass(frozen=True)
class TopicSetting:
    """`is_set`: for this topic; else `value` is the server's default."""

    key: str
    value: str
    is_set: bool


@dataclass(frozen=True)
class SegmentBounds:
    start: int
    end: int
    size_bytes: int
    sealed: bool
    layout: int


@dataclass(frozen=True)
class PartitionBounds:
    """Offsets [first, end) can be polled, those below `durable_end` are on the device. `state`: what sends get."""

    id: int
    state: int
    incarnation: int
    first: int
    end: int
    durable_end: int
    size_bytes: int
    messages_count: int
    segments: tuple[SegmentBounds, ...] = ()


@dataclass(frozen=True)
class TopicBounds:
    stream_id: int
    topic_id: int
    stream: str
    topic: str
    partitions: tuple[PartitionBounds, ...]


@dataclass(frozen=True)
class ShardMetrics:
    shard: int
    generation: int
    clock_us: int
    values: dict[str, int]
    latency: tuple[int, ...]


@dataclass(frozen=True)
class Metrics:
    """`counters`: names of figures that only grow; the others are of the moment. `latency`: buckets, powers of 2 us."""

    time_us: int
    started_at_us: int
    shards_count: int
    counters: frozenset[str]
    shards: tuple[ShardMetrics, ...]
