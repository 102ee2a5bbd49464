"""The keys `liftbridge.*`: a part of the table of shardd/config/keys.py."""

from __future__ import annotations

from typing import Final

from shardd.config import liftbridge, tls, units, values
from shardd.config.cpus import parse_cpus
from shardd.config.key import DECADE_MS, HOUR_MS, Key, count, duration, flag, list_of, size
from shardd.config.schema import SEGMENT_BYTES_MAX

LIFTBRIDGE_KEYS: Final[tuple[Key, ...]] = (
    flag("liftbridge.enabled", False),
    Key("liftbridge.address", "liftbridge.address", "127.0.0.1:9292", units.parse_address),
    Key("liftbridge.advertised_address", "liftbridge.advertised_address", "", liftbridge.parse_advertised),
    Key("liftbridge.cpus", "liftbridge.cpus", "", parse_cpus),
    Key("liftbridge.server_id", "liftbridge.server_id", "", liftbridge.parse_server_id),
    Key("liftbridge.namespace", "liftbridge.namespace", "liftbridge-default", liftbridge.parse_word),
    Key("liftbridge.anonymous_user", "liftbridge.anonymous_user", "", liftbridge.parse_user),
    count("liftbridge.cursors_partitions", 1, 0, 64),
    flag("liftbridge.activity", False),
    duration("liftbridge.group_consumer_timeout", "liftbridge.group_consumer_timeout_ms", "15 s", 100, HOUR_MS),
    duration("liftbridge.group_coordinator_timeout", "liftbridge.group_coordinator_timeout_ms", "15 s", 100, HOUR_MS),
    size(
        "liftbridge.max_message_size", "liftbridge.max_message_size_bytes", "1 MiB", 1024, liftbridge.MESSAGE_BYTES_MAX
    ),
    Key("liftbridge.expose_native", "liftbridge.expose_native", "off", values.parse_choice(liftbridge.EXPOSED)),
    flag("liftbridge.ack_all_fsync", False),
    duration("liftbridge.streams.retention_age", "liftbridge.streams.retention_age_ms", "7 days", 0, DECADE_MS),
    size("liftbridge.streams.retention_size", "liftbridge.streams.retention_size_bytes", "0 B", 0, 1 << 50),
    count("liftbridge.streams.retention_messages", 0, 0, 1 << 62),
    size("liftbridge.streams.segment_size", "liftbridge.streams.segment_size_bytes", "0 B", 0, SEGMENT_BYTES_MAX),
    duration("liftbridge.streams.segment_age", "liftbridge.streams.segment_age_ms", "0 s", 0, DECADE_MS),
    duration("liftbridge.streams.auto_pause_time", "liftbridge.streams.auto_pause_time_ms", "0 s", 0, DECADE_MS),
    flag("liftbridge.streams.auto_pause_disable_if_subscribers", False),
    flag("liftbridge.tls.enabled", False),
    flag("liftbridge.tls.self_signed", False),
    Key("liftbridge.tls.cert_file", "liftbridge.tls.cert_file", "", tls.parse_path),
    Key("liftbridge.tls.key_file", "liftbridge.tls.key_file", "", tls.parse_path),
    Key("liftbridge.tls.client_ca_file", "liftbridge.tls.client_ca_file", "", tls.parse_path),
    list_of("liftbridge.nats.servers", [], liftbridge.parse_servers),
    Key("liftbridge.nats.user", "liftbridge.nats.user", "", liftbridge.parse_user),
    list_of("liftbridge.nats.outward_subjects", [], liftbridge.parse_outward_subjects),
    Key(
        "liftbridge.nats.ack_inbox_prefix",
        "liftbridge.nats.ack_inbox_prefix",
        "",
        liftbridge.parse_ack_inbox_prefix,
    ),
    Key("liftbridge.nats.login_name", "liftbridge.nats.login_name", "", values.parse_user),
    *(Key(f"liftbridge.nats.{name}", f"liftbridge.nats.{name}", "", tls.parse_path) for name in liftbridge.NATS_FILES),
    flag("liftbridge.nats_server.enabled", False),
    Key("liftbridge.nats_server.address", "liftbridge.nats_server.address", "127.0.0.1:4222", units.parse_address),
    size("liftbridge.nats_server.max_payload", "liftbridge.nats_server.max_payload_bytes", "1 MiB", 1024, 4 << 20),
)
