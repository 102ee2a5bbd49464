"""The settings as every part of the server sees them: frozen, typed, in base units.

Texts such as "1 GiB" or "30 s" exist only in files and the environment; `keys.py` lists every key with its text form.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from shardd.config.http import Http
from shardd.config.liftbridge import Liftbridge
from shardd.config.logs import Logging
from shardd.config.metrics import Metrics
from shardd.config.nodes import Cluster
from shardd.config.passwords import PasswordHash
from shardd.config.proxies import Proxies
from shardd.config.quic import Quic
from shardd.config.telemetry import Telemetry
from shardd.config.websocket import WebSocket

NEVER = 2**64 - 1
"""Wire value of "never expires" and of "unlimited" (docs/protocol/primitives.md#topic-values)."""
ACK_LEVELS: Final = ("memory", "written", "durable")
SEGMENT_BYTES_MAX: Final = 1 << 30
DEDUPLICATION_ENTRIES_MAX: Final = 1_000_000
DEDUPLICATION_EXPIRY_MAX_MS: Final = 24 * 3600 * 1000
INDEX_MODES: Final = ("none", "open_segment", "all")  # by their numbers in the engine (index_pages.h)


class Socket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tcp.socket.*`; the other values apply only when `override_defaults` is set. `linger_ms` 0: not set."""

    override_defaults: bool
    recv_buffer_size_bytes: int
    send_buffer_size_bytes: int
    keepalive: bool
    nodelay: bool
    linger_ms: int


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tcp.tls.*`. `other_certificates`: pairs of files for further names; `client_users`: "CN:name" -> user."""

    enabled: bool
    mode: str
    self_signed: bool
    cert_file: str
    key_file: str
    other_certificates: tuple[tuple[str, str], ...]
    min_version: str
    ciphers: str
    client_certificates: str
    client_ca_file: str
    client_users: dict[str, str]

    @property
    def wanted_mode(self) -> str:
        """off, required or both; Iggy's `enabled` asks for required."""
        return "required" if self.enabled and self.mode == "off" else self.mode

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """Certificate and key of each pair."""
        first = ((self.cert_file, self.key_file),) if self.cert_file else ()
        return first + self.other_certificates


class Tcp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tcp.*`. `address` is "host:port" or "[v6]:port" with a literal IP address; port 0 lets the kernel choose."""

    address: str
    socket_migration: bool
    dialect: str
    pipeline_window_requests: int
    tls: Tls
    socket: Socket

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


class Legacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`legacy.*`: as whom clients act that know no login ("": nobody), and which release they are until they tell."""

    anonymous_user: str
    anonymous_release: str


class Unix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`unix.*`: the socket for clients on this host. `path` "": there is none. `group` "": that of the server. `users`:
    who a uid is without a login; nobody else is anybody."""

    path: str
    mode: int
    group: str
    users: dict[int, str]


class Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`server.*`: limits of connections, whatever they come over. `idle_timeout_ms` 0: none.

    `connections_per_address_max`, `connections_before_login_max` 0: `most_connections`. `waiting_polls_max`: on each
    shard; `waiting_polls_per_user_max` 0: half of them. `producer_expiry_ms`: how long a producer may be idle.
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
    waiting_polls_max: int
    waiting_polls_per_user_max: int
    producer_expiry_ms: int
    password_hash: PasswordHash

    @property
    def most_connections(self) -> int:
        """What one address, or all that are not logged in, may take: a tenth stays for the others."""
        return max(1, self.connections_max * 9 // 10)


class Sharding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`cpu_allocation` as written; `cpus.allocate_cpus` turns it into CPU numbers. `busy_poll_us`: how long a worker
    looks for the next request before it sleeps; 0: not at all."""

    cpu_allocation: str
    busy_poll_us: int


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


class CompressionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`system.compression.*`: what holds for topics without a choice of their own, whether topics may choose, and how
    much of sealed segments is compressed in a second (each worker)."""

    default_algorithm: str
    allow_override: bool
    rate_bytes: int


class DeduplicationSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`system.message_deduplication.*`: whether messages with a known id are stored again in topics without a choice of
    their own, of how many of the last messages of a partition ids are known, and for how long."""

    enabled: bool
    max_entries: int
    expiry_ms: int


class ScrubberSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`system.scrubber.*`: whether sealed segments are read again in the background, how much of them in a second (each
    worker), and how long it rests between two rounds."""

    enabled: bool
    rate_bytes: int
    pause_ms: int


class TrashSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`system.trash.*`: with more names in the trash, deletions and purges wait."""

    names_max: int


class RetentionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`system.retention.*`: a clock that jumps further forward is doubted for as long (0: never), and how much longer a
    stored offset holds messages back that it has not passed; 0: their expiry once more."""

    clock_jump_max_ms: int
    held_max_ms: int


class ArchiveSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`system.archive.*`: where the server itself copies segments to ("": it does not), how much of them in a second,
    and from which size on the spool of those that wait for an archive is too large."""

    directory: str
    rate_bytes: int
    spool_max_bytes: int


class DataMaintenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`data_maintenance.messages.*`: whether messages expire and topics limited, and how often files are removed."""

    cleaner_enabled: bool
    interval_ms: int


class OffsetSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`offsets.*`: stored offsets that were not used for as long are deleted (`NEVER`: none is), how often each worker
    looks for them, and for how long a group keeps its own when its last member has gone, or the server has begun."""

    expiry_us: int
    expiry_check_interval_ms: int
    expiry_group_hold_ms: int


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
    (`NEVER`: never, unlimited). `cache_indexes`: of which segments entries of indexes that were read are kept in
    memory. `disk_reserve_bytes`: with less free, sends are refused; 0: until the disk is full. `group`: who may read
    the messages, a name or a number; "": nobody else."""

    path: str
    group: str
    runtime_path: str
    io_engine: str
    logging: Logging
    sharding: Sharding
    segment_size_bytes: int
    cache_indexes: str
    topic_max_size_bytes: int
    topic_message_expiry_us: int
    partition: PartitionSettings
    memory_pool_size_bytes: int
    disk_reserve_bytes: int
    trash: TrashSettings
    compression: CompressionSettings
    message_deduplication: DeduplicationSettings
    retention: RetentionSettings
    archive: ArchiveSettings
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


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of one server."""

    tcp: Tcp
    legacy: Legacy
    unix: Unix
    websocket: WebSocket
    http: Http
    quic: Quic
    liftbridge: Liftbridge
    metrics: Metrics
    telemetry: Telemetry
    server: Server
    proxies: Proxies
    system: System
    consumer_group: ConsumerGroupSettings
    heartbeat: Heartbeat
    personal_access_token: PersonalAccessToken
    message_saver: MessageSaver
    data_maintenance: DataMaintenance
    offsets: OffsetSettings
    cluster: Cluster

    @property
    def tls_of_websocket(self) -> Tls:
        """That of TCP, but for what `websocket.tls` says."""
        own, mode = self.websocket.tls, self.websocket.tls.mode
        if not self.websocket.enabled:
            mode = "off"
        elif own.enabled and mode == "off":
            mode = "required"
        shown = (self.tcp.tls.self_signed, self.tcp.tls.cert_file, self.tcp.tls.key_file)
        others = self.tcp.tls.other_certificates
        if own.self_signed or own.cert_file or own.key_file:
            shown, others = (own.self_signed, own.cert_file, own.key_file), ()
        return msgspec.structs.replace(
            self.tcp.tls,
            enabled=False,
            mode=mode,
            self_signed=shown[0],
            cert_file=shown[1],
            key_file=shown[2],
            other_certificates=others,
        )

    @property
    def tls_of_doors(self) -> dict[str, Tls]:
        """Of the doors that have TLS, by the section of their settings. Whom certificates stand for is TCP's matter."""
        doors, own, of_quic = {}, self.http.tls, self.quic.certificate
        if self.http.enabled and own.enabled:
            shown = own if own.self_signed or own.cert_file or own.key_file else self.tcp.tls
            doors["http.tls"] = self._tls_of_door(shown.self_signed, shown.cert_file, shown.key_file)
        if self.quic.enabled:
            files = of_quic if of_quic.cert_file or of_quic.key_file else self.tcp.tls
            doors["quic.certificate"] = self._tls_of_door(of_quic.self_signed, files.cert_file, files.key_file)
        of_liftbridge = self.liftbridge.tls
        if self.liftbridge.enabled and of_liftbridge.enabled:
            own_files = of_liftbridge.self_signed or of_liftbridge.cert_file or of_liftbridge.key_file
            at = of_liftbridge if own_files else self.tcp.tls
            doors["liftbridge.tls"] = self._tls_of_door(at.self_signed, at.cert_file, at.key_file)
            if of_liftbridge.client_ca_file:
                clients = {"client_certificates": "required", "client_ca_file": of_liftbridge.client_ca_file}
                doors["liftbridge.tls"] = msgspec.structs.replace(doors["liftbridge.tls"], **clients)
        return doors

    def _tls_of_door(self, self_signed: bool, cert_file: str, key_file: str) -> Tls:
        shown = {"self_signed": self_signed, "cert_file": cert_file, "key_file": key_file, "other_certificates": ()}
        nobody = {"client_certificates": "off", "client_ca_file": "", "client_users": {}}
        return msgspec.structs.replace(self.tcp.tls, enabled=True, mode="required", **shown, **nobody)

    @property
    def all_tls(self) -> dict[str, Tls]:
        """Of ports and doors."""
        return self.tls_of_ports | self.tls_of_doors

    @property
    def tls_of_ports(self) -> dict[str, Tls]:
        """Of the ports that have TLS, by the section of their settings."""
        ports = {"tcp.tls": self.tcp.tls, "websocket.tls": self.tls_of_websocket}
        return {section: tls for section, tls in ports.items() if tls.wanted_mode != "off"}
