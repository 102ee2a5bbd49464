"""Every served key in one table: name, default, text form. Files, environment, `config show` and the effective
configuration that a running server writes are all made from it (docs/configuration.md#keys)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from shardd.config import (
    cluster,
    hosts,
    http,
    issuers,
    liftbridge,
    local_socket,
    metrics,
    origins,
    passwords,
    paths,
    proxies,
    quic,
    telemetry,
    tls,
    units,
    values,
)
from shardd.config.cpus import check_cpu_allocation, parse_cpus
from shardd.config.key import DECADE_MS as _DECADE_MS
from shardd.config.key import HOUR_MS as _HOUR_MS
from shardd.config.key import Key
from shardd.config.key import count as _count
from shardd.config.key import duration as _duration
from shardd.config.key import flag as _flag
from shardd.config.key import list_of as _list
from shardd.config.key import size as _size
from shardd.config.liftbridge_keys import LIFTBRIDGE_KEYS
from shardd.config.schema import (
    ACK_LEVELS,
    DEDUPLICATION_ENTRIES_MAX,
    DEDUPLICATION_EXPIRY_MAX_MS,
    NEVER,
    SEGMENT_BYTES_MAX,
    Settings,
)

POOL_BYTES_PER_SHARD_MIN: Final = 32 << 20
BUSY_POLL_MAX_US: Final = 1_000
LOG_FORMATS: Final = ("text", "json")
ACK_PATH: Final = "system.partition.ack"
ENFORCE_FSYNC_PATH: Final = "system.partition.enforce_fsync"
IO_ENGINES: Final = ("auto", "io_uring", "epoll")
DIALECTS: Final = ("auto", "classic", "iggy-0.9")  # `dialect_named` of the core has the same


def environment_suffix(path: str) -> str:
    """The part after SHARDD_ or IGGY_ of a key's variable (docs/configuration.md#precedence)."""
    return path.upper().replace(".", "_")


_MAX_SIZE: Final = units.parse_max_size_bytes
_EXPIRY: Final = units.parse_expiry_us
_OFFSET_EXPIRY: Final = units.parse_offset_expiry_us

KEYS: Final[tuple[Key, ...]] = (
    Key("tcp.address", "tcp.address", "127.0.0.1:8090", units.parse_address),
    _flag("tcp.socket_migration", True),
    _flag("tcp.proxy_protocol", False, "proxies.tcp"),
    Key("legacy.anonymous_user", "legacy.anonymous_user", "", values.parse_user),
    Key("legacy.anonymous_release", "legacy.anonymous_release", "0.0.69", values.parse_release),
    Key("tcp.dialect", "tcp.dialect", "auto", values.parse_choice(DIALECTS)),
    _count("tcp.pipeline_window_requests", 32, 1, 32),
    _flag("tcp.tls.enabled", False),
    Key("tcp.tls.mode", "tcp.tls.mode", "off", values.parse_choice(tls.MODES)),
    _flag("tcp.tls.self_signed", False),
    Key("tcp.tls.cert_file", "tcp.tls.cert_file", "", tls.parse_path),
    Key("tcp.tls.key_file", "tcp.tls.key_file", "", tls.parse_path),
    Key("tcp.tls.other_certificates", "tcp.tls.other_certificates", "", tls.parse_pairs, tls.format_pairs),
    Key("tcp.tls.min_version", "tcp.tls.min_version", "1.2", values.parse_choice(tls.VERSIONS)),
    Key("tcp.tls.ciphers", "tcp.tls.ciphers", tls.CIPHERS, tls.parse_ciphers),
    Key("tcp.tls.client_certificates", "tcp.tls.client_certificates", "off", values.parse_choice(tls.CLIENTS)),
    Key("tcp.tls.client_ca_file", "tcp.tls.client_ca_file", "", tls.parse_path),
    Key("tcp.tls.client_users", "tcp.tls.client_users", "", tls.parse_users, tls.format_users),
    _flag("tcp.socket.override_defaults", False),
    _size("tcp.socket.recv_buffer_size", "tcp.socket.recv_buffer_size_bytes", "100 KB", 4096, 1 << 30),
    _size("tcp.socket.send_buffer_size", "tcp.socket.send_buffer_size_bytes", "100 KB", 4096, 1 << 30),
    _flag("tcp.socket.keepalive", False),
    _flag("tcp.socket.nodelay", True),
    _duration("tcp.socket.linger", "tcp.socket.linger_ms", "0 s", 0, _HOUR_MS),
    Key("unix.path", "unix.path", "", local_socket.parse_path),
    Key("unix.mode", "unix.mode", "0600", local_socket.parse_mode, local_socket.format_mode),
    Key("unix.group", "unix.group", "", values.parse_group),
    Key("unix.users", "unix.users", "", local_socket.parse_users, local_socket.format_users, quoted=False),
    _flag("websocket.enabled", False),
    Key("websocket.address", "websocket.address", "127.0.0.1:8092", units.parse_address),
    _size("websocket.max_message_size", "websocket.max_message_size_bytes", "64 MiB", 1024, 1 << 40),
    _size("websocket.max_frame_size", "websocket.max_frame_size_bytes", "16 MiB", 1024, 1 << 40),
    _flag("websocket.accept_unmasked_frames", False),
    _list("websocket.allowed_origins", "", origins.parse_origins),
    _flag("websocket.proxy_protocol", False, "proxies.websocket"),
    _flag("websocket.tls.enabled", False),
    Key("websocket.tls.mode", "websocket.tls.mode", "off", values.parse_choice(tls.MODES)),
    _flag("websocket.tls.self_signed", False),
    Key("websocket.tls.cert_file", "websocket.tls.cert_file", "", tls.parse_path),
    Key("websocket.tls.key_file", "websocket.tls.key_file", "", tls.parse_path),
    _flag("http.enabled", False),
    Key("http.address", "http.address", "127.0.0.1:3000", units.parse_address),
    _list("http.allowed_hosts", [], hosts.parse_hosts),
    _flag("http.forwarded_for", False, "proxies.http"),
    _flag("http.proxy_protocol", False, "proxies.http_header"),
    _count("http.processes", 1, 1, http.PROCESSES_MAX),
    Key("http.cpus", "http.cpus", "", parse_cpus),
    _size("http.max_request_size", "http.max_request_size_bytes", "2 MB", 1024, http.REQUEST_BYTES_MAX),
    _flag("http.cors.enabled", False),
    _list("http.cors.allowed_origins", ["*"], origins.parse_origins),
    _list("http.cors.allowed_methods", ["GET", "POST", "PUT", "DELETE"], http.parse_words),
    _list("http.cors.allowed_headers", ["content-type", "authorization"], http.parse_words),
    _list("http.cors.exposed_headers", [], http.parse_words),
    _flag("http.cors.allow_credentials", False),
    Key("http.jwt.issuer", "http.jwt.issuer", "iggy.apache.org", http.parse_claim),
    Key("http.jwt.audience", "http.jwt.audience", "iggy.apache.org", http.parse_claim),
    _duration("http.jwt.access_token_expiry", "http.jwt.access_token_expiry_ms", "1 h", 1000, 24 * 30 * _HOUR_MS),
    _duration("http.jwt.clock_skew", "http.jwt.clock_skew_ms", "5 s", 0, 600_000),
    Key("http.jwt.key_file", "http.jwt.key_file", "", tls.parse_path),
    Key(issuers.ISSUERS_PATH, issuers.ISSUERS_PATH, (), issuers.parse_issuers, issuers.format_issuers, quoted=False),
    _flag("http.tls.enabled", False),
    _flag("http.tls.self_signed", False),
    Key("http.tls.cert_file", "http.tls.cert_file", "", tls.parse_path),
    Key("http.tls.key_file", "http.tls.key_file", "", tls.parse_path),
    _flag("http.metrics.enabled", True),
    _flag("http.access_log", False),
    _flag("quic.enabled", False),
    Key("quic.address", "quic.address", "127.0.0.1:8080", units.parse_address),
    Key("quic.cpus", "quic.cpus", "", parse_cpus),
    _count("quic.max_concurrent_bidi_streams", 100, 1, 10_000),
    _size("quic.receive_window", "quic.receive_window_bytes", "100 KB", 16 << 10, 1 << 20),
    _size("quic.initial_mtu", "quic.initial_mtu_bytes", "1200 B", quic.DATAGRAM_BYTES_MIN, quic.DATAGRAM_BYTES_MAX),
    _duration("quic.keep_alive_interval", "quic.keep_alive_interval_ms", "5 s", 0, _HOUR_MS),
    _duration("quic.max_idle_timeout", "quic.max_idle_timeout_ms", "10 s", 1000, _HOUR_MS),
    _flag("quic.certificate.self_signed", True),
    Key("quic.certificate.cert_file", "quic.certificate.cert_file", "", tls.parse_path),
    Key("quic.certificate.key_file", "quic.certificate.key_file", "", tls.parse_path),
    *LIFTBRIDGE_KEYS,
    _flag("metrics.enabled", False),
    Key("metrics.address", "metrics.address", "127.0.0.1:9464", units.parse_address),
    _list("metrics.allowed_hosts", [], hosts.parse_hosts),
    Key("metrics.token_file", "metrics.token_file", "", tls.parse_path),
    _count("metrics.topics_max", 1000, 0, metrics.SERIES_MAX),
    _count("metrics.groups_max", 1000, 0, metrics.SERIES_MAX),
    _flag("telemetry.enabled", False),
    Key("telemetry.service_name", "telemetry.service_name", "shardd", telemetry.parse_service_name),
    Key("telemetry.traces.transport", "telemetry.traces.transport", "http", telemetry.parse_transport),
    Key("telemetry.traces.endpoint", "telemetry.traces.endpoint", telemetry.ENDPOINT, telemetry.parse_endpoint),
    Key("telemetry.traces.sample_ratio", "telemetry.traces.sample_ratio", 0.01, telemetry.parse_ratio, quoted=False),
    _count("server.connections_max", 10_000, 1, 1_000_000),
    _count("server.connections_per_address_max", 0, 0, 1_000_000),
    _count("server.connections_before_login_max", 0, 0, 1_000_000),
    _duration("server.login_timeout", "server.login_timeout_ms", "5 m", 100, _HOUR_MS),
    _count("server.login_attempts_max", 100, 1, 1_000_000),
    _duration("server.idle_timeout", "server.idle_timeout_ms", "0 s", 0, 24 * _HOUR_MS),
    _duration("server.request_timeout", "server.request_timeout_ms", "1 m", 100, _HOUR_MS),
    _duration("server.partial_frame_timeout", "server.partial_frame_timeout_ms", "30 s", 100, _HOUR_MS),
    _duration("server.slow_reader_timeout", "server.slow_reader_timeout_ms", "30 s", 100, _HOUR_MS),
    _count("server.waiting_polls_max", 32_768, 0, 1_000_000),
    _count("server.waiting_polls_per_user_max", 0, 0, 1_000_000),
    _list(proxies.NETWORKS_PATH, [], proxies.parse_networks, "proxies.networks"),
    _duration("server.producer_expiry", "server.producer_expiry_ms", "7 days", 60_000, 365 * 24 * _HOUR_MS),
    _size(
        "server.password_hash.memory",
        "server.password_hash.memory_bytes",
        "19 MiB",
        passwords.MEMORY_MIN_BYTES,
        passwords.MEMORY_MAX_BYTES,
        1024,
    ),
    _count("server.password_hash.passes", passwords.DEFAULT.passes, 1, passwords.PASSES_MAX),
    Key("system.path", "system.path", "local_data", paths.parse_path),
    Key("system.group", "system.group", "", values.parse_group),
    Key("system.runtime.path", "system.runtime_path", "runtime", paths.parse_path),
    Key("system.io_engine", "system.io_engine", "auto", values.parse_choice(IO_ENGINES)),
    Key("system.logging.level", "system.logging.level", "info", values.parse_level),
    Key("system.logging.format", "system.logging.format", "text", values.parse_choice(LOG_FORMATS)),
    Key("system.logging.audit_file", "system.logging.audit_file", "", paths.parse_absolute),
    Key("system.sharding.cpu_allocation", "system.sharding.cpu_allocation", "all", check_cpu_allocation),
    Key(
        "system.sharding.busy_poll",
        "system.sharding.busy_poll_us",
        "0 s",
        values.bounded(units.parse_duration_us, 0, BUSY_POLL_MAX_US, units.format_duration_us),
        units.format_duration_us,
    ),
    _size("system.memory_pool.size", "system.memory_pool_size_bytes", "4 GiB", POOL_BYTES_PER_SHARD_MIN, 1 << 44),
    _size("system.segment.size", "system.segment_size_bytes", "1 GiB", 512, SEGMENT_BYTES_MAX, 512),
    Key("system.segment.cache_indexes", "system.cache_indexes", "open_segment", values.parse_index_mode),
    _size("system.disk.reserve", "system.disk_reserve_bytes", "64 MiB", 0, 1 << 44),
    _count("system.trash.names_max", 50_000, 1_000, 100_000_000),
    Key("system.compression.default_algorithm", "system.compression.default_algorithm", "none", values.parse_codec),
    _flag("system.compression.allow_override", True),
    _size("system.compression.rate", "system.compression.rate_bytes", "64 MiB", 64 << 10, 1 << 34),
    _flag("system.message_deduplication.enabled", False),
    _count("system.message_deduplication.max_entries", 10_000, 1, DEDUPLICATION_ENTRIES_MAX),
    _duration(
        "system.message_deduplication.expiry",
        "system.message_deduplication.expiry_ms",
        "1 m",
        1000,
        DEDUPLICATION_EXPIRY_MAX_MS,
    ),
    _duration("system.retention.clock_jump_max", "system.retention.clock_jump_max_ms", "1 h", 0, 24 * 30 * _HOUR_MS),
    _duration("system.retention.held_max", "system.retention.held_max_ms", "0 s", 0, _DECADE_MS),
    Key("system.archive.directory", "system.archive.directory", "", paths.parse_absolute),
    _size("system.archive.rate", "system.archive.rate_bytes", "64 MiB", 64 << 10, 1 << 34),
    _size("system.archive.spool_max", "system.archive.spool_max_bytes", "16 GiB", 0, 1 << 50),
    _flag("system.scrubber.enabled", True),
    _size("system.scrubber.rate", "system.scrubber.rate_bytes", "8 MiB", 64 << 10, 1 << 34),
    _duration("system.scrubber.pause", "system.scrubber.pause_ms", "1 h", 10, 24 * 30 * _HOUR_MS),
    _duration("system.watchdog.device_stall_limit", "system.watchdog.device_stall_limit_ms", "10 m", 0, 24 * _HOUR_MS),
    _duration("system.watchdog.starvation_limit", "system.watchdog.starvation_limit_ms", "2 m", 0, 24 * _HOUR_MS),
    Key("system.topic.max_size", "system.topic_max_size_bytes", "unlimited", _MAX_SIZE, units.format_size),
    Key("system.topic.message_expiry", "system.topic_message_expiry_us", "none", _EXPIRY, units.format_duration_us),
    _duration("consumer_group.rebalancing_timeout", "consumer_group.rebalancing_timeout_ms", "30 s", 10, _HOUR_MS),
    _duration(
        "consumer_group.rebalancing_check_interval",
        "consumer_group.rebalancing_check_interval_ms",
        "5 s",
        10,
        _HOUR_MS,
    ),
    _flag("heartbeat.enabled", False),
    _duration("heartbeat.interval", "heartbeat.interval_ms", "5 s", 100, _HOUR_MS),
    Key(ACK_PATH, ACK_PATH, "written", values.parse_choice(ACK_LEVELS)),
    _flag(ENFORCE_FSYNC_PATH, False),
    _duration("system.partition.sync_interval", "system.partition.sync_interval_ms", "1 s", 10, _HOUR_MS),
    Key(
        "system.partition.messages_required_to_save",
        "system.partition.messages_required_to_save",
        1024,
        values.bounded(values.parse_count, 1, 1 << 24, str),
        quoted=False,
    ),
    _size(
        "system.partition.size_of_messages_required_to_save",
        "system.partition.size_of_messages_required_to_save_bytes",
        "1 MiB",
        512,
        1 << 30,
    ),
    _count("system.partition.consumer_offsets_max", 200_000, 1, 1_000_000),
    _flag("message_saver.enabled", True),
    _flag("message_saver.enforce_fsync", True),
    _duration("message_saver.interval", "message_saver.interval_ms", "30 s", 10, _HOUR_MS),
    _flag("data_maintenance.messages.cleaner_enabled", True, "data_maintenance.cleaner_enabled"),
    _duration("data_maintenance.messages.interval", "data_maintenance.interval_ms", "10 s", 10, 24 * _HOUR_MS),
    Key("offsets.expiry", "offsets.expiry_us", "never", _OFFSET_EXPIRY, units.format_offset_expiry_us),
    _duration("offsets.expiry_check_interval", "offsets.expiry_check_interval_ms", "10 m", 10, 24 * _HOUR_MS),
    _duration("offsets.expiry_group_hold", "offsets.expiry_group_hold_ms", "10 m", 10, 24 * _HOUR_MS),
    _count("personal_access_token.max_tokens_per_user", 100, 1, 10_000),
    _flag("personal_access_token.cleaner.enabled", True, "personal_access_token.cleaner_enabled"),
    _duration(
        "personal_access_token.cleaner.interval", "personal_access_token.cleaner_interval_ms", "1 m", 100, _HOUR_MS
    ),
    _flag("cluster.enabled", False),
    Key("cluster.name", "cluster.name", "iggy-cluster", cluster.parse_name),
    _flag("cluster.follower", False),
    Key("cluster.node.current.name", "cluster.current_name", "iggy-node-1", cluster.parse_name),
    Key("cluster.node.current.ip", "cluster.current_ip", "127.0.0.1", cluster.parse_name),
    Key(
        cluster.OTHERS_PATH,
        "cluster.others",
        cluster.DEFAULT_OTHERS,
        cluster.parse_others,
        cluster.format_others,
        quoted=False,
    ),
)
# Keys that had another name, by it. What was written for an earlier version goes on working, with one warning.
_LIMITS_OF_SERVER: Final = (
    "connections_max",
    "connections_per_address_max",
    "connections_before_login_max",
    "login_timeout",
    "login_attempts_max",
    "idle_timeout",
    "request_timeout",
    "partial_frame_timeout",
    "slow_reader_timeout",
)
RENAMED: Final = {f"tcp.{name}": f"server.{name}" for name in _LIMITS_OF_SERVER}
KEYS_BY_PATH: Final = {key.path: key for key in KEYS}


def build_settings(values: dict[str, Any]) -> Settings:
    """`values`: parsed value of every key by path."""
    tree: dict[str, Any] = {}
    for key in KEYS:
        *parents, name = key.field.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = values[key.path]
    return msgspec.convert(tree, Settings)


def value_of(settings: Settings, key: Key) -> Any:
    node: Any = settings
    for name in key.field.split("."):
        node = getattr(node, name)
    return node


def check_together(settings: Settings) -> list[str]:
    """Sentences about keys that do not fit each other."""
    system = settings.system
    nodes = settings.cluster
    if nodes.enabled and any(node.name == nodes.current_name for node in nodes.others):
        return ["cluster.node.others: a node has the name of this one (cluster.node.current.name)"]
    here = (nodes.current_ip, settings.tcp.port)
    if nodes.enabled and any((node.ip, node.tcp or settings.tcp.port) == here for node in nodes.others):
        return ["cluster.node.others: a node has the tcp address of this one"]
    if settings.legacy.anonymous_user and settings.tcp.tls.wanted_mode == "required":
        return ["legacy.anonymous_user: clients that know no login know no TLS, which tcp.tls.mode requires"]
    if settings.legacy.anonymous_user and settings.tcp.dialect != "auto":
        return [f"legacy.anonymous_user: has no effect with tcp.dialect = {settings.tcp.dialect}"]
    if system.topic_max_size_bytes != NEVER and system.topic_max_size_bytes < system.segment_size_bytes:
        return ["system.topic.max_size: smaller than system.segment.size"]
    websocket = settings.websocket
    if websocket.enabled and websocket.port and websocket.address == settings.tcp.address:
        return ["websocket.address: the same as tcp.address"]
    if (
        problems := proxies.check(settings)
        or http.check(settings)
        or quic.check(settings)
        or liftbridge.check(settings)
        or metrics.check(settings)
    ):
        return problems
    return tls.check(settings.all_tls)


def settings_toml(settings: Settings, actual: Mapping[str, str] | None = None) -> str:
    """All effective settings as TOML; `actual`: addresses by key, where port 0 has become a real one."""
    lines: list[str] = []
    section = ""
    # a table's own keys stand in one block, so the sections are grouped in order of first appearance
    sections = list(dict.fromkeys(key.path.rpartition(".")[0] for key in KEYS))
    for key in sorted(KEYS, key=lambda key: sections.index(key.path.rpartition(".")[0])):
        parent, _, name = key.path.rpartition(".")
        if parent != section:
            lines += ["", f"[{parent}]"] if lines else [f"[{parent}]"]
            section = parent
        value = (actual or {}).get(key.path) or value_of(settings, key)
        lines.append(f"{name} = {key.toml(value)}")
    return "\n".join(lines) + "\n"
