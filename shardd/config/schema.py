"""The settings as every part of the server sees them: frozen, typed, in base units.

Texts such as "1 GiB" or "30 s" exist only in files and the environment; `keys.py` lists every key with its text form.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

NEVER = 2**64 - 1
"""Wire value of "never expires" and of "unlimited" (docs/protocol/primitives.md#topic-values)."""
ACK_LEVELS: Final = ("memory", "written", "durable")


class Socket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tcp.socket.*`; the other values apply only when `override_defaults` is set. `linger_ms` 0: not set."""

    override_defaults: bool
    recv_buffer_size_bytes: int
    send_buffer_size_bytes: int
    keepalive: bool
    nodelay: bool
    linger_ms: int


class Tcp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tcp.*`. `address` is "host:port" or "[v6]:port" with a literal IP address; port 0 lets the kernel choose."""

    address: str
    socket_migration: bool
    pipeline_window_requests: int
    socket: Socket

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


class Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`server.*`: limits of connections, whatever they come over. `idle_timeout_ms` 0: none.

    `connections_per_address_max`, `connections_before_login_max` 0: `most_connections`.
    """

    connections_max: int
    connections_per_address_max: int
    connections_before_login_max: int
    login_timeout_ms: int
    login_attempts_max: int
    idle_timeout_ms: int
    request_timeout_ms: int
    partial_frame_timeout_ms: int
    slow_reader_timeout_ms: int

    @property
    def most_connections(self) -> int:
        """What one address, or all that are not logged in, may take: a tenth stays for the others."""
        return max(1, self.connections_max * 9 // 10)


class Logging(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`level`: trace, debug, info, warn, error or off. `format`: text or json."""

    level: str
    format: str


class Sharding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`cpu_allocation` as written; `cpus.allocate_cpus` turns it into CPU numbers."""

    cpu_allocation: str


class PartitionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`system.partition.*`. `ack`: memory, written or durable; `enforce_fsync` true always comes with durable.

    The two bounds `..to_save..` are those of a partition's journal at `memory`; `consumer_offsets_max` is that of the
    offsets that are stored in it.
    """

    ack: str
    enforce_fsync: bool
    sync_interval_ms: int
    messages_required_to_save: int
    size_of_messages_required_to_save_bytes: int
    consumer_offsets_max: int


class ScrubberSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`system.scrubber.*`: whether sealed segments are read again in the background, how much of them in a second (each
    worker), and how long it rests between two rounds."""

    enabled: bool
    rate_bytes: int
    pause_ms: int


class TrashSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`system.trash.*`: with more names in the trash, deletions and purges wait."""

    names_max: int


class Watchdog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`system.watchdog.*`: for how long a worker without a sign of life is let alone while it waits for its device, and
    while it gets no CPU; 0: no longer than any other one."""

    device_stall_limit_ms: int
    starvation_limit_ms: int


class MessageSaver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`message_saver.*`: how often journals are written, and whether what is written is synced as well."""

    enabled: bool
    enforce_fsync: bool
    interval_ms: int


class System(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`system.*`. `io_engine`: auto, io_uring or epoll. `topic_*` are the server defaults that CREATE_TOPIC resolves
    (`NEVER`: never, unlimited). `disk_reserve_bytes`: with less free, sends are refused; 0: until the disk is full.
    `group`: who may read the messages, a name or a number; "": nobody else."""

    path: str
    group: str
    runtime_path: str
    io_engine: str
    logging: Logging
    sharding: Sharding
    segment_size_bytes: int
    topic_max_size_bytes: int
    topic_message_expiry_us: int
    partition: PartitionSettings
    memory_pool_size_bytes: int
    disk_reserve_bytes: int
    trash: TrashSettings
    scrubber: ScrubberSettings
    watchdog: Watchdog

    @property
    def data_directory(self) -> Path:
        """The base directory, absolute."""
        return Path(self.path).absolute()

    @property
    def runtime_directory(self) -> Path:
        return self.data_directory / self.runtime_path


class PersonalAccessToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`personal_access_token.*`: how many a user may own, and how often expired ones are removed."""

    max_tokens_per_user: int
    cleaner_enabled: bool
    cleaner_interval_ms: int


class ConsumerGroupSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`consumer_group.*`: how long a partition may wait for its old owner, and how often that is looked at."""

    rebalancing_timeout_ms: int
    rebalancing_check_interval_ms: int


class Heartbeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`heartbeat.*`: whether clients that stop sending PING lose their entry, and how often they are looked for."""

    enabled: bool
    interval_ms: int


class ClusterNodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of `cluster.node.others`. A port 0 is not set: the one of this node is told."""

    name: str
    ip: str
    tcp: int
    quic: int
    http: int
    websocket: int


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`cluster.*`: what clients are told about nodes (docs/protocol/system.md#get-cluster-metadata). `follower`: this
    node is not the leader."""

    enabled: bool
    name: str
    follower: bool
    current_name: str
    current_ip: str
    others: tuple[ClusterNodeSettings, ...]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of one server."""

    tcp: Tcp
    server: Server
    system: System
    consumer_group: ConsumerGroupSettings
    heartbeat: Heartbeat
    personal_access_token: PersonalAccessToken
    message_saver: MessageSaver
    cluster: Cluster
